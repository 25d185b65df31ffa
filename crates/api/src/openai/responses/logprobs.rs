//! Log-probabilities in the forms of chat (OpenAI), text completions (OpenAI's older form) and prompts
//! (vLLM's). Serializes the engine's reports without a copy. Does not know tokenizers: the bytes of a token
//! come from a closure.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use throng_core::request::TokenId;
use throng_core::scheduling::batch::TokenLogprob;

use throng_core::fleet::replica::TokenReport;

use crate::answer::LogprobBytes;

/// Log-probability of an impossible token, as in vLLM: JSON has no infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// Text form of tokens.
#[derive(Clone, Copy)]
pub struct TokenSpelling<'a> {
    /// Function that returns the bytes of a token's text; `None` without a tokenizer or a text.
    pub bytes_of: &'a dyn Fn(TokenId) -> Option<&'a [u8]>,
    /// Whether tokens are written as `token_id:ID` instead of their text.
    pub as_token_ids: bool,
}

impl fmt::Debug for TokenSpelling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSpelling").field("as_token_ids", &self.as_token_ids).finish_non_exhaustive()
    }
}

impl<'a> TokenSpelling<'a> {
    /// The name of a token: its text, with U+FFFD for bytes that are not UTF-8 by themselves.
    fn name(&self, token: TokenId) -> Cow<'a, str> {
        match (self.bytes_of)(token) {
            Some(bytes) if !self.as_token_ids => String::from_utf8_lossy(bytes),
            _ => Cow::Owned(format!("token_id:{token}")),
        }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(MIN_LOGPROB)
}

/// `choices[].logprobs` of chat: the tokens of a whole answer or of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct ChatLogprobs<'a> {
    /// Reports of the tokens, in order.
    pub reports: &'a [TokenReport],
    /// Text form of the tokens.
    pub spelling: TokenSpelling<'a>,
}

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("ChatLogprobs", 2)?;
        object.serialize_field("content", &ChatTokens(self))?;
        object.serialize_field("refusal", &None::<()>)?;
        object.end()
    }
}

struct ChatTokens<'s, 'a>(&'s ChatLogprobs<'a>);

impl Serialize for ChatTokens<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spelling = self.0.spelling;
        serializer.collect_seq(self.0.reports.iter().map(|report| ChatToken {
            token: report.chosen,
            top: Some(&report.top),
            spelling,
        }))
    }
}

struct ChatToken<'a> {
    token: TokenLogprob,
    top: Option<&'a [TokenLogprob]>,
    spelling: TokenSpelling<'a>,
}

impl Serialize for ChatToken<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("ChatToken", 4)?;
        object.serialize_field("token", &self.spelling.name(self.token.token))?;
        object.serialize_field("logprob", &finite(self.token.logprob))?;
        object.serialize_field("bytes", &(self.spelling.bytes_of)(self.token.token))?;
        if let Some(top) = self.top {
            object.serialize_field("top_logprobs", &ChatAlternatives { top, spelling: self.spelling })?;
        }
        object.end()
    }
}

struct ChatAlternatives<'a> {
    top: &'a [TokenLogprob],
    spelling: TokenSpelling<'a>,
}

impl Serialize for ChatAlternatives<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spelling = self.spelling;
        serializer.collect_seq(self.top.iter().map(|token| ChatToken { token: *token, top: None, spelling }))
    }
}

/// A token of a text completion's `logprobs`.
#[derive(Debug, Clone, Copy)]
pub struct CompletionToken<'a> {
    /// Id of the token.
    pub token: TokenId,
    /// Report; `None` for the first token of an echoed prompt, which has no log-probability.
    pub report: Option<&'a TokenReport>,
    /// Offset in characters of the token's text in the answer's text.
    pub text_offset: usize,
}

/// `choices[].logprobs` of text completions: four lists of equal length.
#[derive(Debug, Clone)]
pub struct CompletionLogprobs<'a> {
    /// Tokens of the prompt if the answer echoes it, in order. All choices of a prompt share them.
    pub echoed: &'a [CompletionToken<'a>],
    /// Tokens of the answer, in order.
    pub tokens: Vec<CompletionToken<'a>>,
    /// Text form of the tokens.
    pub spelling: TokenSpelling<'a>,
}

impl Serialize for CompletionLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spelling = self.spelling;
        let name = |t: &CompletionToken<'_>| spelling.name(t.token).into_owned();
        let logprob = |t: &CompletionToken<'_>| t.report.map(|report| finite(report.chosen.logprob));
        let mut object = serializer.serialize_struct("CompletionLogprobs", 4)?;
        object.serialize_field("tokens", &OfEach(self, name))?;
        object.serialize_field("token_logprobs", &OfEach(self, logprob))?;
        object.serialize_field("top_logprobs", &Alternatives(self))?;
        object.serialize_field("text_offset", &OfEach(self, |t: &CompletionToken<'_>| t.text_offset))?;
        object.end()
    }
}

impl<'a> CompletionLogprobs<'a> {
    fn all(&self) -> impl Iterator<Item = &CompletionToken<'a>> {
        self.echoed.iter().chain(&self.tokens)
    }
}

/// A list with an element for each token, serialized without a copy.
struct OfEach<'s, 'a, F>(&'s CompletionLogprobs<'a>, F);

impl<T: Serialize, F: Fn(&CompletionToken<'_>) -> T> Serialize for OfEach<'_, '_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.all().map(&self.1))
    }
}

struct Alternatives<'s, 'a>(&'s CompletionLogprobs<'a>);

impl Serialize for Alternatives<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spelling = self.0.spelling;
        serializer.collect_seq(
            self.0.all().map(|t| t.report.map(|report| CompletionAlternatives { report, spelling })),
        )
    }
}

/// The most likely tokens by name, always including the chosen one. Of tokens with the same name only the
/// likeliest is written: a JSON object has each key once.
struct CompletionAlternatives<'a> {
    report: &'a TokenReport,
    spelling: TokenSpelling<'a>,
}

impl Serialize for CompletionAlternatives<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut names = HashSet::new();
        let mut map = serializer.serialize_map(None)?;
        for token in self.report.top.iter().chain([&self.report.chosen]) {
            let name = self.spelling.name(token.token);
            if !names.contains(&name) {
                map.serialize_entry(&name, &finite(token.logprob))?;
                names.insert(name);
            }
        }
        map.end()
    }
}

/// Bytes of a token in `prompt_logprobs`.
pub const PROMPT_LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 72, alternative: 72 };

/// `prompt_logprobs` in vLLM's form: null for the first token, then a map of token ids for each.
#[derive(Debug, Clone, Copy)]
pub struct PromptLogprobs<'a> {
    /// Reports of all the prompt's tokens except the first.
    pub reports: &'a [TokenReport],
    /// Text form of the tokens.
    pub spelling: TokenSpelling<'a>,
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.reports.len() + 1))?;
        list.serialize_element(&None::<()>)?;
        for report in self.reports {
            list.serialize_element(&PromptPosition { report, spelling: self.spelling })?;
        }
        list.end()
    }
}

struct PromptPosition<'a> {
    report: &'a TokenReport,
    spelling: TokenSpelling<'a>,
}

#[derive(Serialize)]
struct PromptToken<'a> {
    logprob: f32,
    rank: u32,
    decoded_token: Cow<'a, str>,
}

impl Serialize for PromptPosition<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let chosen = &self.report.chosen;
        let others = self.report.top.iter().filter(|token| token.token != chosen.token);
        let mut map = serializer.serialize_map(None)?;
        for token in std::iter::once(chosen).chain(others) {
            let value = PromptToken {
                logprob: finite(token.logprob),
                rank: token.rank,
                decoded_token: self.spelling.name(token.token),
            };
            map.serialize_entry(&token.token, &value)?;
        }
        map.end()
    }
}
