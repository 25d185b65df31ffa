//! Vocabulary files of the programs that trained a model, for folders without a `tokenizer.json`: each is
//! converted into one. Does not know models.

mod byte_ranks;
mod sentencepiece_model;
mod tekken;
mod tiktoken;

use serde_json::{Value, json};

use super::TokenizerConfig;
use crate::error::TokenizerError;

/// A kind of vocabulary file, each with its usual name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginalVocabulary {
    /// `tiktoken.model`: byte sequences in Base64 with their ranks, as Kimi's models have it.
    Tiktoken,
    /// `tekken.json`: the same with special tokens and the pattern of words, as Mistral's models have it.
    Tekken,
    /// `tokenizer.model`: a SentencePiece model of pairs, as the first Llama models have it.
    SentencePiece,
}

/// A `tokenizer.json` and the `tokenizer_config.json` beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertedVocabulary {
    /// `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// `tokenizer_config.json`: the one that was given, or one with what the vocabulary file says.
    pub tokenizer_config: Option<Vec<u8>>,
    /// Chat template of the format that the vocabulary file names, for a folder without one.
    pub chat_template: Option<String>,
}

impl OriginalVocabulary {
    /// The kinds, in the order in which a folder is searched for their files.
    pub const ALL: [Self; 3] = [Self::Tekken, Self::Tiktoken, Self::SentencePiece];

    /// Usual name of the file.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Tiktoken => "tiktoken.model",
            Self::Tekken => "tekken.json",
            Self::SentencePiece => "tokenizer.model",
        }
    }

    /// Converts a file, with the `tokenizer_config.json` beside it, if there is one.
    ///
    /// # Errors
    /// When a file is broken, or describes a tokenizer that is not supported.
    pub fn convert(self, file: &[u8], config: Option<&[u8]>) -> Result<ConvertedVocabulary, TokenizerError> {
        let parsed = config.map(TokenizerConfig::parse).transpose()?;
        let own = match self {
            Self::Tiktoken => Own { root: tiktoken::convert(file, parsed.as_ref())?, ..Own::default() },
            Self::Tekken => tekken::convert(file)?,
            Self::SentencePiece => sentencepiece_model::convert(file)?,
        };
        let tokenizer_config = match (config, own.config) {
            (Some(given), _) => Some(given.to_vec()),
            (None, own) => own.map(|config| config.to_string().into_bytes()),
        };
        let tokenizer_json = own.root.to_string().into_bytes();
        Ok(ConvertedVocabulary { tokenizer_json, tokenizer_config, chat_template: own.chat_template })
    }
}

/// Contents of a vocabulary file.
#[derive(Default)]
struct Own {
    /// The `tokenizer.json`.
    root: Value,
    /// The special tokens, as a `tokenizer_config.json` names them.
    config: Option<Value>,
    chat_template: Option<String>,
}

/// An entry of `added_tokens`.
fn added_token(id: usize, content: &str, is_special: bool) -> Value {
    json!({
        "id": id,
        "content": content,
        "special": is_special,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
    })
}

/// The post-processor that puts BOS in front of each sequence.
fn begins_with(bos: &str, id: usize) -> Value {
    let sequence = |name: &str, segment: u32| json!({"Sequence": {"id": name, "type_id": segment}});
    let special = |segment: u32| json!({"SpecialToken": {"id": bos, "type_id": segment}});
    json!({
        "type": "TemplateProcessing",
        "single": [special(0), sequence("A", 0)],
        "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
    })
}
