//! What a worker says about itself once: versions, model, limits and artifacts. Does not know the state that
//! it is in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use throng_core::request::{GenerationDefaults, TokenId};

use crate::Artifact;

/// The oldest version of the protocol that this build speaks.
pub const OLDEST_VERSION: u32 = 1;
/// The newest one.
pub const NEWEST_VERSION: u32 = 1;

/// The versions of the protocol that a side speaks, all from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Versions {
    /// Versions of this build.
    pub const OWN: Self = Self { oldest: OLDEST_VERSION, newest: NEWEST_VERSION };

    /// The newest version that both sides speak.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether it is one of these.
    pub fn contains(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

/// A worker and its model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The versions that it speaks.
    pub versions: Versions,
    /// The names of its model, the first of them its id.
    pub names: Vec<String>,
    /// Equal for workers whose answers are equal to the bit.
    pub fingerprint: String,
    /// Most tokens of prompt and answer together.
    pub max_model_len: u32,
    /// The model's own context.
    pub context_tokens: u64,
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// Defaults where a request says nothing.
    #[serde(default)]
    pub defaults: GenerationDefaults,
    /// Variables for the chat template where a request does not set them.
    #[serde(default)]
    pub chat_template_defaults: Map<String, Value>,
    /// The format of its tool calls, where the operator named one.
    #[serde(default)]
    pub tool_call_parser: Option<String>,
    /// The format of its reasoning, where the operator named one.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// The names of its adapters, which requests may use.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Kind of its vectors, where it answers with vectors.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// Whether it reads prompts with parts that are not text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_media: bool,
    /// The region where it is.
    #[serde(default)]
    pub region: Option<String>,
    /// Notice to people about the model.
    #[serde(default)]
    pub notice: Option<String>,
    /// Artifacts that a gateway needs of it.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
}

/// Kind of a model's vectors. A vector stands in the place of the log-probabilities of an answer's only
/// token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// The names of the labels, one a number of a vector; without them vectors are embeddings.
    #[serde(default)]
    pub labels: Option<Vec<String>>,
    /// Whether probabilities are of all labels together; else of each alone.
    #[serde(default)]
    pub are_exclusive: bool,
    /// Whether logits are the scores themselves.
    #[serde(default)]
    pub are_logits: bool,
    /// Whether embeddings have length one.
    pub normalizes: bool,
    /// Segments of tokens that it tells apart; a token of segment `s` has the id `token + s *
    /// segment_stride`.
    #[serde(default)]
    pub n_segments: u32,
    /// See [`Self::n_segments`].
    #[serde(default)]
    pub segment_stride: u32,
    /// Texts that may be put before others, by their names.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// The name of the one that is, where none is asked for.
    #[serde(default)]
    pub default_prompt: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_taken() {
        let versions = |oldest, newest| Versions { oldest, newest };
        assert_eq!(versions(1, 2).common(versions(2, 3)), Some(2));
        assert_eq!(versions(1, 3).common(versions(1, 2)), Some(2));
        assert_eq!(versions(1, 1).common(versions(2, 3)), None);
        assert!(Versions::OWN.contains(NEWEST_VERSION) && !Versions::OWN.contains(NEWEST_VERSION + 1));
    }

    #[test]
    fn a_description_of_another_version_is_read() {
        let text = r#"{"versions": {"oldest": 1, "newest": 9, "x": 0}, "names": ["m"], "fingerprint": "f", "max_model_len": 8,
            "context_tokens": 8, "vocabulary_size": 4, "eos_token_ids": [3], "a_new_field": {"deep": [1]},
            "artifacts": [{"kind": "a_new_kind", "digest": "d", "n_bytes": 1}]}"#;
        let description: Description = serde_json::from_str(text).expect("known fields");
        assert_eq!(description.versions.common(Versions::OWN), Some(NEWEST_VERSION));
        assert_eq!(description.artifacts[0].kind, crate::ArtifactKind::Unknown);
    }
}
