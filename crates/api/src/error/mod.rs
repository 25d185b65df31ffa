//! All errors that clients can get: status, type, param, code and message. Nothing else maps an error to a
//! status. Does not know internal causes: constructors take plain facts.

mod body;
mod budget;
mod constraint;
mod fleet;
mod idempotency;
mod images;
mod kept;
mod models;
mod objects;
mod regions;
mod residency;
mod service;
mod socket;
mod tools;

use std::borrow::Cow;

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

pub use budget::SpentBudget;
pub use constraint::ConstraintParam;

/// Maximum bytes, after escaping, of client input in a message.
const MAX_ECHO_BYTES: usize = 128;

/// The `type` of an error object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    /// The request is invalid; the same request will always fail.
    InvalidRequest,
    /// A rate limit is reached; a later retry may succeed.
    RateLimit,
    /// A budget is exhausted.
    InsufficientQuota,
    /// The server failed or is overloaded.
    Server,
}

impl ErrorType {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::RateLimit => "rate_limit_error",
            Self::InsufficientQuota => "insufficient_quota",
            Self::Server => "server_error",
        }
    }
}

/// An error response of the API: a status and `{"error":{"message","type","param","code"}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ApiError(Box<Fault>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    status: StatusCode,
    error_type: ErrorType,
    code: &'static str,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u32>,
    allow: Option<&'static str>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

impl ApiError {
    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The `type` of the error object.
    pub fn error_type(&self) -> ErrorType {
        self.0.error_type
    }

    /// The `code` of the error object.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The path of the invalid parameter, like `messages[2].content`.
    pub fn param(&self) -> Option<&str> {
        self.0.param.as_deref()
    }

    /// The message, a sentence for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Seconds until a retry may succeed.
    pub fn retry_after_s(&self) -> Option<u32> {
        self.0.retry_after_s
    }

    /// The error object as JSON, for a body or for the last event of a stream.
    pub fn to_json(&self) -> Vec<u8> {
        let object = ErrorObject {
            error: ErrorFields {
                message: &self.0.message,
                r#type: self.0.error_type.as_str(),
                param: self.0.param.as_deref(),
                code: self.0.code,
            },
        };
        serde_json::to_vec(&object).expect("strings always serialise")
    }

    /// Replaces `param`.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    fn new(status: StatusCode, error_type: ErrorType, code: &'static str, message: String) -> Self {
        Self(Box::new(Fault {
            status,
            error_type,
            code,
            param: None,
            message,
            retry_after_s: None,
            allow: None,
        }))
    }

    fn bad_request(code: &'static str, message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorType::InvalidRequest, code, message)
    }

    fn client(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorType::InvalidRequest, code, message.into())
    }

    fn server(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorType::Server, code, message.into())
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }
}

impl ApiError {
    /// The HTTP response with this error's status and headers, and `body`. The error is attached as an
    /// extension.
    pub fn response<B>(self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = self.0.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.0.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            let is_missing = self.0.code == "missing_api_key";
            let challenge = if is_missing { "Bearer" } else { "Bearer error=\"invalid_token\"" };
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(methods) = self.0.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        if self.0.error_type == ErrorType::InsufficientQuota || self.0.status == StatusCode::LOOP_DETECTED {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Client input for a message: control characters escaped, truncated to [`MAX_ECHO_BYTES`].
pub fn echo(input: &str) -> Cow<'_, str> {
    let plain = |c: char| c != '\\' && c != '\'' && !c.is_control() && !is_invisible(c);
    if input.len() <= MAX_ECHO_BYTES && input.chars().all(plain) {
        return Cow::Borrowed(input);
    }
    let mut out = String::new();
    for c in input.chars() {
        let n_before = out.len();
        if plain(c) {
            out.push(c)
        } else {
            out.extend(c.escape_default())
        }
        if out.len() > MAX_ECHO_BYTES - '…'.len_utf8() {
            out.truncate(n_before);
            out.push('…');
            break;
        }
    }
    Cow::Owned(out)
}

/// Characters that change the text direction or are invisible; in a log they would disguise the input.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_escaped_and_cut_in_messages() {
        assert_eq!(echo("plain ü"), "plain ü");
        assert_eq!(echo("a\r\nb"), "a\\r\\nb");
        assert_eq!(echo("\u{202e}x"), "\\u{202e}x");
        for long in ["x".repeat(1000), "\u{1}".repeat(1000), "語".repeat(1000)] {
            assert!(echo(&long).len() <= MAX_ECHO_BYTES, "{}", echo(&long));
            assert!(echo(&long).ends_with('…'));
        }
    }

    #[test]
    fn the_object_has_the_four_keys_in_order() {
        let error = ApiError::missing_required_parameter("messages[0].role");
        assert_eq!(
            String::from_utf8(error.to_json()).unwrap(),
            r#"{"error":{"message":"Missing required parameter: 'messages[0].role'.","type":"invalid_request_error","param":"messages[0].role","code":"missing_required_parameter"}}"#
        );
        let error = ApiError::overloaded("The queue is full.", 2);
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        let response = error.response(());
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    }
}
