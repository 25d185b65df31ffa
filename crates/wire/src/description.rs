//! Description of a worker, which does not change: versions, model, limits and artifacts. Does not know the
//! worker's state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use throng_core::fleet::routing::Role;
use throng_core::request::{GenerationDefaults, TokenId};

use crate::Artifact;

/// Oldest version of the protocol that this build supports.
pub const OLDEST_VERSION: u32 = 1;
/// Newest version of the protocol that this build supports.
pub const NEWEST_VERSION: u32 = 1;

/// Versions of the protocol that a side supports, all from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Oldest supported version.
    pub oldest: u32,
    /// Newest supported version.
    pub newest: u32,
}

impl Versions {
    /// Versions that this build supports.
    pub const OWN: Self = Self { oldest: OLDEST_VERSION, newest: NEWEST_VERSION };

    /// Newest version that both sides support.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether a version is supported.
    pub fn contains(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

/// A worker and its model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Versions of the protocol that the worker supports.
    pub versions: Versions,
    /// Names of the model; the first is its id.
    pub names: Vec<String>,
    /// Fingerprint, equal for workers whose answers are equal to the bit.
    pub fingerprint: String,
    /// Maximum number of tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Context length of the model in tokens.
    pub context_tokens: u64,
    /// Size of the vocabulary; token ids are below it.
    pub vocabulary_size: u32,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// Sampling defaults for requests.
    #[serde(default)]
    pub defaults: GenerationDefaults,
    /// Variables of the chat template that a request does not set.
    #[serde(default)]
    pub chat_template_defaults: Map<String, Value>,
    /// Format of tool calls, if the operator set one.
    #[serde(default)]
    pub tool_call_parser: Option<String>,
    /// Format of reasoning, if the operator set one.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// Names of the adapters that requests may use.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Kind of the model's vectors, if it answers with vectors.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// Whether prompts may have parts that are not text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_media: bool,
    /// Region of the worker.
    #[serde(default)]
    pub region: Option<String>,
    /// Part of requests that the worker is meant for; absent: both. An older gateway sends it any request.
    #[serde(default, skip_serializing_if = "Role::is_both")]
    pub role: Role,
    /// Whether the worker takes no new requests, on any connection, because it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ending: bool,
    /// Notice to users about the model.
    #[serde(default)]
    pub notice: Option<String>,
    /// Artifacts of the model that a gateway needs.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
}

/// Kind of a model's vectors. A vector replaces the log-probabilities of an answer's only token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// Names of the labels, one for each number of a vector; without labels vectors are embeddings.
    #[serde(default)]
    pub labels: Option<Vec<String>>,
    /// Whether probabilities are those of exclusive labels; otherwise each label has a probability of its
    /// own.
    #[serde(default)]
    pub are_exclusive: bool,
    /// Whether logits are the scores themselves.
    #[serde(default)]
    pub are_logits: bool,
    /// Whether embeddings have length one.
    pub normalizes: bool,
    /// Number of token segments that the model distinguishes; a token of segment `s` has the id `token + s
    /// * segment_stride`.
    #[serde(default)]
    pub n_segments: u32,
    /// See [`Self::n_segments`].
    #[serde(default)]
    pub segment_stride: u32,
    /// Named prefixes for texts.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// Name of the default prefix, if there is one.
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
        assert_eq!(description.role, Role::Both, "an older worker tells none");
        let newer = text.replacen('{', r#"{"role": "a_new_role", "#, 1);
        let description: Description = serde_json::from_str(&newer).expect("known fields");
        assert_eq!(description.role, Role::Both);
        let prefill = Description { role: Role::Prefill, ..description };
        let line = serde_json::to_string(&prefill).expect("a line");
        assert!(line.contains(r#""role":"prefill""#), "{line}");
        assert_eq!(serde_json::from_str::<Description>(&line).expect("its own").role, Role::Prefill);
    }
}
