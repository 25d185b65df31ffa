//! One request at an OpenAI-compatible server: its body, and the stream of its answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::TokenClock;
use throng_sim::workload::SimRequest;
use throng_wire::LineBuffer;

use super::address::{first_model, server_root};
use super::text::Texts;

/// Timeout for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Endpoint that the requests use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// `/v1/chat/completions`.
    #[default]
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
}

/// Server and model that the requests go to.
#[derive(Debug, Clone)]
pub struct Target {
    /// The base address, with `/v1` or without.
    pub url: String,
    /// The model; the server's first one when absent.
    pub model: Option<String>,
    /// API key of the server, if it needs one.
    pub api_key: Option<String>,
    /// Endpoint that the requests use.
    pub api: Api,
    /// Asks the server to continue after the model's end tokens, so that outputs have their full length.
    pub ignore_eos: bool,
    /// Longest time of a request.
    pub timeout: Duration,
}

/// Client of one server. Clones share its connections.
#[derive(Debug, Clone)]
pub struct LoadClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    target: Target,
    model: String,
    base: String,
}

/// Answer as the client saw it.
#[derive(Debug)]
pub struct Answered {
    /// Times of the answer's tokens.
    pub clock: TokenClock,
    /// Gaps between its tokens.
    pub gaps: Vec<Nanos>,
    /// Time of its end.
    pub end: Timestamp,
    /// Text of the answer.
    pub text: String,
    /// Number of tokens of the prompt, as the server counts them.
    pub n_prompt: Option<u64>,
    /// Number of tokens of the output, as the server counts them.
    pub n_output: Option<u64>,
    /// Kind of the error, if it is not whole.
    pub error: Option<String>,
}

impl LoadClient {
    /// Connects to a server and finds its model.
    ///
    /// # Errors
    /// When the address is none or the server does not answer.
    pub async fn connect(target: Target) -> Result<Self> {
        let base = format!("{}/v1", server_root(&target.url));
        base.parse::<Uri>().with_context(|| format!("{} is not a URL", target.url))?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = HttpsConnectorBuilder::new().with_native_roots().context("no certificates to trust")?;
        let connector = tls.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let mut this = Self { client, model: String::new(), base, target };
        this.model = match this.target.model.clone() {
            Some(model) => model,
            None => this.first_model().await?,
        };
        Ok(this)
    }

    /// Name of the requested model.
    pub fn model(&self) -> &str {
        &self.model
    }

    async fn first_model(&self) -> Result<String> {
        let request = self.request(Method::GET, "models", Bytes::new())?;
        let sent = tokio::time::timeout(CONNECT_TIMEOUT, self.client.request(request)).await;
        let response = sent.context("the server does not answer")??;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status != StatusCode::OK {
            bail!("the server answered {status} when asked for its models; name one with --model");
        }
        let list: Value = serde_json::from_slice(&body).context("the list of models is no JSON")?;
        first_model(&list)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(format!("{}/{path}", self.base));
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.target.api_key {
            let value =
                HeaderValue::from_str(&format!("Bearer {key}")).context("the API key is no header")?;
            request = request.header(header::AUTHORIZATION, value);
        }
        Ok(request.body(Full::new(body))?)
    }

    /// Path and body of a request.
    pub fn body(&self, request: &SimRequest, texts: &Texts) -> (&'static str, Bytes) {
        let mut body = match self.target.api {
            Api::Chat => json!({"model": self.model, "messages": texts.messages(request)}),
            Api::Completions => json!({"model": self.model, "prompt": texts.prompt(request)}),
            Api::Embeddings => json!({"model": self.model, "input": texts.prompt(request)}),
        };
        let path = match self.target.api {
            Api::Chat => "chat/completions",
            Api::Completions => "completions",
            Api::Embeddings => "embeddings",
        };
        if self.target.api != Api::Embeddings {
            body["max_tokens"] = request.output.n_tokens.into();
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
            body["temperature"] = 0.into();
            if self.target.ignore_eos {
                body["ignore_eos"] = true.into();
            }
        }
        (path, Bytes::from(body.to_string()))
    }

    /// Sends a request that is due at `due` after `origin`, and reads its answer.
    pub async fn send(&self, path: &str, body: Bytes, origin: Instant, due: Timestamp) -> Answered {
        let mut answer = Answered {
            clock: TokenClock::new(due),
            gaps: Vec::new(),
            end: due,
            text: String::new(),
            n_prompt: None,
            n_output: None,
            error: None,
        };
        let read = self.read(path, body, origin, &mut answer);
        if tokio::time::timeout(self.target.timeout, read).await.is_err() {
            answer.error = Some("timeout".to_owned());
        }
        answer.end = now(origin);
        answer
    }

    async fn read(&self, path: &str, body: Bytes, origin: Instant, answer: &mut Answered) {
        let request = match self.request(Method::POST, path, body) {
            Ok(request) => request,
            Err(_) => return answer.error = Some("request".to_owned()),
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let kind = if error.is_connect() { "connect" } else { "connection" };
                return answer.error = Some(kind.to_owned());
            }
        };
        let status = response.status();
        if !status.is_success() {
            answer.error = Some(format!("http_{}", status.as_u16()));
            let _ = response.into_body().collect().await;
            return;
        }
        let read = match self.target.api {
            Api::Embeddings => read_whole(response.into_body(), answer).await,
            Api::Chat | Api::Completions => read_stream(response.into_body(), origin, answer).await,
        };
        if let Err(kind) = read {
            answer.error = Some(kind.to_owned());
        }
    }
}

/// Time since the start of the measurement.
pub fn now(origin: Instant) -> Timestamp {
    Timestamp::default() + Nanos::from(origin.elapsed())
}

async fn read_whole(body: Incoming, answer: &mut Answered) -> Result<(), &'static str> {
    let bytes = body.collect().await.map_err(|_| "cut")?.to_bytes();
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| "not_json")?;
    answer.n_prompt = value["usage"]["prompt_tokens"].as_u64();
    if value["data"].as_array().is_none_or(Vec::is_empty) { Err("empty") } else { Ok(()) }
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPart {
    /// An event before the last one with a choice.
    Answer,
    /// The last event with a choice: it contains the finish reason.
    FinishReason,
    /// `[DONE]`.
    Done,
}

/// Reads server-sent events. Each event with text counts as a token.
async fn read_stream(mut body: Incoming, origin: Instant, answer: &mut Answered) -> Result<(), &'static str> {
    let (mut lines, mut has_finished) = (LineBuffer::default(), false);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| "cut")?.into_data() else { continue };
        let at = now(origin);
        lines.push(&data).map_err(|_| "line_too_long")?;
        while let Some(line) = lines.next_line() {
            match read_line(line, at, answer)? {
                StreamPart::Answer => {}
                StreamPart::FinishReason => has_finished = true,
                StreamPart::Done => return Ok(()),
            }
        }
    }
    // Some servers close the stream without `[DONE]`.
    if has_finished { Ok(()) } else { Err("cut") }
}

/// Parses a line of a stream.
fn read_line(line: &[u8], at: Timestamp, answer: &mut Answered) -> Result<StreamPart, &'static str> {
    let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
        return Ok(StreamPart::Answer);
    };
    if data == b"[DONE]" {
        return Ok(StreamPart::Done);
    }
    let event: Value = serde_json::from_slice(data).map_err(|_| "not_json")?;
    if !event["error"].is_null() {
        return Err("stream_error");
    }
    let usage = &event["usage"];
    answer.n_prompt = usage["prompt_tokens"].as_u64().or(answer.n_prompt);
    answer.n_output = usage["completion_tokens"].as_u64().or(answer.n_output);
    let choice = &event["choices"][0];
    let delta = &choice["delta"];
    let parts = [&delta["content"], &delta["reasoning_content"], &delta["reasoning"], &choice["text"]];
    let text = parts.iter().find_map(|part| part.as_str().filter(|text| !text.is_empty()));
    if let Some(text) = text {
        answer.gaps.extend(answer.clock.note(at));
        answer.text += text;
    }
    let has_finished = choice["finish_reason"].is_string();
    Ok(if has_finished { StreamPart::FinishReason } else { StreamPart::Answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answered {
        Answered {
            clock: TokenClock::new(Timestamp::default()),
            gaps: Vec::new(),
            end: Timestamp::default(),
            text: String::new(),
            n_prompt: None,
            n_output: None,
            error: None,
        }
    }

    #[test]
    fn events_with_text_are_tokens() {
        let mut answer = answer();
        let at = |ms| Timestamp::default() + Nanos::from_ms(ms);
        for (ms, line) in [
            (5, r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#),
            (10, r#"data: {"choices":[{"delta":{"content":"Hel"}}]}"#),
            (11, ": ping"),
            (30, r#"data: {"choices":[{"text":"lo"}]}"#),
            (31, r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#),
        ] {
            assert_eq!(read_line(line.as_bytes(), at(ms), &mut answer), Ok(StreamPart::Answer), "{line}");
        }
        let end = br#"data: {"choices":[{"delta":{},"finish_reason":"length"}]}"#;
        assert_eq!(read_line(end, at(35), &mut answer), Ok(StreamPart::FinishReason));
        assert_eq!(read_line(b"data: [DONE]", at(40), &mut answer), Ok(StreamPart::Done));
        assert_eq!((answer.text.as_str(), answer.gaps), ("Hello", vec![Nanos::from_ms(20)]));
        assert_eq!((answer.n_prompt, answer.n_output), (Some(7), Some(2)));
        let latency = answer.clock.end(at(40), true);
        assert_eq!(latency.first_token, Some(Nanos::from_ms(10)));
    }

    #[test]
    fn errors_within_a_stream_have_a_kind() {
        assert_eq!(read_line(b"data: {", Timestamp::default(), &mut answer()), Err("not_json"));
        let error = br#"data: {"error":{"message":"overloaded"}}"#;
        assert_eq!(read_line(error, Timestamp::default(), &mut answer()), Err("stream_error"));
    }
}
