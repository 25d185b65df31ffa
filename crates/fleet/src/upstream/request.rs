//! The parts of a request for an upstream engine that the gateway must read, and the body sent to the
//! engine: the client's own, except for the model's name and the request for usage. Everything else passes
//! through as text. Does not know engines.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use throng_api::ApiError;
use throng_api::json::{MAX_MEMBERS, Node};
use throng_core::request::TenantId;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::{BlockHash, BlockKey};

use super::usage::UsageBounds;

/// Maximum bytes of `user`, as for models of this gateway.
const MAX_USER_BYTES: usize = 512;
/// Maximum number of choices.
const MAX_CHOICES: i64 = 128;
/// Estimated bytes of JSON for a token if the engine reports no usage.
const BYTES_PER_TOKEN: usize = 4;
/// Minimum bytes of JSON for a token, for the upper estimate of a prompt's tokens.
const MIN_BYTES_PER_TOKEN: u64 = 2;
/// Estimated number of tokens that a chat template adds.
const TEMPLATE_TOKENS: u64 = 64;
/// Assumed output tokens of a request without a limit, charged to the key's limits until the request ends.
const ASSUMED_MAX_TOKENS: u64 = 1_024;

/// Endpoint of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/chat/completions`.
    Chat,
    /// `/completions`.
    Completions,
    /// `/embeddings`.
    Embeddings,
    /// `/rerank`.
    Rerank,
    /// `/score`.
    Score,
    /// `/classify`.
    Classify,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
}

impl Endpoint {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
            Self::Rerank => "/rerank",
            Self::Score => "/score",
            Self::Classify => "/classify",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
        }
    }

    /// URLs at which an engine with this base address may have the endpoint, the likeliest first. Endpoints
    /// that OpenAI lacks are under `/v1`, beside it, or in both places.
    pub fn urls(self, base: &str) -> Vec<String> {
        let beside = base.strip_suffix("/v1").unwrap_or(base);
        let bases = match self {
            Self::Chat | Self::Completions | Self::Embeddings => [base, base],
            Self::Rerank | Self::Score => [base, beside],
            Self::Classify | Self::Tokenize | Self::Detokenize => [beside, base],
        };
        let n = if bases[0] == bases[1] { 1 } else { 2 };
        bases[..n].iter().map(|base| format!("{base}{}", self.path())).collect()
    }

    /// Whether the answer is generated.
    pub fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Whether the answer needs the model and not just its vocabulary.
    pub fn computes(self) -> bool {
        !matches!(self, Self::Tokenize | Self::Detokenize)
    }

    /// Name of the member with the prompt; `None` if there are several, so that the whole body counts.
    pub fn prompt(self) -> Option<&'static str> {
        match self {
            Self::Chat => Some("messages"),
            Self::Completions => Some("prompt"),
            _ => None,
        }
    }
}

/// The parsed body of a request.
#[derive(Debug)]
pub struct UpstreamRequest {
    /// Whether the answer is an event stream.
    pub is_streaming: bool,
    /// Whether the client requests usage in the stream.
    pub wants_usage: bool,
    /// Whether the client requests usage in each chunk.
    pub wants_chunk_usage: bool,
    /// Number of requested answers.
    pub n: u64,
    /// Output token limit of each answer, or the assumed one.
    pub max_tokens: u64,
    /// Bounds of the request's usage.
    bounds: UsageBounds,
    /// Value of `user`.
    pub user: Option<String>,
    /// Estimated number of prompt tokens.
    pub n_prompt_tokens: u64,
    n_prompt_bytes: u64,
    /// Members of the body other than `model`, each preceded by a comma.
    members: String,
    /// Range of the prompt's JSON in `members`.
    prompt: Range<usize>,
    /// Ranges in `members` of the members that limit the output, in order.
    output_bounds: Vec<Range<usize>>,
}

/// The model's name, the only member that is read first.
#[derive(Debug, Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
}

/// The model named in a body; `None` if the body is invalid, which a later complete read reports.
pub fn named_model(body: &[u8]) -> Option<Cow<'_, str>> {
    serde_json::from_slice::<Named<'_>>(body).ok()?.model
}

impl UpstreamRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// A 400 if it is not a JSON object, or if a member that the gateway reads is repeated or has a wrong
    /// type.
    pub fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, ApiError> {
        let mut read = Reading { generates: endpoint.generates(), ..Reading::default() };
        let mut members = String::with_capacity(body.len() + 64);
        let (mut prompt, mut text, mut output_bounds) = (0..0, None, Vec::new());
        Node::body(body)?.members(MAX_MEMBERS, |key, value| {
            if read.member(key, &value)? {
                return Ok(());
            }
            let (name, comma) = (serde_json::Value::from(key), members.len());
            let _ = write!(members, ",{name}:");
            let start = members.len();
            members.push_str(value.text());
            if matches!(key, "max_tokens" | "max_completion_tokens") {
                output_bounds.push(comma..members.len());
            }
            if endpoint == Endpoint::Tokenize && matches!(key, "prompt" | "content") {
                text = if text.is_none() {
                    Some((key == "prompt", start..members.len()))
                } else {
                    Some((false, 0..0))
                };
            }
            if endpoint.prompt() == Some(key) {
                value.put(&mut read.prompt, ())?;
                prompt = start..members.len();
            }
            Ok(())
        })?;
        if let Some((true, text)) = text {
            // llama.cpp has another name for the text, and treats a missing text as empty.
            let text = members[text].to_owned();
            let _ = write!(members, ",\"content\":{text}");
        }
        let is_streaming = read.stream.unwrap_or(false);
        if is_streaming {
            let options = read.stream_options.as_deref().unwrap_or_default();
            let _ = write!(members, ",\"stream_options\":{{\"include_usage\":true{options}}}");
        }
        let n_prompt_bytes = match (endpoint.prompt(), endpoint.computes()) {
            (Some(_), _) => prompt.len(),
            (None, true) => members.len(),
            (None, false) => 0,
        };
        let n = read.n.map_or(1, |n| n as u64);
        let n_prompt_tokens = n_prompt_bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let max_tokens = read.max_tokens.map(|n| n as u64);
        let bounds = UsageBounds {
            assumed_prompt_tokens: n_prompt_tokens,
            n_request_bytes: members.len() as u64,
            n_media: n_media(&members[prompt.clone()]),
            n_sequences: n.max(read.best_of),
            max_tokens,
        };
        let otherwise = if endpoint.generates() { ASSUMED_MAX_TOKENS } else { 0 };
        Ok(Self {
            is_streaming,
            wants_usage: read.wants_usage.unwrap_or(false),
            wants_chunk_usage: read.wants_chunk_usage,
            n,
            max_tokens: max_tokens.unwrap_or(otherwise),
            bounds,
            user: read.user,
            n_prompt_tokens,
            n_prompt_bytes: n_prompt_bytes as u64,
            members,
            prompt,
            output_bounds,
        })
    }

    /// The request without its output limit, so that its output ends with the model's context; `None` if it
    /// has no limit. The charge does not change.
    pub fn without_output_bound(&self) -> Option<Self> {
        if self.output_bounds.is_empty() {
            return None;
        }
        let (mut members, mut prompt) = (self.members.clone(), self.prompt.clone());
        for bound in self.output_bounds.iter().rev() {
            members.replace_range(bound.clone(), "");
            if bound.end <= prompt.start {
                prompt = prompt.start - bound.len()..prompt.end - bound.len();
            }
        }
        Some(Self { members, prompt, output_bounds: Vec::new(), user: self.user.clone(), ..*self })
    }

    /// Upper estimate of the prompt's tokens. A key's limits are charged with it, and the excess is
    /// returned later.
    pub fn most_prompt_tokens(&self) -> u64 {
        match self.n_prompt_bytes {
            0 => 0,
            n_bytes => n_bytes.div_ceil(MIN_BYTES_PER_TOKEN) + TEMPLATE_TOKENS,
        }
    }

    /// Bounds of the request's usage.
    pub fn usage_bounds(&self) -> UsageBounds {
        self.bounds
    }

    /// The body for an engine that knows the model by this name.
    pub fn body_for(&self, model: &str) -> Bytes {
        format!("{{\"model\":{}{}}}", serde_json::Value::from(model), self.members).into()
    }

    /// Hashes of the prompt's prefixes, one for each 64 bytes. The gateway infers an engine's prefix cache
    /// from the prompts sent to it.
    pub fn blocks(&self, tenant: &TenantId) -> Vec<BlockKey> {
        let (mut name, mut names) = (BlockHash::root(tenant, None, None), Vec::new());
        let bytes = &self.members.as_bytes()[self.prompt.clone()];
        for block in bytes.chunks_exact(BLOCK_TOKENS * BYTES_PER_TOKEN) {
            let mut tokens = [0; BLOCK_TOKENS];
            for (token, bytes) in tokens.iter_mut().zip(block.chunks_exact(BYTES_PER_TOKEN)) {
                *token = bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
            }
            name = name.child(&tokens);
            names.push(name.key());
        }
        names
    }
}

/// Upper estimate of the number of images, sounds and files in a prompt.
fn n_media(prompt: &str) -> u64 {
    if !prompt.contains("\"type\"") {
        return 0;
    }
    let marks = ["\"image", "\"input_", "\"audio", "\"video", "\"file"];
    marks.iter().map(|mark| prompt.matches(mark).count() as u64).sum()
}

/// State of reading the members.
#[derive(Debug, Default)]
struct Reading {
    /// Whether generation parameters are read.
    generates: bool,
    model: Option<()>,
    prompt: Option<()>,
    stream: Option<bool>,
    wants_usage: Option<bool>,
    wants_chunk_usage: bool,
    /// Members of `stream_options` other than usage, each preceded by a comma.
    stream_options: Option<String>,
    n: Option<i64>,
    /// Number of answers that the engine generates to choose from; 0 if not given.
    best_of: u64,
    max_tokens: Option<i64>,
    user: Option<String>,
}

impl Reading {
    /// Reads a member. Returns whether it is replaced in the body for the engine.
    fn member(&mut self, key: &str, value: &Node<'_, '_>) -> Result<bool, ApiError> {
        match key {
            "model" => value.put(&mut self.model, ())?,
            "user" if !value.is_null() => {
                value.put(&mut self.user, value.string(MAX_USER_BYTES)?.into_owned())?;
            }
            _ if !self.generates => {}
            "stream" if value.is_null() => value.put(&mut self.stream, false)?,
            "stream" => value.put(&mut self.stream, value.boolean()?)?,
            "stream_options" => self.options(value)?,
            "n" if !value.is_null() => value.put(&mut self.n, value.integer(1, MAX_CHOICES)?)?,
            // The engine checks the value itself.
            "best_of" => self.best_of = value.integer(1, MAX_CHOICES).map_or(self.best_of, |n| n as u64),
            "max_tokens" | "max_completion_tokens" if !value.is_null() => {
                let asked = value.integer(0, i64::from(u32::MAX))?;
                // Engines differ in which of the two counts; the larger one is charged.
                self.max_tokens = self.max_tokens.max(Some(asked));
            }
            _ => {}
        }
        Ok(key == "model" || self.generates && key == "stream_options")
    }

    fn options(&mut self, value: &Node<'_, '_>) -> Result<(), ApiError> {
        let mut others = String::new();
        if !value.is_null() {
            value.members(MAX_MEMBERS, |key, option| {
                if key == "include_usage" {
                    return option.put(&mut self.wants_usage, option.boolean()?);
                }
                self.wants_chunk_usage |= key == "continuous_usage_stats" && option.text() == "true";
                let _ = write!(others, ",{}:{}", serde_json::Value::from(key), option.text());
                Ok(())
            })?;
        }
        value.put(&mut self.stream_options, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<UpstreamRequest, String> {
        let read = UpstreamRequest::read(Endpoint::Chat, body.as_bytes());
        read.map_err(|error| format!("{} {}", error.code(), error.param().unwrap_or_default()))
    }

    #[test]
    fn only_the_model_and_the_wish_for_usage_are_written_anew() {
        let body = r#"{"messages": [ {"role":"user", "content":"\u00e9 1.50"} ],"model":"here","x":1.0e2,"n":2, "user": "u"}"#;
        let request = read(body).expect("valid");
        assert_eq!(
            request.body_for("org/\"there\""),
            r#"{"model":"org/\"there\"","messages":[ {"role":"user", "content":"\u00e9 1.50"} ],"x":1.0e2,"n":2,"user":"u"}"#
        );
        assert_eq!((request.n, request.max_tokens, request.user.as_deref()), (2, 1_024, Some("u")));
        let streamed = r#"{"model":"m","stream":true,"max_tokens":3,"max_completion_tokens":5,"stream_options":{"continuous_usage_stats":true,"include_usage":false}}"#;
        let request = read(streamed).expect("valid");
        assert_eq!(
            request.body_for("m"),
            r#"{"model":"m","stream":true,"max_tokens":3,"max_completion_tokens":5,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#
        );
        assert!(request.is_streaming && !request.wants_usage && request.max_tokens == 5);
        let plain = read(r#"{"model":"m","stream":null,"messages":[]}"#).expect("valid");
        assert_eq!(plain.body_for("m"), r#"{"model":"m","stream":null,"messages":[]}"#);
    }

    #[test]
    fn a_request_without_its_bound_is_the_same_otherwise() {
        let text = "x".repeat(200);
        let body = format!(
            r#"{{"max_tokens":9,"model":"m","messages":["{text}"],"max_completion_tokens":9,"stream":true}}"#
        );
        let bounded = read(&body).expect("valid");
        let free = bounded.without_output_bound().expect("it is bounded");
        let expected = format!(
            r#"{{"model":"m","messages":["{text}"],"stream":true,"stream_options":{{"include_usage":true}}}}"#
        );
        assert_eq!(free.body_for("m"), expected);
        let tenant = TenantId::default();
        assert_eq!((free.blocks(&tenant), free.max_tokens), (bounded.blocks(&tenant), 9));
        assert!(free.without_output_bound().is_none());
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for (body, told) in [
            (r#"{"model":"a","model":"b"}"#, "duplicate_key model"),
            (r#"{"model":"a","messages":[],"messages":[]}"#, "duplicate_key messages"),
            (r#"{"stream":true,"stream":false}"#, "duplicate_key stream"),
            (r#"{"stream":1}"#, "invalid_type stream"),
            (r#"{"n":0}"#, "integer_below_min_value n"),
            (r#"{"stream_options":{"include_usage":"x"}}"#, "invalid_type stream_options.include_usage"),
            ("[]", "invalid_type "),
            ("{", "invalid_json "),
        ] {
            assert_eq!(read(body).expect_err(told), told, "{body}");
        }
    }

    #[test]
    fn other_endpoints_are_passed_on_whole() {
        let body =
            r#"{"model":"m","query":"q","documents":["a","b"],"stream":true,"top_n":1,"max_tokens":9}"#;
        let request = UpstreamRequest::read(Endpoint::Rerank, body.as_bytes()).expect("valid");
        assert_eq!(request.body_for("m"), body);
        assert!(!request.is_streaming && request.max_tokens == 0 && request.n_prompt_tokens > 4);
        let request = UpstreamRequest::read(Endpoint::Tokenize, br#"{"prompt":"text"}"#).expect("valid");
        assert_eq!(
            (request.body_for("m"), request.most_prompt_tokens()),
            (r#"{"model":"m","prompt":"text","content":"text"}"#.into(), 0)
        );
        assert_eq!(Endpoint::Tokenize.urls("http://h/v1"), ["http://h/tokenize", "http://h/v1/tokenize"]);
        assert_eq!(Endpoint::Rerank.urls("http://h/x"), ["http://h/x/rerank"]);
    }

    #[test]
    fn a_longer_conversation_begins_with_the_same_blocks() {
        let tenant = TenantId("t".into());
        let content = "a long question ".repeat(20);
        let first =
            read(&format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}]}}"#)).expect("valid");
        let second = format!(
            r#"{{"messages":[{{"role":"user","content":"{content}"}},{{"role":"assistant","content":"yes"}}],"n":1}}"#
        );
        let second = read(&second).expect("valid");
        let (first_blocks, second_blocks) = (first.blocks(&tenant), second.blocks(&tenant));
        assert!(first_blocks.len() >= 5 && second_blocks.starts_with(&first_blocks[..5]));
        assert_ne!(first_blocks[0], first.blocks(&TenantId("other".into()))[0]);
    }
}
