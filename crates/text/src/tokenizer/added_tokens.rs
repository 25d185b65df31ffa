//! Added tokens, which are matched in text before the model runs. Does not know the rest of the vocabulary.

use std::collections::HashMap;

use tokenizers::pipeline::PipelineNormalizer;
use tokenizers::vocab::bucket_added_vocabulary::{AddedToken, AddedVocabulary};

use super::normalize::{self, BoundedChain, Growth};
use crate::error::TokenizerError;

/// An added token and its id.
#[derive(Debug, Clone)]
pub(crate) struct AddedEntry {
    pub(crate) id: u32,
    pub(crate) token: AddedToken,
}

/// Creates the matcher for `entries` with their ids; `normalizers` run before it.
///
/// A control token is always matched in the original text, even if its `normalized` flag says otherwise:
/// normalization could turn other text into its spelling.
pub(crate) fn added_vocabulary(
    entries: &[AddedEntry],
    normalizers: &[PipelineNormalizer],
) -> Result<AddedVocabulary, TokenizerError> {
    let ids: HashMap<&str, u32> =
        entries.iter().rev().map(|entry| (entry.token.content.as_str(), entry.id)).collect();
    let n_ids = entries.iter().map(|entry| entry.id as usize + 1).max().unwrap_or(0);
    let tokens = entries.iter().filter(|entry| ids[entry.token.content.as_str()] == entry.id).map(|entry| {
        let normalized = entry.token.normalized && !entry.token.special;
        entry.token.clone().normalized(normalized)
    });
    normalize::check(normalizers)?;
    let n_bytes = entries.iter().map(|entry| entry.token.content.len()).sum();
    let chain = BoundedChain { normalizers, growth: Growth::of(n_bytes) };
    let mut added = AddedVocabulary::new();
    added
        .add_tokens(tokens, n_ids, |text| ids.get(text).copied(), Some(&chain))
        .map_err(|error| TokenizerError::Malformed(format!("added tokens: {error}")))?;
    Ok(added)
}
