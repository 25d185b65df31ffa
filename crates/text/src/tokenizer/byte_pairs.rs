//! Builds and checks the BPE model for the tokenizer library. Does not know file formats.

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::{BpeConfig, PipelineBPE};
use tokenizers::pipeline::PipelineModel;
use tokenizers::utils::byte_level::{BYTES_CHAR_LOOKUP, char_to_byte};

use crate::error::TokenizerError;

/// The parts of a BPE model.
#[derive(Debug, Default)]
pub(crate) struct BytePairs {
    pub(crate) vocab: HashMap<String, u32>,
    /// Merges in order of rank.
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
    /// Builds the model. `control` tokens are removed from its vocabulary: the library looks up whole words
    /// by a 32-bit hash, and a word with the same hash as a control token must not become that token. All ids
    /// of the tokenizer, including added tokens, are below `n_ids`.
    pub(crate) fn build(
        mut self,
        control: &HashSet<&str>,
        n_ids: usize,
    ) -> Result<PipelineModel, TokenizerError> {
        // With a token for every byte, there are no unknown tokens.
        let unknown = self.unknown.take().filter(|text| !self.byte_level && self.vocab.contains_key(text));
        self.vocab.retain(|text, _| !control.contains(text.as_str()) || unknown.as_deref() == Some(text));
        if self.byte_level {
            // Words are passed to the model in the byte alphabet. An entry with other characters (`🚀`) can
            // never match, but the library would use it for its bytes.
            self.vocab.retain(|text, _| text.chars().all(|c| char_to_byte(c).is_some()));
        }
        let prefix_bytes = self.continuing_subword_prefix.as_ref().map_or(0, String::len);
        let vocab = &self.vocab;
        // The library would index out of bounds for a merge whose result is not in the vocabulary.
        self.merges.retain(|(left, right)| {
            let product = right.get(prefix_bytes..).map(|rest| [left.as_str(), rest].concat());
            vocab.contains_key(left)
                && vocab.contains_key(right)
                && product.is_some_and(|p| vocab.contains_key(&p))
        });
        if self.byte_level {
            self.complete_alphabet(n_ids);
            if !self.ignore_merges {
                self.drop_unreachable_characters();
            }
        }
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
            // The library's word cache compares only a 64-bit hash with fixed keys: a user could choose words that
            // collide with another user's.
            cache_capacity: 0,
        })
        .map_err(|error| TokenizerError::Malformed(error.to_string()))?;
        Ok(PipelineModel::BPE(model))
    }

    /// Some vocabularies lack tokens for bytes that did not occur in their training text, and the library
    /// refuses those. The ids added here are beyond the vocabulary; encoding leaves them out, as the original
    /// tokenizers leave out what they cannot encode.
    fn complete_alphabet(&mut self, n_ids: usize) {
        let mut next_id = n_ids as u32;
        for c in BYTES_CHAR_LOOKUP.iter() {
            self.vocab.entry(c.to_string()).or_insert_with(|| {
                next_id += 1;
                next_id - 1
            });
        }
    }

    /// Removes single-character entries that no merges produce: the library emits any such entry as one
    /// token, which is never correct.
    fn drop_unreachable_characters(&mut self) {
        // Each letter of the byte alphabet is one byte, and a character has at most four.
        let is_short = |text: &str| text.chars().nth(4).is_none();
        let ranks: HashMap<(&str, &str), usize> = self
            .merges
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, (left, right))| is_short(left) && is_short(right))
            .map(|(rank, (left, right))| ((left.as_str(), right.as_str()), rank))
            .collect();
        let unreachable: HashSet<String> = self
            .vocab
            .keys()
            .filter(|text| is_short(text) && is_one_wide_character(text) && !merges_lead_to(text, &ranks))
            .cloned()
            .collect();
        self.vocab.retain(|text, _| !unreachable.contains(text));
        self.merges.retain(|(left, right)| {
            ![left, right].into_iter().any(|part| unreachable.contains(part))
                && !unreachable.contains(&[left.as_str(), right].concat())
        });
    }
}

/// Whether a token in the byte alphabet spells a single character of several bytes.
fn is_one_wide_character(text: &str) -> bool {
    let bytes: Option<Vec<u8>> = text.chars().map(char_to_byte).collect();
    let character = bytes.filter(|bytes| bytes.len() > 1);
    character.is_some_and(|bytes| std::str::from_utf8(&bytes).is_ok_and(|text| text.chars().nth(1).is_none()))
}

/// Applies plain BPE: merges the pair with the lowest rank first, the leftmost among equals.
fn merges_lead_to(text: &str, ranks: &HashMap<(&str, &str), usize>) -> bool {
    let mut cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    while cuts.len() > 2 {
        let pairs = cuts.windows(3).enumerate();
        let ranked = pairs.filter_map(|(idx, cut)| {
            let pair = (&text[cut[0]..cut[1]], &text[cut[1]..cut[2]]);
            Some((*ranks.get(&pair)?, idx))
        });
        let Some((_, idx)) = ranked.min() else { return false };
        cuts.remove(idx + 1);
    }
    true
}
