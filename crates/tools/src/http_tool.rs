//! HTTP endpoints as tools: arguments fill the URL, the query or the body; the answer's text is the result.

use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use reqwest::Url;
use serde_json::{Map, Value};

use crate::bound_text::bound;
use crate::config::HttpToolConfig;
use crate::definition::ToolDefinition;
use crate::error::{CallError, ToolsError};
use crate::hosts;

/// Bytes of an error's body that are told.
const MAX_ERROR_BYTES: usize = 1024;

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
    /// Checks the configuration of one.
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
        let headers = headers_of(config.headers.iter()).map_err(|text| fault("headers", text))?;
        let mut schema = config.parameters.clone();
        schema.entry("type").or_insert_with(|| "object".into());
        let definition = ToolDefinition {
            name: config.name.clone(),
            description: Some(config.description.clone()),
            input_schema: Value::Object(schema),
            annotations: None,
        };
        definition.check().map_err(|text| fault("name", text))?;
        let (requires_approval, max_bytes) = (config.require_approval, config.limits.max_result_bytes);
        let url = config.url.clone();
        Ok(Self { definition, requires_approval, client, method, url, headers, max_bytes })
    }

    /// Calls it.
    ///
    /// # Errors
    /// [`CallError::Http`].
    pub async fn call(&self, mut arguments: Map<String, Value>) -> Result<String, CallError> {
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
        let answer = answer.map_err(|error| CallError::http(502, error.without_url().to_string()))?;
        let status = answer.status();
        let max_bytes = if status.is_success() { self.max_bytes } else { MAX_ERROR_BYTES };
        let text = body_of(answer, max_bytes).await?;
        if status.is_success() {
            return Ok(text);
        }
        Err(CallError::http(status.as_u16(), format!("The endpoint answered with {status}: {text}")))
    }

    /// The URL with arguments in the places of their names; these are taken out.
    fn filled(&self, arguments: &mut Map<String, Value>) -> Result<Url, CallError> {
        let mut parts = self.url.split('{');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').unwrap_or((part, ""));
            let missing = || CallError::http(400, format!("The argument '{name}' is missing."));
            let value = plain(&arguments.remove(name).ok_or_else(missing)?);
            // These would lead to another path, encoded or not.
            if matches!(value.as_str(), "" | "." | "..") {
                return Err(CallError::http(400, format!("The argument '{name}' cannot be '{value}'.")));
            }
            filled.push_str(&encoded(&value));
            filled.push_str(rest);
        }
        Url::parse(&filled).map_err(|error| CallError::http(400, error.to_string()))
    }
}

/// Reads names and values of headers.
///
/// # Errors
/// The fault, without the value.
pub(crate) fn headers_of<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header"))?;
        let mut value =
            HeaderValue::from_str(value).map_err(|_| format!("the value of {name:?} is no header's"))?;
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
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The text of an answer, of which no more is read than is told.
async fn body_of(answer: reqwest::Response, max_bytes: usize) -> Result<String, CallError> {
    let length = answer.content_length();
    let mut stream = answer.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| CallError::http(502, error.without_url().to_string()))?;
        bytes.extend_from_slice(&piece);
        if bytes.len() > max_bytes {
            break;
        }
    }
    let is_whole = bytes.len() <= max_bytes;
    let text = String::from_utf8(bytes).or_else(|error| {
        // A cut may split the last character.
        let n_valid = error.utf8_error().valid_up_to();
        let is_text = !is_whole && error.as_bytes().len() - n_valid < 4;
        let mut bytes = error.into_bytes();
        bytes.truncate(n_valid);
        if is_text { String::from_utf8(bytes).map_err(|_| ()) } else { Err(()) }
    });
    match text {
        Ok(text) => Ok(bound(text, max_bytes)),
        Err(()) => Ok(format!("[{} bytes that are no text]", length.unwrap_or_default())),
    }
}
