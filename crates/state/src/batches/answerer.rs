//! What a batch needs of whoever generates.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

/// The request of a line.
#[derive(Debug, Clone)]
pub struct LineRequest {
    /// Tenant of the batch.
    pub tenant: String,
    /// Name of its maker, as whoever generates has written it down.
    pub principal: Value,
    /// Path of the endpoint.
    pub endpoint: String,
    /// Id of the request, the same each time that the line is tried.
    pub request_id: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// The answer to a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineAnswer {
    /// An answer, or an error that stays.
    Answered {
        /// Its HTTP status.
        status: u16,
        /// Its body, JSON.
        body: Vec<u8>,
    },
    /// The line cannot be answered now.
    Later {
        /// When to try again.
        after: Duration,
    },
}

/// Answers lines with all that holds for other requests of the same tenant, but after them.
pub trait Answerer: Debug + Send + Sync + 'static {
    /// Answers a line. It waits until nothing more urgent is to be computed.
    fn answer(&self, request: LineRequest) -> BoxFuture<'static, LineAnswer>;
}
