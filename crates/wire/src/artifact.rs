//! Files of a model that a gateway needs, as bytes named by their digest. Does not know their formats.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A file that a worker provides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Kind of the content.
    pub kind: ArtifactKind,
    /// [`digest`] of the bytes.
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
    /// Image processor of the model: a JSON list of its `preprocessor_config.json` and its `config.json`.
    ImageProcessor,
    /// A kind of a newer worker.
    #[serde(other)]
    Unknown,
}

/// The SHA-256 of some bytes in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
