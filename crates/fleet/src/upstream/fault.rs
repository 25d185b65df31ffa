//! Faults of requests to upstream engines. Does not know connections.

use bytes::Bytes;
use http::StatusCode;

use super::reason::{Reason, is_of_request};

/// Maximum characters of an engine's message in a line for operators.
const MAX_WORDS_CHARS: usize = 200;

/// Fault of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No connection to the engine.
    Unreachable(String),
    /// The connection broke after the request was sent.
    Broken(String),
    /// Timeout: the engine was silent for too long.
    Silent,
    /// The engine refuses temporarily: too many requests, or unavailable.
    Busy(StatusCode),
    /// The engine failed, or refused the gateway's credentials; with its message, for operators.
    Failed(StatusCode, String),
    /// The engine rejected the request; status and body go to the client.
    Rejected(StatusCode, Bytes),
    /// The answer does not have the expected form.
    Nonsense(&'static str),
    /// Rejection by a gateway of a request that another gateway forwarded to this one.
    Loop,
    /// Rejection by a gateway without replicas in the regions that the request is bound to.
    OutOfRegion,
}

impl Fault {
    /// Name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Broken(_) => "upstream_broken",
            Self::Silent => "upstream_timeout",
            Self::Busy(_) => "upstream_busy",
            Self::Failed(..) => "upstream_error",
            Self::Rejected(..) => "upstream_rejected",
            Self::Nonsense(_) => "upstream_nonsense",
            Self::Loop => "too_many_hops",
            Self::OutOfRegion => "region_not_permitted",
        }
    }

    /// Whether the fault counts for the engine's health, and not just for this request.
    pub fn is_of_the_engine(&self) -> bool {
        !matches!(self, Self::Loop | Self::OutOfRegion)
    }

    /// Whether the engine does not have the requested path.
    pub fn is_unknown_there(&self) -> bool {
        matches!(
            self,
            Self::Failed(
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED,
                _
            )
        )
    }

    /// Whether the engine may answer another kind of request: it lacks this kind, or considers it invalid.
    pub fn is_of_the_kind(&self) -> bool {
        match self {
            Self::Rejected(..) => true,
            Self::Failed(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => false,
            // A missing model would be missing for every kind of request.
            Self::Failed(StatusCode::NOT_FOUND, words) => !words.to_lowercase().contains("model"),
            Self::Failed(status, _) => status.is_client_error() || *status == StatusCode::NOT_IMPLEMENTED,
            _ => false,
        }
    }

    /// The fault for a status other than 200. Engines use several statuses for a prompt that is too long;
    /// gateways use two statuses with a special meaning, which other engines use too.
    pub(super) fn of_status(status: StatusCode, body: Bytes) -> Self {
        let reason = Reason::read(&body);
        let own = reason.as_ref().map(|reason| reason.gateways_code()).unwrap_or_default();
        match (status, own) {
            (StatusCode::LOOP_DETECTED, "too_many_hops") => return Self::Loop,
            (StatusCode::FORBIDDEN, "region_not_permitted") => return Self::OutOfRegion,
            _ => {}
        }
        match reason {
            Some(reason) if reason.is_too_long && !status.is_redirection() => {
                Self::Rejected(StatusCode::BAD_REQUEST, reason.body(body))
            }
            Some(reason) if is_of_request(status) => Self::Rejected(status, reason.body(body)),
            None if is_of_request(status) => Self::Rejected(status, Bytes::new()),
            reason => Self::Failed(status, words(reason)),
        }
    }

    /// The fault for an error in place of an answer.
    pub(super) fn of_answer(reason: Reason, body: Bytes) -> Self {
        match (reason.clients_status(), reason.status) {
            (Some(status), _) => Self::Rejected(status, reason.body(body)),
            (None, Some(status @ (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE))) => {
                Self::Busy(status)
            }
            (None, status) => Self::Failed(status.unwrap_or(StatusCode::OK), words(Some(reason))),
        }
    }

    /// Message for operators.
    pub fn told(&self) -> String {
        match self {
            Self::Unreachable(reason) | Self::Broken(reason) => reason.clone(),
            Self::Silent => "it did not answer in time".to_owned(),
            Self::Failed(status @ StatusCode::UNAUTHORIZED, words) => {
                format!("it answered with {status}{words}: its key (api_key) is missing or wrong")
            }
            Self::Failed(StatusCode::OK, words) => format!("it answered with an error{words}"),
            Self::Failed(status, words) => format!("it answered with {status}{words}"),
            Self::Busy(status) => format!("it answered with {status}"),
            Self::Rejected(status, body) => format!("it answered with {status}{}", words(Reason::read(body))),
            Self::Nonsense(reason) => (*reason).to_owned(),
            Self::Loop => "it is a gateway that takes no requests of gateways from here".to_owned(),
            Self::OutOfRegion => "it is a gateway without replicas in permitted regions".to_owned(),
        }
    }
}

/// The engine's message, as a suffix to the status.
fn words(reason: Option<Reason>) -> String {
    let words = reason.map(|reason| reason.message).unwrap_or_default();
    let words: String = words.chars().take(MAX_WORDS_CHARS).collect();
    let words = words.trim_end_matches('.');
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}
