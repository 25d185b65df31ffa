//! What a gateway needs of a model besides its tokens, as bytes named by their digest. Does not know how they
//! are read.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes that a worker gives out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Kind of the content.
    pub kind: ArtifactKind,
    /// Their [`digest`].
    pub digest: String,
    /// Number of bytes.
    pub n_bytes: u64,
}

/// Kind of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A `tokenizer.json`.
    TokenizerJson,
    /// A `tokenizer_config.json`.
    TokenizerConfig,
    /// The vocabulary of a GGUF file: the JSON of a [`Vocabulary`](crate::Vocabulary).
    GgufVocabulary,
    /// The sources of the chat templates: a JSON list of pairs of name and source.
    ChatTemplates,
    /// Something that a newer worker gives out.
    #[serde(other)]
    Unknown,
}

/// The vocabulary in the metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the file's keys")]
pub struct Vocabulary {
    pub model: String,
    pub pre: Option<String>,
    pub model_name: Option<String>,
    pub tokens: Vec<String>,
    #[serde(with = "exact")]
    pub scores: Vec<f32>,
    pub token_types: Vec<i32>,
    pub merges: Vec<String>,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub eot_token_id: Option<u32>,
    pub eom_token_id: Option<u32>,
    pub unknown_token_id: Option<u32>,
    pub padding_token_id: Option<u32>,
    pub add_bos_token: Option<bool>,
    pub add_eos_token: Option<bool>,
    pub add_space_prefix: Option<bool>,
    #[serde(skip_serializing_if = "InfillKeys::is_empty")]
    pub infill: InfillKeys,
    pub encoder: EncoderKeys,
}

/// The keys of a GGUF file that only models have that fill in the middle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the text crate's keys")]
pub struct InfillKeys {
    pub before: Option<u32>,
    pub behind: Option<u32>,
    pub middle: Option<u32>,
    pub repository: Option<u32>,
    pub file: Option<u32>,
    pub end: Option<u32>,
}

impl InfillKeys {
    /// Whether the file has none of them.
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The keys of a GGUF file that only encoders have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the file's keys")]
pub struct EncoderKeys {
    pub separator_token_id: Option<u32>,
    pub cls_token_id: Option<u32>,
    pub lowercase: Option<bool>,
    pub strip_accents: Option<bool>,
    pub remove_extra_whitespaces: Option<bool>,
    pub precompiled_charsmap: Vec<u8>,
}

/// The SHA-256 of some bytes in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
