//! A line of a batch's input: a request with the id that its result gets.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum bytes of a line's id.
const MAX_CUSTOM_ID_BYTES: usize = 512;

/// The request of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The client's id of the line.
    pub custom_id: String,
    /// Body of the request.
    pub body: Vec<u8>,
}

/// Reason why a line is not a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFault {
    /// The client's id of the line, if it has one.
    pub custom_id: Option<String>,
    /// Error code of the fault.
    pub code: &'static str,
    /// Description of the fault.
    pub message: String,
}

/// Result of parsing a line.
pub type ReadLine = Result<Line, LineFault>;

#[derive(Deserialize)]
struct Fields<'a> {
    custom_id: Option<String>,
    method: Option<String>,
    url: Option<String>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// Parameters that requests of a batch must not have.
#[derive(Deserialize)]
struct Parameters {
    #[serde(default)]
    stream: Option<serde_json::Value>,
}

/// Parses a line of a batch for `endpoint`.
///
/// # Errors
/// [`LineFault`].
pub fn read_line(bytes: &[u8], endpoint: &str) -> ReadLine {
    let fault = |custom_id: Option<&String>, code, message: String| LineFault {
        custom_id: custom_id.cloned(),
        code,
        message,
    };
    let fields: Fields<'_> = serde_json::from_slice(bytes)
        .map_err(|error| fault(None, "invalid_json_line", format!("The line is not such JSON: {error}.")))?;
    let Fields { custom_id, method, url, body } = fields;
    let Some(custom_id) = custom_id.filter(|id| (1..=MAX_CUSTOM_ID_BYTES).contains(&id.len())) else {
        let message = format!("'custom_id' must have 1 to {MAX_CUSTOM_ID_BYTES} bytes.");
        return Err(fault(None, "missing_required_parameter", message));
    };
    let id = Some(&custom_id);
    if method.as_deref() != Some("POST") {
        return Err(fault(id, "invalid_method", "'method' must be 'POST'.".to_owned()));
    }
    if url.as_deref() != Some(endpoint) {
        return Err(fault(id, "invalid_url", format!("'url' must be '{endpoint}', the batch's endpoint.")));
    }
    let Some(body) = body.filter(|body| body.get().starts_with('{')) else {
        return Err(fault(id, "missing_required_parameter", "'body' must be an object.".to_owned()));
    };
    let parameters: Option<Parameters> = serde_json::from_str(body.get()).ok();
    if parameters.and_then(|parameters| parameters.stream).is_some_and(|stream| stream == true) {
        return Err(fault(id, "invalid_value", "'stream' cannot be used in a batch.".to_owned()));
    }
    Ok(Line { body: body.get().as_bytes().to_vec(), custom_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_their_fault_is_named() {
        let read = |text: &str| read_line(text.as_bytes(), "/v1/completions");
        let good = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": [1, 2]}, "x": 1}"#;
        let line = read(good).expect("a line");
        assert_eq!((line.custom_id.as_str(), &line.body[..]), ("a", &br#"{"prompt": [1, 2]}"#[..]));
        for (text, id, code) in [
            ("", None, "invalid_json_line"),
            ("[]", None, "invalid_json_line"),
            ("{\"custom_id\": 5}", None, "invalid_json_line"),
            ("{}", None, "missing_required_parameter"),
            (r#"{"custom_id": ""}"#, None, "missing_required_parameter"),
            (r#"{"custom_id": "a"}"#, Some("a"), "invalid_method"),
            (r#"{"custom_id": "a", "method": "GET"}"#, Some("a"), "invalid_method"),
            (r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}"#, Some("a"), "invalid_url"),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions"}"#,
                Some("a"),
                "missing_required_parameter",
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": []}"#,
                Some("a"),
                "missing_required_parameter",
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}"#,
                Some("a"),
                "invalid_value",
            ),
        ] {
            let fault = read(text).expect_err(text);
            assert_eq!((fault.custom_id.as_deref(), fault.code), (id, code), "{text}");
        }
    }
}
