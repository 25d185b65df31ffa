//! Byte-level BPE by ranks, as tiktoken has it: two neighbours merge if their bytes together are a token, the
//! lowest rank first. Does not know files.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;

use crate::error::TokenizerError;

/// Maximum bytes of a token; the search for its parts takes the square of them.
const MAX_TOKEN_BYTES: usize = 1024;

/// The tokens in the order of their ranks, with the id of the first one.
pub(super) struct ByteRanks {
    tokens: Vec<Vec<u8>>,
    first_id: usize,
}

impl ByteRanks {
    /// Takes the tokens of ranks `0..tokens.len()`.
    ///
    /// # Errors
    /// When a token is empty, too long or there twice, or one of the 256 bytes is missing.
    pub(super) fn new(tokens: Vec<Vec<u8>>, first_id: usize) -> Result<Self, TokenizerError> {
        if let Some(rank) = tokens.iter().position(|token| token.is_empty() || token.len() > MAX_TOKEN_BYTES)
        {
            let n_bytes = tokens[rank].len();
            return Err(TokenizerError::Malformed(format!("the token of rank {rank} has {n_bytes} bytes")));
        }
        let ranks = ranks(&tokens);
        if ranks.len() < tokens.len() {
            return Err(TokenizerError::Malformed("two tokens have the same bytes".to_owned()));
        }
        if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
            return Err(TokenizerError::Malformed(format!("the byte {byte} is not a token")));
        }
        Ok(Self { tokens, first_id })
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The `model` of a `tokenizer.json`.
    pub(super) fn model(&self) -> Value {
        let texts: Vec<String> = self.tokens.iter().map(|token| in_byte_alphabet(token)).collect();
        let merges: Vec<Value> =
            self.merges().into_iter().map(|(left, right)| json!([texts[left], texts[right]])).collect();
        let ids = texts.into_iter().enumerate().map(|(rank, text)| (text, json!(self.first_id + rank)));
        json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": true,
            "vocab": ids.collect::<Map<String, Value>>(),
            "merges": merges,
        })
    }

    /// Ranks of the two parts of each merge, by the rank of what they become.
    fn merges(&self) -> Vec<(usize, usize)> {
        let ranks = ranks(&self.tokens);
        let mut merges = Vec::with_capacity(2 * self.tokens.len());
        for token in &self.tokens {
            let cuts = (1..token.len())
                .filter_map(|at| Some((*ranks.get(&token[..at])?, *ranks.get(&token[at..])?)));
            let first = merges.len();
            merges.extend(cuts);
            merges[first..].sort_unstable();
        }
        merges
    }
}

fn ranks(tokens: &[Vec<u8>]) -> HashMap<&[u8], usize> {
    tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect()
}

/// The letters that stand for bytes in a `tokenizer.json`.
fn in_byte_alphabet(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| BYTES_CHAR_LOOKUP[*byte as usize]).collect()
}

/// A `tokenizer.json` of a byte-level vocabulary.
pub(super) fn tokenizer_json(
    model: Value,
    words: Vec<Value>,
    added_tokens: Vec<Value>,
    post_processor: Value,
) -> Value {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let pre_tokenizers: Vec<&Value> = words.iter().chain([&bytes]).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": post_processor,
        "decoder": bytes,
        "model": model,
    })
}
