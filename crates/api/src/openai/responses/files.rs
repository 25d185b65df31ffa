//! Files and batches in OpenAI's form. Names are those of its Python library, version 3.

use serde::Serialize;
use serde_json::Value;

/// A kept file, as its endpoints return it.
#[derive(Debug, Clone, Serialize)]
pub struct FileObject {
    /// Id of the file.
    pub id: String,
    /// `file`.
    pub object: &'static str,
    /// Size of the content in bytes.
    pub bytes: u64,
    /// Creation time, in seconds since 1970.
    pub created_at: u64,
    /// Deletion time, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// Name of the file.
    pub filename: String,
    /// Purpose of the file.
    pub purpose: String,
    /// `processed`.
    pub status: &'static str,
}

/// Number of a batch's lines by result.
#[derive(Debug, Clone, Serialize)]
pub struct RequestCounts {
    /// Number of lines.
    pub total: u64,
    /// Number of lines with an answer.
    pub completed: u64,
    /// Number of lines with an error.
    pub failed: u64,
}

/// Errors of a failed batch.
#[derive(Debug, Clone, Serialize)]
pub struct BatchErrors {
    /// `list`.
    pub object: &'static str,
    /// Errors of the batch.
    pub data: Vec<BatchError>,
}

/// An error of a whole batch.
#[derive(Debug, Clone, Serialize)]
pub struct BatchError {
    /// Error code.
    pub code: String,
    /// Number of the invalid line.
    pub line: Option<u64>,
    /// Message, a sentence for people.
    pub message: String,
    /// Invalid parameter.
    pub param: Option<String>,
}

/// A batch, as its endpoints return it.
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
    /// Id of the first entry.
    pub first_id: Option<String>,
    /// Id of the last entry.
    pub last_id: Option<String>,
    /// Whether more entries follow.
    pub has_more: bool,
}

impl<T> ObjectList<T> {
    /// Creates a page of a list. `id_of` returns an entry's id.
    pub fn new(data: Vec<T>, has_more: bool, id_of: impl Fn(&T) -> &str) -> Self {
        let id = |entry: Option<&T>| entry.map(|entry| id_of(entry).to_owned());
        Self { object: "list", first_id: id(data.first()), last_id: id(data.last()), has_more, data }
    }
}

/// A deleted object.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedObject {
    /// Id of the object.
    pub id: String,
    /// Kind of the object.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}
