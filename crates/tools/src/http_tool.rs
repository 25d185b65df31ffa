//! HTTP endpoints as tools: arguments fill the URL, the query or the body; the answer's text is the result.

use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use reqwest::Url;
use serde_json::{Map, Value};
use throng_api::answer::CallFailure;
use throng_api::responses::ToolDefinition;
use throng_core::secret::Secret;

use crate::bound_text::bound;
use crate::config::HttpToolConfig;
use crate::definition::check;
use crate::error::ToolsError;
use crate::hosts;

/// Maximum bytes of an error's body in the message of its failure.
const MAX_ERROR_BYTES: usize = 1024;
/// Maximum bytes of a character in UTF-8.
const MAX_CHAR_BYTES: usize = 4;

/// An HTTP endpoint.
#[derive(Debug)]
pub(crate) struct HttpTool {
    pub definition: ToolDefinition,
    pub requires_approval: bool,
    client: reqwest::Client,
    method: Method,
    url: String,
    headers: HeaderMap,
    max_bytes: usize,
}

impl HttpTool {
    /// Creates the tool of a configuration.
    ///
    /// # Errors
    /// [`ToolsError::Setting`].
    pub fn new(config: &HttpToolConfig, client: reqwest::Client) -> Result<Self, ToolsError> {
        let fault = |key: &str, fault: String| {
            ToolsError::setting(format!("gateway.tools.http.{key} of '{}'", config.name), fault)
        };
        let url = hosts::parse(&config.url).map_err(|text| fault("url", text))?;
        let host = config.url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next());
        if host.is_none_or(|host| host.contains('{')) || !url.username().is_empty() {
            return Err(fault("url", "an argument cannot name the host, nor a user".to_owned()));
        }
        let method = Method::from_bytes(config.method.to_ascii_uppercase().as_bytes());
        let is_known = |method: &Method| {
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
                .contains(method)
        };
        let method = method.ok().filter(is_known).ok_or_else(|| fault("method", "is unknown".to_owned()))?;
        let headers = headers_of(&config.headers).map_err(|text| fault("headers", text))?;
        let mut schema = config.parameters.clone();
        schema.entry("type").or_insert_with(|| "object".into());
        let definition = ToolDefinition {
            name: config.name.clone(),
            description: Some(config.description.clone()),
            input_schema: Value::Object(schema),
            annotations: None,
        };
        check(&definition).map_err(|text| fault("name", text))?;
        let (requires_approval, max_bytes) = (config.require_approval, config.limits.max_result_bytes);
        let url = config.url.clone();
        Ok(Self { definition, requires_approval, client, method, url, headers, max_bytes })
    }

    /// Calls the endpoint. A result may be somewhat longer than its bound, so that the caller notes the cut.
    ///
    /// # Errors
    /// [`CallFailure::Unanswered`].
    pub async fn call(&self, mut arguments: Map<String, Value>) -> Result<String, CallFailure> {
        let mut url = self.filled(&mut arguments)?;
        let has_body = matches!(self.method, Method::POST | Method::PUT | Method::PATCH);
        if !has_body && !arguments.is_empty() {
            let mut query = url.query_pairs_mut();
            for (name, value) in &arguments {
                query.append_pair(name, &plain(value));
            }
        }
        let mut request = self.client.request(self.method.clone(), url).headers(self.headers.clone());
        if has_body {
            request = request.json(&arguments);
        }
        let answer = request.send().await;
        // The address may hold the operator's secrets.
        let answer = answer.map_err(|error| CallFailure::unanswered(502, error.without_url().to_string()))?;
        let status = answer.status();
        let max_bytes = if status.is_success() { self.max_bytes } else { MAX_ERROR_BYTES };
        let text = body_of(answer, max_bytes).await?;
        if status.is_success() {
            return Ok(text);
        }
        let text = bound(text, MAX_ERROR_BYTES);
        Err(CallFailure::unanswered(status.as_u16(), format!("The endpoint answered with {status}: {text}")))
    }

    /// The URL with placeholders replaced by arguments, which are removed from the arguments.
    fn filled(&self, arguments: &mut Map<String, Value>) -> Result<Url, CallFailure> {
        let mut parts = self.url.split('{');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').unwrap_or((part, ""));
            let missing = || CallFailure::unanswered(400, format!("The argument '{name}' is missing."));
            let value = plain(&arguments.remove(name).ok_or_else(missing)?);
            // These would lead to another path, encoded or not.
            if matches!(value.as_str(), "" | "." | "..") {
                return Err(CallFailure::unanswered(
                    400,
                    format!("The argument '{name}' cannot be '{value}'."),
                ));
            }
            filled.push_str(&encoded(&value));
            filled.push_str(rest);
        }
        Url::parse(&filled).map_err(|error| CallFailure::unanswered(400, error.to_string()))
    }
}

/// Reads names and values of headers.
///
/// # Errors
/// The fault, without the value.
pub(crate) fn headers_of<'a>(
    pairs: impl IntoIterator<Item = (&'a String, &'a Secret)>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header"))?;
        let mut value = HeaderValue::from_str(value.reveal())
            .map_err(|_| format!("the value of {name:?} is no header's"))?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

/// A value as the text of a path or a query.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Percent-encodes all but letters, digits and three marks.
pub(crate) fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The text of an answer: all of it, or little more than `max_bytes` of it.
async fn body_of(answer: reqwest::Response, max_bytes: usize) -> Result<String, CallFailure> {
    let length = answer.content_length();
    let mut stream = answer.bytes_stream();
    let (mut bytes, mut is_whole) = (Vec::new(), true);
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| CallFailure::unanswered(502, error.without_url().to_string()))?;
        bytes.extend_from_slice(&piece);
        is_whole = bytes.len() <= max_bytes + MAX_CHAR_BYTES;
        if !is_whole {
            break;
        }
    }
    let n_bytes = length.unwrap_or(bytes.len() as u64);
    let text = String::from_utf8(bytes).or_else(|error| {
        // The end of what is read may split a character.
        let n_valid = error.utf8_error().valid_up_to();
        let is_text = !is_whole && error.as_bytes().len() - n_valid < MAX_CHAR_BYTES;
        let mut bytes = error.into_bytes();
        bytes.truncate(n_valid);
        if is_text { String::from_utf8(bytes).map_err(|_| ()) } else { Err(()) }
    });
    Ok(text.unwrap_or_else(|()| format!("[{n_bytes} bytes that are no text]")))
}
