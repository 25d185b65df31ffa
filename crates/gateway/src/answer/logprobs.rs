//! Log-probabilities on the wire, in the forms of chat completions, of text completions, and of prompts. Refuses
//! to know sampling.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::SerializeMap;
use throng_core::batch::TokenLogprob;
use throng_core::request::TokenId;
use throng_engine::TokenReport;

use super::Envelope;

/// JSON has no infinity: an impossible token is told as this, as vLLM does.
const LOWEST: f32 = -9999.0;

/// `logprobs` of a chat choice.
#[derive(Debug, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<ChatTop>,
}

#[derive(Debug, Serialize)]
struct ChatTop {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// `logprobs` of a text choice.
#[derive(Debug, Default, Serialize)]
pub(super) struct TextLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<TopMap>>,
}

/// Tokens to log-probabilities, most likely first.
#[derive(Debug)]
struct TopMap(Vec<(String, f32)>);

impl Serialize for TopMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// What vLLM says of one token of a prompt: its id and the most likely ones', each with rank and text.
#[derive(Debug)]
pub(super) struct PromptToken(Vec<(TokenId, PromptTokenFields)>);

#[derive(Debug, Serialize)]
struct PromptTokenFields {
    logprob: f32,
    rank: u32,
    decoded_token: Option<String>,
}

impl Serialize for PromptToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, fields) in &self.0 {
            map.serialize_entry(token, fields)?;
        }
        map.end()
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST)
}

impl Envelope {
    /// `logprobs` of chat tokens; `None` unless asked for.
    pub(super) fn chat_logprobs<'t>(
        &self,
        tokens: impl IntoIterator<Item = &'t TokenReport>,
    ) -> Option<ChatLogprobs> {
        let n_top = self.n_top?;
        let top = |t: &TokenLogprob| ChatTop {
            token: self.token_name(t.token),
            logprob: finite(t.logprob),
            bytes: self.token_bytes(t.token).into_owned(),
        };
        let token = |report: &TokenReport| ChatToken {
            token: self.token_name(report.chosen.token),
            logprob: finite(report.chosen.logprob),
            bytes: self.token_bytes(report.chosen.token).into_owned(),
            top_logprobs: report.top.iter().take(n_top).map(top).collect(),
        };
        Some(ChatLogprobs { content: tokens.into_iter().map(token).collect(), refusal: None })
    }

    /// An empty `logprobs` of a text choice; `None` unless asked for.
    pub(super) fn text_logprobs(&self) -> Option<TextLogprobs> {
        self.n_top.map(|_| TextLogprobs::default())
    }

    /// Adds a token that begins at byte `offset` of the choice's text. A prompt's first token has no report.
    pub(super) fn push_text_token(
        &self,
        logprobs: &mut TextLogprobs,
        offset: usize,
        token: TokenId,
        report: Option<&TokenReport>,
    ) {
        let entry = |t: &TokenLogprob| (self.token_name(t.token), finite(t.logprob));
        let top = |report: &TokenReport| {
            let mut top: Vec<_> = report.top.iter().take(self.n_top.unwrap_or(0)).map(entry).collect();
            let chosen = entry(&report.chosen);
            if !top.iter().any(|(name, _)| *name == chosen.0) {
                top.push(chosen);
            }
            TopMap(top)
        };
        logprobs.text_offset.push(offset);
        logprobs.tokens.push(self.token_name(token));
        logprobs.token_logprobs.push(report.map(|report| finite(report.chosen.logprob)));
        logprobs.top_logprobs.push(report.map(top));
    }

    /// `prompt_logprobs`: null for the first token, then one entry a token; `None` unless there are reports.
    pub(super) fn prompt_logprobs(&self, reports: &[TokenReport]) -> Option<Vec<Option<PromptToken>>> {
        let n_top = self.n_prompt_top?;
        let fields = |t: &TokenLogprob| {
            let decoded_token = self.tokenizer.as_ref().map(|tokenizer| tokenizer.token_text(t.token));
            (t.token, PromptTokenFields { logprob: finite(t.logprob), rank: t.rank, decoded_token })
        };
        let entry = |report: &TokenReport| {
            let others = report.top.iter().take(n_top).filter(|t| t.token != report.chosen.token);
            Some(PromptToken(std::iter::once(&report.chosen).chain(others).map(fields).collect()))
        };
        Some(std::iter::once(None).chain(reports.iter().map(entry)).collect())
    }

    pub(super) fn token_name(&self, token: TokenId) -> String {
        match &self.tokenizer {
            Some(tokenizer) if !self.names_tokens_by_id => tokenizer.token_text(token),
            _ => format!("token_id:{token}"),
        }
    }

    fn token_bytes(&self, token: TokenId) -> Cow<'_, [u8]> {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(token));
        Cow::Borrowed(bytes.unwrap_or_default())
    }
}
