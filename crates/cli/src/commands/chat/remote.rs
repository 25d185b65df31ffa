//! A chat over HTTP with a server that has OpenAI's API, in blocking calls. Does not know the terminal.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Response;

use super::answer::{Answer, ContextFull};
use crate::args::SamplingArgs;
use crate::load::{first_model, server_root};

/// Timeout for a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the list of models of a server that may or may not run.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a response that is not streamed: a list of models, an error.
const MAX_BODY_BYTES: u64 = 1 << 20;
/// Maximum bytes of one event of a stream.
const MAX_EVENT_BYTES: u64 = 1 << 20;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Text(String),
    /// Text of the model's reasoning.
    Reasoning(String),
}

/// A server with the model to chat with.
pub struct Server {
    agent: Agent,
    /// Base URL, which ends with `/v1`.
    base: String,
    key: Option<String>,
    model: String,
    context: Option<u64>,
}

impl Server {
    /// Asks the server at `url`, with or without `/v1`, for its models. Takes the first one if `model` is
    /// `None`.
    ///
    /// # Errors
    /// When it cannot be reached or refuses.
    pub fn find(url: &str, key: Option<&str>, model: Option<&str>) -> Result<Self> {
        let base = format!("{}/v1", server_root(url));
        let agent = agent();
        let mut server =
            Self { agent, base, key: key.map(str::to_owned), model: String::new(), context: None };
        server.model = match model {
            Some(model) => model.to_owned(),
            None => {
                let list = server.models()?;
                server.context = list["data"][0]["max_model_len"].as_u64();
                first_model(&list)?
            }
        };
        Ok(server)
    }

    /// The server at `url`, if it is reachable and has `model`, or any model if that is `None`.
    pub fn having(url: &str, key: Option<&str>, model: Option<&str>) -> Option<Self> {
        let config = Agent::config_builder().http_status_as_error(false);
        let probe = config.timeout_global(Some(PROBE_TIMEOUT)).build().new_agent();
        let base = format!("{}/v1", server_root(url));
        let text = get_with(&probe, &format!("{base}/models"), key).ok()?;
        let list: Value = serde_json::from_str(&text).ok()?;
        let is_wanted =
            |card: &&Value| card["id"].as_str().is_some_and(|id| model.is_none_or(|model| model == id));
        let card = list["data"].as_array()?.iter().find(is_wanted)?;
        let context = card["max_model_len"].as_u64();
        let model = card["id"].as_str()?.to_owned();
        Some(Self { agent: agent(), base, key: key.map(str::to_owned), model, context })
    }

    /// Context length of the model in tokens, if the server reports it.
    pub fn context(&self) -> Option<u64> {
        self.context
    }

    /// The server's address, with `/v1`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    fn models(&self) -> Result<Value> {
        let text = get_with(&self.agent, &format!("{}/models", self.base), self.key.as_deref())?;
        serde_json::from_str(&text).context("the server's list of models is no JSON")
    }

    /// Answers a conversation and passes it to `on_piece`, which returns false to stop; see
    /// [`super::answering::Answering::answer`].
    ///
    /// # Errors
    /// [`ContextFull`], or the error of the server or the connection.
    pub fn answer(
        &self,
        messages: &[Value],
        sampling: &SamplingArgs,
        on_piece: impl FnMut(Piece) -> bool,
    ) -> Result<Answer> {
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "max_tokens": sampling.max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(temperature) = sampling.temperature {
            body["temperature"] = temperature.into();
        }
        if let Some(top_p) = sampling.top_p {
            body["top_p"] = top_p.into();
        }
        if let Some(seed) = sampling.seed {
            body["seed"] = seed.into();
        }
        let mut request = self.agent.post(format!("{}/chat/completions", self.base));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.header("content-type", "application/json").send(body.to_string());
        let stream = accepted(response.with_context(|| format!("cannot reach {}", self.base))?)?;
        read_stream(BufReader::new(stream), sampling.max_tokens as usize, on_piece)
    }
}

/// The body of the server's response to a GET of `path`; `url` may end with `/v1` or not.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub fn get(url: &str, path: &str, key: Option<&str>) -> Result<String> {
    get_with(&agent(), &format!("{}{path}", server_root(url)), key)
}

fn get_with(agent: &Agent, url: &str, key: Option<&str>) -> Result<String> {
    let mut request = agent.get(url);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    text_of(accepted(request.call().with_context(|| format!("cannot reach {url}"))?)?)
}

fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    config.timeout_connect(Some(CONNECT_TIMEOUT)).build().new_agent()
}

/// The body of a response with a success status; other statuses are errors.
fn accepted(response: Response<ureq::Body>) -> Result<impl Read> {
    let status = response.status().as_u16();
    let body = response.into_body().into_reader();
    if status == 200 {
        return Ok(body);
    }
    let text = text_of(body)?;
    let error: Value = serde_json::from_str(&text).unwrap_or_default();
    Err(error_of(&error["error"])
        .unwrap_or_else(|| anyhow::anyhow!("the server answered with status {status}")))
}

fn text_of(body: impl Read) -> Result<String> {
    let mut text = String::new();
    body.take(MAX_BODY_BYTES).read_to_string(&mut text).context("the server's answer broke off")?;
    Ok(text)
}

/// The error in a body of OpenAI's form.
fn error_of(error: &Value) -> Option<anyhow::Error> {
    if error["code"] == "context_length_exceeded" {
        return Some(ContextFull.into());
    }
    Some(anyhow::anyhow!("{}", error["message"].as_str()?))
}

/// Reads server-sent events until `[DONE]`.
fn read_stream(
    mut stream: impl BufRead,
    max_tokens: usize,
    mut on_piece: impl FnMut(Piece) -> bool,
) -> Result<Answer> {
    let (mut n_pieces, mut n_tokens, mut ended_by_length, mut has_ended) = (0, None, false, false);
    let mut is_thinking = false;
    loop {
        let mut line = String::new();
        if (&mut stream).take(MAX_EVENT_BYTES).read_line(&mut line).context("the answer broke off")? == 0 {
            // Some servers close the stream without `[DONE]`.
            if has_ended {
                break;
            }
            bail!("the answer broke off");
        }
        let Some(event) = line.trim_end().strip_prefix("data:").map(str::trim) else { continue };
        if event == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(event).context("the server sent an event that is no JSON")?;
        if let Some(error) = error_of(&event["error"]) {
            return Err(error);
        }
        n_tokens = event["usage"]["completion_tokens"].as_u64().map(|n| n as usize).or(n_tokens);
        let choice = &event["choices"][0];
        ended_by_length |= choice["finish_reason"] == "length";
        has_ended |= choice["finish_reason"].is_string();
        let delta = &choice["delta"];
        let text = delta["content"].as_str().unwrap_or_default();
        // Servers use one of two names for reasoning, or both.
        let reasoning = [&delta["reasoning"], &delta["reasoning_content"]];
        let reasoning = reasoning.into_iter().filter_map(Value::as_str).find(|text| !text.is_empty());
        n_pieces += usize::from(!text.is_empty() || reasoning.is_some());
        let mut goes_on = true;
        if let Some(reasoning) = reasoning {
            is_thinking = true;
            goes_on = on_piece(Piece::Reasoning(reasoning.to_owned()));
        } else if !text.is_empty() && std::mem::take(&mut is_thinking) {
            goes_on = on_piece(Piece::Reasoning("\n".to_owned()));
        }
        if !text.is_empty() {
            goes_on &= on_piece(Piece::Text(text.to_owned()));
        }
        if !goes_on {
            return Ok(Answer { n_tokens: n_pieces, context_is_full: false });
        }
    }
    let n_tokens = n_tokens.unwrap_or(n_pieces);
    Ok(Answer { n_tokens, context_is_full: ended_by_length && n_tokens < max_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str) -> (String, Result<Answer>) {
        let mut text = String::new();
        let on_piece = |piece: Piece| {
            if let Piece::Text(piece) = piece {
                text.push_str(&piece);
            }
            true
        };
        let answer = read_stream(stream.as_bytes(), 8, on_piece);
        (text, answer)
    }

    #[test]
    fn a_stream_gives_text_tokens_and_why_it_ended() {
        let piece =
            |text: &str| format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{text}\"}}}}]}}\n\n");
        let end = "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"length\"}]}\n\n";
        let usage = "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";
        let stream = [": ping\n\n", &piece("a"), &piece("b"), end, usage].concat();
        let (text, answer) = read(&stream);
        assert_eq!(
            (text.as_str(), answer.expect("whole")),
            ("ab", Answer { n_tokens: 3, context_is_full: true })
        );
        for name in ["reasoning", "reasoning_content"] {
            let thought = format!("data: {{\"choices\": [{{\"delta\": {{\"{name}\": \"hm\"}}}}]}}\n");
            let (text, answer) = read(&[&thought, &piece("a"), end].concat());
            assert_eq!((text.as_str(), answer.expect("whole").n_tokens), ("a", 2), "{name}");
            let mut pieces = Vec::new();
            let stop = |piece: Piece| {
                pieces.push(piece);
                false
            };
            let answer = read_stream([thought.as_str(), &piece("a")].concat().as_bytes(), 8, stop);
            assert_eq!(
                (pieces, answer.expect("stopped").n_tokens),
                (vec![Piece::Reasoning("hm".to_owned())], 1)
            );
        }
        let (_, answer) = read(&piece("a"));
        assert!(answer.expect_err("broken").to_string().contains("broke off"));
        let (_, answer) =
            read("data: {\"error\": {\"message\": \"no\", \"code\": \"context_length_exceeded\"}}\n");
        assert!(answer.expect_err("refused").is::<ContextFull>());
    }
}
