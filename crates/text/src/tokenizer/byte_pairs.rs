//! The BPE model, checked before the library sees it. Refuses to know file formats.

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::{BpeConfig, PipelineBPE};
use tokenizers::pipeline::PipelineModel;

use crate::error::TokenizerError;

/// What a BPE model is made of.
#[derive(Debug, Default)]
pub(crate) struct BytePairs {
    pub(crate) vocab: HashMap<String, u32>,
    /// In order of rank.
    pub(crate) merges: Vec<(String, String)>,
    pub(crate) byte_level: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) fuse_unknown: bool,
    pub(crate) unknown: Option<String>,
    pub(crate) continuing_subword_prefix: Option<String>,
    pub(crate) end_of_word_suffix: Option<String>,
    pub(crate) ignore_merges: bool,
}

impl BytePairs {
    /// Builds the model. `control` tokens leave its vocabulary: the library looks whole words up by a 32-bit
    /// digest, and a word that happens to share a control token's digest must not become one.
    pub(crate) fn build(mut self, control: &HashSet<&str>) -> Result<PipelineModel, TokenizerError> {
        // With a token for every byte nothing is unknown.
        let unknown = self.unknown.take().filter(|text| !self.byte_level && self.vocab.contains_key(text));
        self.vocab.retain(|text, _| !control.contains(text.as_str()) || unknown.as_deref() == Some(text));
        let prefix_bytes = self.continuing_subword_prefix.as_ref().map_or(0, String::len);
        let vocab = &self.vocab;
        // A merge without its product is one the library would index out of bounds for.
        self.merges.retain(|(left, right)| {
            let product = right.get(prefix_bytes..).map(|rest| [left.as_str(), rest].concat());
            vocab.contains_key(left)
                && vocab.contains_key(right)
                && product.is_some_and(|p| vocab.contains_key(&p))
        });
        let model = PipelineBPE::from_config(BpeConfig {
            vocab: self.vocab.into_iter().collect(),
            merges: self.merges,
            byte_level: self.byte_level,
            unk_token: unknown,
            continuing_subword_prefix: self.continuing_subword_prefix,
            end_of_word_suffix: self.end_of_word_suffix,
            fuse_unk: self.fuse_unknown,
            byte_fallback: self.byte_fallback,
            ignore_merges: self.ignore_merges,
            dropout: None,
            // The library's word cache trusts a 64-bit hash with fixed keys: words of one user could be made to
            // collide with another's.
            cache_capacity: 0,
        })
        .map_err(|error| TokenizerError::Malformed(error.to_string()))?;
        Ok(PipelineModel::BPE(model))
    }
}
