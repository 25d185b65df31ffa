//! Files and batches as OpenAI's API shows them. Names are those of its Python library, version 3.

use serde::Serialize;
use serde_json::Value;

/// A file.
#[derive(Debug, Clone, Serialize)]
pub struct FileObject {
    /// Its id.
    pub id: String,
    /// `file`.
    pub object: &'static str,
    /// Bytes of its content.
    pub bytes: u64,
    /// Time of its creation.
    pub created_at: u64,
    /// When it is deleted.
    pub expires_at: Option<u64>,
    /// Its name.
    pub filename: String,
    /// Its purpose.
    pub purpose: String,
    /// `processed`.
    pub status: &'static str,
}

/// Lines of a batch by their results.
#[derive(Debug, Clone, Serialize)]
pub struct RequestCounts {
    /// All.
    pub total: u64,
    /// With an answer.
    pub completed: u64,
    /// With an error.
    pub failed: u64,
}

/// Why a batch failed.
#[derive(Debug, Clone, Serialize)]
pub struct BatchErrors {
    /// `list`.
    pub object: &'static str,
    /// The errors.
    pub data: Vec<BatchError>,
}

/// An error of a whole batch.
#[derive(Debug, Clone, Serialize)]
pub struct BatchError {
    /// Its short name.
    pub code: String,
    /// The line at fault.
    pub line: Option<u64>,
    /// The sentence for people.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
}

/// A batch.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are those of OpenAI's API")]
pub struct BatchObject {
    pub id: String,
    pub object: &'static str,
    pub endpoint: String,
    pub errors: Option<BatchErrors>,
    pub input_file_id: String,
    pub completion_window: &'static str,
    pub status: &'static str,
    pub output_file_id: Option<String>,
    pub error_file_id: Option<String>,
    pub created_at: u64,
    pub in_progress_at: Option<u64>,
    pub expires_at: u64,
    pub finalizing_at: Option<u64>,
    pub completed_at: Option<u64>,
    pub failed_at: Option<u64>,
    pub expired_at: Option<u64>,
    pub cancelling_at: Option<u64>,
    pub cancelled_at: Option<u64>,
    pub request_counts: RequestCounts,
    pub metadata: Option<Value>,
}

/// A page of a list.
#[derive(Debug, Clone, Serialize)]
pub struct ObjectList<T> {
    /// `list`.
    pub object: &'static str,
    /// Entries of the page.
    pub data: Vec<T>,
    /// Id of the first of these.
    pub first_id: Option<String>,
    /// Id of the last of these.
    pub last_id: Option<String>,
    /// Whether there is more after them.
    pub has_more: bool,
}

impl<T> ObjectList<T> {
    /// A page of a list, whose entries have these ids.
    pub fn new(data: Vec<T>, has_more: bool, id_of: impl Fn(&T) -> &str) -> Self {
        let id = |entry: Option<&T>| entry.map(|entry| id_of(entry).to_owned());
        Self { object: "list", first_id: id(data.first()), last_id: id(data.last()), has_more, data }
    }
}

/// Something that was deleted.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedObject {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub object: &'static str,
    /// Always.
    pub deleted: bool,
}
