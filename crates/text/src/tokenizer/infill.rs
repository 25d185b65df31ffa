//! Fill-in-the-middle tokens of code models, from the ids in a GGUF file or by the names in model families.
//! Does not know requests.

use std::sync::atomic::AtomicBool;

use super::{EncodeOptions, Tokenizer};
use crate::error::TextError;

/// Names of the token before the text before the gap: in Qwen2.5-Coder and CodeGemma, StarCoder and
/// Granite, DeepSeek-Coder, CodeLlama, GLM, Codestral.
const BEFORE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim_prefix>",
    "<fim-prefix>",
    "<｜fim▁begin｜>",
    "▁<PRE>",
    "<PRE>",
    "<|code_prefix|>",
    "[PREFIX]",
];
/// Names of the token before the text after the gap.
const BEHIND: &[&str] = &[
    "<|fim_suffix|>",
    "<fim_suffix>",
    "<fim-suffix>",
    "<｜fim▁hole｜>",
    "▁<SUF>",
    "<SUF>",
    "<|code_suffix|>",
    "[SUFFIX]",
];
/// Names of the token before the gap's own text. Codestral has none.
const MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim_middle>",
    "<fim-middle>",
    "<｜fim▁end｜>",
    "▁<MID>",
    "<MID>",
    "<|code_middle|>",
    "[MIDDLE]",
];
/// Names of the token before a repository's name.
const REPOSITORY: &[&str] =
    &["<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<fim-repo>", "<REPO>"];
/// Names of the token before an additional file.
const FILE: &[&str] = &["<|file_sep|>", "<|file_separator|>", "<file_sep>"];
/// Names of tokens with which models end the gap's text.
const ENDS: &[&str] = &["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>", "▁<EOT>", "<EOT>"];
/// Name for an unknown repository.
const UNNAMED_REPOSITORY: &str = "repository\n";

/// Fill-in-the-middle tokens in a GGUF file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GgufInfillKeys {
    /// `tokenizer.ggml.fim_pre_token_id`, or the older `prefix_token_id`.
    pub before: Option<u32>,
    /// `tokenizer.ggml.fim_suf_token_id`, or the older `suffix_token_id`.
    pub behind: Option<u32>,
    /// `tokenizer.ggml.fim_mid_token_id`, or the older `middle_token_id`.
    pub middle: Option<u32>,
    /// `tokenizer.ggml.fim_rep_token_id`.
    pub repository: Option<u32>,
    /// `tokenizer.ggml.fim_sep_token_id`.
    pub file: Option<u32>,
    /// `tokenizer.ggml.fim_pad_token_id`.
    pub end: Option<u32>,
}

/// Fill-in-the-middle tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfillTokens {
    before: u32,
    behind: u32,
    middle: Option<u32>,
    repository: Option<u32>,
    file: Option<u32>,
    ends: Vec<u32>,
    /// Whether the text after the gap comes first, so that the gap's text directly follows the text before
    /// it.
    begins_behind: bool,
}

/// Texts around a gap, and additional files as context.
#[derive(Debug, Clone, Copy)]
pub struct InfillText<'a> {
    /// Text before the gap.
    pub before: &'a str,
    /// Text after the gap.
    pub behind: &'a str,
    /// Names and texts of additional files.
    pub files: &'a [(String, String)],
}

impl InfillTokens {
    /// Finds the tokens that a file names, or that `id_of` finds under a family's names; `None` for a model
    /// without fill-in-the-middle.
    pub(super) fn find(named: &GgufInfillKeys, id_of: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let by_name = |names: &[&str]| names.iter().find_map(|name| id_of(name));
        let file = named.file.or_else(|| by_name(FILE));
        let repository = named.repository.or_else(|| by_name(REPOSITORY));
        let ends = named.end.into_iter().chain(ENDS.iter().filter_map(|name| id_of(name)));
        let mut ends: Vec<u32> = ends.chain(file).chain(repository).collect();
        ends.sort_unstable();
        ends.dedup();
        Some(Self {
            before: named.before.or_else(|| by_name(BEFORE))?,
            behind: named.behind.or_else(|| by_name(BEHIND))?,
            middle: named.middle.or_else(|| by_name(MIDDLE)),
            repository,
            file,
            ends,
            begins_behind: id_of("[SUFFIX]").is_some(),
        })
        .filter(|tokens| tokens.middle.is_some() || tokens.begins_behind)
    }

    /// Tokens with which the model ends the gap's text, in addition to its other end tokens.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }
}

impl Tokenizer {
    /// Fill-in-the-middle tokens of the model; `None` if it has none.
    pub fn infill_tokens(&self) -> Option<&InfillTokens> {
        self.infill.as_ref()
    }

    /// Encodes the prompt with which the model fills a gap. No text becomes a control token.
    ///
    /// # Errors
    /// A text that is too long, or [`TextError::Stopped`].
    pub fn encode_infill_unless(
        &self,
        tokens: &InfillTokens,
        text: InfillText<'_>,
        add_special_tokens: bool,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, TextError> {
        let options = EncodeOptions { add_special_tokens: false, parse_special: false };
        let encode = |text: &str| match text {
            "" => Ok(Vec::new()),
            text => self.encode_unless(text, options, stop),
        };
        let mut prompt = if add_special_tokens { self.prefix.clone() } else { Vec::new() };
        if !text.files.is_empty() {
            if let (Some(repository), Some(_)) = (tokens.repository, tokens.file) {
                prompt.push(repository);
                prompt.extend(encode(UNNAMED_REPOSITORY)?);
            }
            for (name, content) in text.files {
                prompt.extend(tokens.file);
                prompt.extend(encode(&format!("{name}\n{content}\n"))?);
            }
            prompt.extend(tokens.file);
        }
        let (before, behind) = (encode(text.before)?, encode(text.behind)?);
        if tokens.begins_behind {
            prompt.extend([tokens.behind].into_iter().chain(behind));
            prompt.extend([tokens.before].into_iter().chain(before));
        } else {
            prompt.extend([tokens.before].into_iter().chain(before));
            prompt.extend([tokens.behind].into_iter().chain(behind).chain(tokens.middle));
        }
        Ok(prompt)
    }
}
