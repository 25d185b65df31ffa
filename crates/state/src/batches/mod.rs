//! Batches: many requests, one on each line, that are answered when no more urgent request is waiting. A
//! batch is an object whose items are the results of its lines, under the numbers of the lines, so that a
//! line has one result however often its batch is resumed.

mod answerer;
mod context;
mod input;
mod line;
mod manage;
mod message_results;
mod record;
mod runner;
mod work;

pub use answerer::{Answerer, LineAnswer, LineRequest};
pub use context::{DEAD_AFTER, RunnerSettings};
pub use line::{Line, LineFault, ReadLine, read_line};
pub use manage::{
    BatchQuery, NewBatch, NewMessageBatch, cancel, create, create_messages, delete, get, list, list_before,
};
pub use message_results::MessageResults;
pub use record::{Batch, BatchFault, Counts, InputRef, Status, Times};
pub use runner::Runner;

use throng_store::ObjectKind;

pub use crate::results::{Outcome, ResultLine, openai_result};

/// Maximum number of lines of a batch.
pub const MAX_LINES: u64 = 100_000;
/// Seconds in which a batch must be answered.
pub const WINDOW_S: u64 = 24 * 60 * 60;
/// Endpoints whose requests OpenAI's batches may have.
pub const ENDPOINTS: &[&str] =
    &["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
/// Endpoint of the requests of Anthropic's batches.
pub const MESSAGES: &str = "/v1/messages";

/// API that determines the form of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchForm {
    /// OpenAI's form: lines are read from a file, results are files.
    Openai,
    /// Anthropic's form: requests are in the batch, results are read from it.
    Anthropic,
}

impl BatchForm {
    /// All forms of batches.
    pub const ALL: [Self; 2] = [Self::Openai, Self::Anthropic];

    /// Kind of the objects.
    pub const fn kind(self) -> ObjectKind {
        match self {
            Self::Openai => ObjectKind::Batch,
            Self::Anthropic => ObjectKind::MessageBatch,
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Openai => "batch_",
            Self::Anthropic => "msgbatch_",
        }
    }
}

/// Name of a batch in sentences.
const BATCH: &str = "batch";
