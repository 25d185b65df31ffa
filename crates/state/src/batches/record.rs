//! What is kept of a batch beside its results.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use throng_store::{ObjectKind, StoredObject};

use crate::error::StateError;

/// Progress of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its lines are being counted, or nobody has begun yet.
    Validating,
    /// Its lines are being answered.
    InProgress,
    /// The client wants it to end before all lines are answered.
    Cancelling,
    /// All lines have a result.
    Completed,
    /// Nothing could be begun.
    Failed,
    /// Its time has passed; lines without an answer have an error.
    Expired,
    /// The client has ended it.
    Cancelled,
}

impl Status {
    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::InProgress => "in_progress",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing changes any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// Lines of a batch by their results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All lines; 0 until they have been counted.
    pub total: u64,
    /// Lines with an answer.
    pub succeeded: u64,
    /// Lines with an error.
    pub errored: u64,
    /// Lines that were not answered because the batch was cancelled.
    pub cancelled: u64,
    /// Lines that were not answered in time.
    pub expired: u64,
}

impl Counts {
    /// Lines without a result.
    pub fn n_open(&self) -> u64 {
        self.total.saturating_sub(self.succeeded + self.errored + self.cancelled + self.expired)
    }
}

/// Where the lines of a batch are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRef {
    /// Whether it is a file of the tenant; else it came with the batch.
    pub is_file: bool,
    /// Id of the object.
    pub id: String,
}

impl InputRef {
    pub(crate) fn kind(&self) -> ObjectKind {
        if self.is_file { ObjectKind::File } else { ObjectKind::BatchInput }
    }
}

/// Why a whole batch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchFault {
    /// A short name of the fault.
    pub code: String,
    /// The fault in a sentence.
    pub message: String,
}

/// Times of a batch, in seconds since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When it was begun.
    pub began: Option<u64>,
    /// When its client asked for its end.
    pub cancelling: Option<u64>,
    /// When it reached its final status.
    pub ended: Option<u64>,
}

/// Body of a batch's object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub endpoint: String,
    pub input: InputRef,
    /// Name of its maker, for whoever generates.
    pub principal: Value,
    pub metadata: Option<Value>,
    /// End of its window.
    pub due_unix_s: u64,
    pub status: Status,
    pub times: Times,
    pub counts: Counts,
    /// Bytes of the lines of its output and of its errors.
    pub n_output_bytes: u64,
    pub n_error_bytes: u64,
    pub output_file: Option<String>,
    pub error_file: Option<String>,
    pub fault: Option<BatchFault>,
}

impl BatchRecord {
    pub fn read(object: &StoredObject) -> Result<Self, StateError> {
        serde_json::from_slice(&object.body).map_err(|_| StateError::Unreadable(object.key.id.clone()))
    }

    pub fn write(&self) -> Result<Vec<u8>, StateError> {
        serde_json::to_vec(self).map_err(|_| StateError::Unreadable(self.input.id.clone()))
    }
}

/// A batch as clients see it.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its id.
    pub id: String,
    /// Time of its creation.
    pub created_unix_s: u64,
    /// End of its window.
    pub due_unix_s: u64,
    /// Endpoint of its requests.
    pub endpoint: String,
    /// Where its lines are.
    pub input: InputRef,
    /// Notes of its client.
    pub metadata: Option<Value>,
    /// Progress.
    pub status: Status,
    /// Times.
    pub times: Times,
    /// Lines by their results.
    pub counts: Counts,
    /// File of the answers.
    pub output_file: Option<String>,
    /// File of the errors.
    pub error_file: Option<String>,
    /// Why it failed.
    pub fault: Option<BatchFault>,
}

impl Batch {
    pub(crate) fn new(object: &StoredObject, record: BatchRecord) -> Self {
        Self {
            id: object.key.id.clone(),
            created_unix_s: object.created_unix_s,
            due_unix_s: record.due_unix_s,
            endpoint: record.endpoint,
            input: record.input,
            metadata: record.metadata,
            status: record.status,
            times: record.times,
            counts: record.counts,
            output_file: record.output_file,
            error_file: record.error_file,
            fault: record.fault,
        }
    }
}
