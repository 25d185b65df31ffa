//! The messages of a client: the kind of request and the lane, read before the rest; and the message that
//! reports an error.

use serde::Serialize;

use super::lanes::Lane;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};

const CREATE: &str = "response.create";
const STEER: &str = "response.steer";
/// Longest name of a lane in bytes.
const MAX_LANE_BYTES: usize = 256;
/// Maximum bytes of a lane's name.
const MAX_NAME_BYTES: usize = 4 << 10;

/// Fields of a message other than the parameters of a response.
#[derive(Debug, Default)]
pub(crate) struct MessageHead {
    is_steering: bool,
    has_type: bool,
    lane: Lane,
    generate: Option<bool>,
}

/// The parameters that only messages have.
pub(crate) const MESSAGE_FIELDS: &[Field<MessageHead>] = &[
    field(
        "type",
        Custom(Shape::Choice(&[CREATE, STEER]), |m, node, _| {
            let kind = node.string(MAX_NAME_BYTES)?;
            (m.has_type, m.is_steering) = (true, kind == STEER);
            match &*kind {
                CREATE | STEER => Ok(()),
                other => Err(ApiError::not_one_of("type", other, &[CREATE])),
            }
        }),
        "response.create.",
    ),
    field(
        "stream_id",
        Custom(Shape::Text(MAX_LANE_BYTES), |m, node, _| {
            let name = node.string(MAX_NAME_BYTES)?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            if !(1..=MAX_LANE_BYTES).contains(&name.len()) || !name.bytes().all(is_plain) {
                return Err(ApiError::invalid_stream_id());
            }
            m.lane = Lane::named(&name);
            Ok(())
        }),
        "The lane of the response; lanes run beside each other, and each one in order.",
    ),
    field(
        "generate",
        Boolean(|m| &mut m.generate),
        "false: only prepare for a turn that goes on with this one.",
    ),
];

/// A message of a client that requests a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientMessage {
    /// Lane of the response.
    pub lane: Lane,
    /// Whether text is to be generated, or the input only prepared.
    pub generates: bool,
}

impl ClientMessage {
    /// Reads the kind of request and the lane of a message.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn of(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut head = MessageHead::default();
        let bound = &mut Bound { fields: MESSAGE_FIELDS, target: &mut head };
        read_body(bytes, &mut [bound], &ReadOptions::default())?;
        if !head.has_type {
            return Err(ApiError::missing_required_parameter("type"));
        }
        if head.is_steering {
            let reason =
                "This server does not take 'response.steer': send the input with the next 'response.create'.";
            return Err(ApiError::unsupported_parameter("type", reason));
        }
        Ok(Self { lane: head.lane, generates: head.generate != Some(false) })
    }
}

/// The message that reports an error outside a response, or of a response that has not begun.
pub fn error_message(error: &ApiError, lane: &Lane) -> Vec<u8> {
    #[derive(Serialize)]
    struct Told<'a> {
        r#type: &'static str,
        status: u16,
        error: Fault<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stream_id: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Fault<'a> {
        r#type: &'a str,
        code: &'a str,
        message: &'a str,
        param: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        headers: Option<Headers>,
    }
    #[derive(Serialize)]
    struct Headers {
        #[serde(rename = "retry-after")]
        retry_after: String,
    }
    let headers = error.retry_after_s().map(|seconds| Headers { retry_after: seconds.to_string() });
    let fault = Fault {
        r#type: error.error_type().as_str(),
        code: error.code(),
        message: error.message(),
        param: error.param(),
        headers,
    };
    let told =
        Told { r#type: "error", status: error.status().as_u16(), error: fault, stream_id: lane.name() };
    serde_json::to_vec(&told).expect("errors are plain data with text keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_asks_for_is_found_before_the_rest_is_read() {
        let found =
            ClientMessage::of(br#"{"type":"response.create","stream_id":"a.1","generate":false,"x":1}"#);
        let expected = ClientMessage { lane: Lane::named("a.1"), generates: false };
        assert_eq!(found.expect("a message"), expected);
        let found = ClientMessage::of(br#"{"input":[],"type":"response.create"}"#).expect("a message");
        assert_eq!(found, ClientMessage { lane: Lane::default(), generates: true });
        for (message, code) in [
            ("{", "invalid_json"),
            ("[]", "invalid_type"),
            ("{}", "missing_required_parameter"),
            (r#"{"type":"response.made"}"#, "invalid_value"),
            (r#"{"type":7}"#, "invalid_type"),
            (r#"{"type":"response.steer","previous_response_id":"r","input":"x"}"#, "unsupported_parameter"),
            (r#"{"type":"response.create","stream_id":""}"#, "invalid_stream_id"),
            (r#"{"type":"response.create","stream_id":"a b"}"#, "invalid_stream_id"),
            (r#"{"type":"response.create","type":"response.create"}"#, "duplicate_key"),
        ] {
            assert_eq!(ClientMessage::of(message.as_bytes()).expect_err(message).code(), code, "{message}");
        }
    }

    #[test]
    fn an_error_is_told_with_its_status_and_lane() {
        let error = ApiError::overloaded("Full.", 2);
        let told = String::from_utf8(error_message(&error, &Lane::named("a"))).expect("text");
        assert_eq!(
            told,
            r#"{"type":"error","status":503,"error":{"type":"server_error","code":"overloaded","message":"Full.","param":null,"headers":{"retry-after":"2"}},"stream_id":"a"}"#
        );
    }
}
