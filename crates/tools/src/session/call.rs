//! A call of a tool that is to run, and the record of a call that has run.

use std::sync::Arc;
use std::time::Duration;

use throng_api::answer::CallFailure;
use tokio::time::Instant;

use crate::error::outcome_of;
use crate::server::ToolServer;

/// A call that is to run.
#[derive(Debug)]
pub struct PendingCall {
    pub(super) call_idx: u32,
    pub(super) server: Arc<ToolServer>,
    pub(super) tool: String,
    pub(super) arguments: String,
    /// The most calls of the response, if this call exceeds them.
    pub(super) refused_above: Option<u32>,
}

/// A call that has ended.
#[derive(Debug)]
pub struct Called {
    /// Number of the call in its turn.
    pub call_idx: u32,
    /// Result of the call.
    pub result: Result<String, CallFailure>,
    /// Record of the call.
    pub record: CallRecord,
}

/// Names and times of a call, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRecord {
    /// The label of the server.
    pub server: String,
    /// Name of the tool.
    pub tool: String,
    /// Duration of the call.
    pub duration: Duration,
    /// Whether the operator names the server, rather than the request.
    pub is_operators: bool,
    /// `ok`, or the kind of its failure.
    pub status: &'static str,
}

impl PendingCall {
    /// Name of the call in ledgers: `tool:`, the server's label and the tool.
    pub fn ledger_name(&self) -> String {
        format!("tool:{}/{}", self.server.label, self.tool)
    }

    /// Runs it. Dropping the future ends it.
    pub async fn run(self) -> Called {
        let Self { call_idx, server, tool, arguments, refused_above } = self;
        let begun = Instant::now();
        let result = match refused_above {
            None => server.call(&tool, &arguments).await,
            Some(most) => Err(CallFailure::unanswered(
                429,
                format!("The response has had its {most} calls of tools already."),
            )),
        };
        let status = result.as_ref().err().map_or("ok", outcome_of);
        let (duration, is_operators) = (begun.elapsed(), server.is_operators());
        let record = CallRecord { server: server.label.clone(), tool, duration, is_operators, status };
        Called { call_idx, result, record }
    }
}
