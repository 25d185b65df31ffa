//! Interface through which batches get answers to their lines.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

/// The request of a line.
#[derive(Debug, Clone)]
pub struct LineRequest {
    /// Tenant of the batch.
    pub tenant: String,
    /// Principal of the batch, in the form of the answerer.
    pub principal: Value,
    /// Path of the endpoint.
    pub endpoint: String,
    /// Id of the request, the same for each try of the line.
    pub request_id: String,
    /// Body of the request.
    pub body: Vec<u8>,
}

/// The answer to a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineAnswer {
    /// The line has an answer, or a final error.
    Answered {
        /// HTTP status of the answer.
        status: u16,
        /// Body of the answer, in JSON.
        body: Vec<u8>,
    },
    /// The line cannot be answered now.
    Later {
        /// Time until the next try.
        after: Duration,
    },
}

/// Answers lines with the policies of the tenant's other requests, but after them.
pub trait Answerer: Debug + Send + Sync + 'static {
    /// Answers a line, when no more urgent request is waiting.
    fn answer(&self, request: LineRequest) -> BoxFuture<'static, LineAnswer>;
}
