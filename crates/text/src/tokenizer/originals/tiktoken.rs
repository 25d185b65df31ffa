//! `tiktoken.model`, as the Kimi models have it: a line has the bytes of a token in Base64 and its rank. The
//! pattern of words and the reserved tokens are those of their `tokenization_kimi.py`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::added_token;
use super::byte_ranks::{ByteRanks, tokenizer_json};
use crate::error::TokenizerError;
use crate::tokenizer::pre_tokenizers::Convention;
use crate::tokenizer::{MAX_VOCABULARY, TokenizerConfig};

/// Number of ids behind the vocabulary that special tokens have.
const N_RESERVED: usize = 256;

/// Converts the file. Special tokens that `tokenizer_config.json` names come with that file.
pub(super) fn convert(file: &[u8], config: Option<&TokenizerConfig>) -> Result<Value, TokenizerError> {
    let malformed = |line: usize| TokenizerError::Malformed(format!("tiktoken.model, line {}", line + 1));
    let text = std::str::from_utf8(file)
        .map_err(|_| TokenizerError::Malformed("tiktoken.model is no text".into()))?;
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    for (idx, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (bytes, rank) = line.trim().split_once(' ').ok_or_else(|| malformed(idx))?;
        let rank = rank
            .trim()
            .parse::<usize>()
            .ok()
            .filter(|rank| *rank < MAX_VOCABULARY)
            .ok_or_else(|| malformed(idx))?;
        let bytes = BASE64_STANDARD.decode(bytes).map_err(|_| malformed(idx))?;
        // A few lines must not occupy much memory.
        if rank > 2 * idx + (1 << 16) {
            return Err(malformed(idx));
        }
        tokens.resize(tokens.len().max(rank + 1), None);
        tokens[rank] = Some(bytes);
    }
    let n_tokens = tokens.len();
    let tokens: Vec<Vec<u8>> = tokens.into_iter().flatten().collect();
    if tokens.len() < n_tokens {
        return Err(TokenizerError::Malformed("tiktoken.model lacks some ranks".to_owned()));
    }
    let ranks = ByteRanks::new(tokens, 0)?;
    let is_named =
        |id: usize| config.is_some_and(|config| config.added_entries().any(|entry| entry.id as usize == id));
    let reserved = (ranks.len()..ranks.len() + N_RESERVED).filter(|id| !is_named(*id));
    let added = reserved.map(|id| added_token(id, &format!("<|reserved_token_{id}|>"), true)).collect();
    let words = Convention::named(Some("kimi-k2"))?.splits();
    Ok(tokenizer_json(ranks.model(), words, added, Value::Null))
}
