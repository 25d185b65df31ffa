//! The vocabulary of a GGUF file, sent from a worker to its gateways. Does not interpret its keys.

use serde::{Deserialize, Serialize};
use throng_core::exact;
use throng_text::{GgufEncoderKeys, GgufInfillKeys, GgufVocabulary};

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

/// Keys of GGUF files of models for infilling.
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
    /// Whether the file has none of these keys.
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Keys of GGUF files of encoders.
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

impl From<GgufVocabulary> for Vocabulary {
    fn from(keys: GgufVocabulary) -> Self {
        let GgufVocabulary {
            model,
            pre,
            model_name,
            tokens,
            scores,
            token_types,
            merges,
            bos_token_id,
            eos_token_id,
            eot_token_id,
            eom_token_id,
            unknown_token_id,
            padding_token_id,
            add_bos_token,
            add_eos_token,
            add_space_prefix,
            infill,
            encoder,
        } = keys;
        Self {
            model,
            pre,
            model_name,
            tokens,
            scores,
            token_types,
            merges,
            bos_token_id,
            eos_token_id,
            eot_token_id,
            eom_token_id,
            unknown_token_id,
            padding_token_id,
            add_bos_token,
            add_eos_token,
            add_space_prefix,
            infill: infill.into(),
            encoder: encoder.into(),
        }
    }
}

impl From<Vocabulary> for GgufVocabulary {
    fn from(keys: Vocabulary) -> Self {
        let Vocabulary {
            model,
            pre,
            model_name,
            tokens,
            scores,
            token_types,
            merges,
            bos_token_id,
            eos_token_id,
            eot_token_id,
            eom_token_id,
            unknown_token_id,
            padding_token_id,
            add_bos_token,
            add_eos_token,
            add_space_prefix,
            infill,
            encoder,
        } = keys;
        Self {
            model,
            pre,
            model_name,
            tokens,
            scores,
            token_types,
            merges,
            bos_token_id,
            eos_token_id,
            eot_token_id,
            eom_token_id,
            unknown_token_id,
            padding_token_id,
            add_bos_token,
            add_eos_token,
            add_space_prefix,
            infill: infill.into(),
            encoder: encoder.into(),
        }
    }
}

impl From<GgufInfillKeys> for InfillKeys {
    fn from(keys: GgufInfillKeys) -> Self {
        let GgufInfillKeys { before, behind, middle, repository, file, end } = keys;
        Self { before, behind, middle, repository, file, end }
    }
}

impl From<InfillKeys> for GgufInfillKeys {
    fn from(keys: InfillKeys) -> Self {
        let InfillKeys { before, behind, middle, repository, file, end } = keys;
        Self { before, behind, middle, repository, file, end }
    }
}

impl From<GgufEncoderKeys> for EncoderKeys {
    fn from(keys: GgufEncoderKeys) -> Self {
        let GgufEncoderKeys {
            separator_token_id,
            cls_token_id,
            lowercase,
            strip_accents,
            remove_extra_whitespaces,
            precompiled_charsmap,
        } = keys;
        Self {
            separator_token_id,
            cls_token_id,
            lowercase,
            strip_accents,
            remove_extra_whitespaces,
            precompiled_charsmap,
        }
    }
}

impl From<EncoderKeys> for GgufEncoderKeys {
    fn from(keys: EncoderKeys) -> Self {
        let EncoderKeys {
            separator_token_id,
            cls_token_id,
            lowercase,
            strip_accents,
            remove_extra_whitespaces,
            precompiled_charsmap,
        } = keys;
        Self {
            separator_token_id,
            cls_token_id,
            lowercase,
            strip_accents,
            remove_extra_whitespaces,
            precompiled_charsmap,
        }
    }
}
