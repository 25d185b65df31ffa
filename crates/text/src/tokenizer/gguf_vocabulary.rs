//! The keys of a GGUF file about its vocabulary, unchanged. Does not interpret them.

use super::infill::GgufInfillKeys;

/// The `tokenizer.ggml.*` keys of a GGUF file, unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE), `bert` (WordPiece) or
    /// `t5` (unigram).
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer, for `gpt2`.
    pub pre: Option<String>,
    /// `general.name`: identifies Phi-3, whose control tokens strip the white space after them.
    pub model_name: Option<String>,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, for `llama`; empty where absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty
    /// where absent.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, for `gpt2`: two tokens joined by a space.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_token_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: the end of a turn.
    pub eot_token_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: the end of a message.
    pub eom_token_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown_token_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding_token_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos_token: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos_token: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// Keys of models for fill-in-the-middle.
    pub infill: GgufInfillKeys,
    /// Keys of encoders' metadata.
    pub encoder: GgufEncoderKeys,
}

/// The keys of a GGUF file that only encoders have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufEncoderKeys {
    /// `tokenizer.ggml.seperator_token_id` (with this spelling).
    pub separator_token_id: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`, in old files.
    pub cls_token_id: Option<u32>,
    /// `tokenizer.ggml.normalizer.lowercase`; true if absent.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`; if absent, the value of [`Self::lowercase`].
    pub strip_accents: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap` (SentencePiece).
    pub precompiled_charsmap: Vec<u8>,
}

/// `tokenizer.ggml.token_type` values.
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const BYTE: i32 = 6;
