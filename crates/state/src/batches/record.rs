//! Record of a batch beside its results.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use throng_store::{ObjectKind, StoredObject};

use crate::error::StateError;

/// Progress of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Lines are being counted, or no runner has begun yet.
    Validating,
    /// Lines are being answered.
    InProgress,
    /// The client has cancelled the batch, which has not ended yet.
    Cancelling,
    /// All lines have a result.
    Completed,
    /// The batch could not be begun.
    Failed,
    /// The batch's time has passed; lines without an answer have an error.
    Expired,
    /// The batch was cancelled.
    Cancelled,
}

impl Status {
    /// Name in the API.
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

    /// Whether the status is final.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// Numbers of lines by their results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of all lines; 0 until they were counted.
    pub total: u64,
    /// Number of lines with an answer.
    pub succeeded: u64,
    /// Number of lines with an error.
    pub errored: u64,
    /// Number of lines that were not answered because the batch was cancelled.
    pub cancelled: u64,
    /// Number of lines that were not answered in time.
    pub expired: u64,
}

impl Counts {
    /// Number of lines without a result.
    pub fn n_open(&self) -> u64 {
        self.total.saturating_sub(self.succeeded + self.errored + self.cancelled + self.expired)
    }
}

/// Location of a batch's lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRef {
    /// Whether the lines are in a file of the tenant; otherwise they were sent with the batch.
    pub is_file: bool,
    /// Id of the file or batch.
    pub id: String,
}

impl InputRef {
    pub(crate) fn kind(&self) -> ObjectKind {
        if self.is_file { ObjectKind::File } else { ObjectKind::BatchInput }
    }
}

/// Reason why a whole batch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchFault {
    /// Error code of the fault.
    pub code: String,
    /// Description of the fault.
    pub message: String,
}

/// Times of a batch, in seconds since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Time at which a runner began the batch.
    pub began: Option<u64>,
    /// Time at which the client cancelled it.
    pub cancelling: Option<u64>,
    /// Time at which it reached its final status.
    pub ended: Option<u64>,
}

/// Body of a batch's object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub endpoint: String,
    pub input: InputRef,
    /// Principal of the batch, in the form of the answerer.
    pub principal: Value,
    pub metadata: Option<Value>,
    /// End of the window, in seconds since the epoch.
    pub due_unix_s: u64,
    pub status: Status,
    pub times: Times,
    pub counts: Counts,
    /// Bytes of the lines of the output file and of the error file.
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

/// A batch in the form for clients.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Id of the batch.
    pub id: String,
    /// Time of its creation.
    pub created_unix_s: u64,
    /// End of the window, in seconds since the epoch.
    pub due_unix_s: u64,
    /// Endpoint of its requests.
    pub endpoint: String,
    /// Location of the batch's lines.
    pub input: InputRef,
    /// Metadata from the client.
    pub metadata: Option<Value>,
    /// Progress of the batch.
    pub status: Status,
    /// Times of the batch's progress.
    pub times: Times,
    /// Numbers of lines by their results.
    pub counts: Counts,
    /// Id of the file of answers.
    pub output_file: Option<String>,
    /// Id of the file of errors.
    pub error_file: Option<String>,
    /// Reason of the failure.
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
