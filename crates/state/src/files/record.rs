//! Metadata of a file.

use serde::{Deserialize, Serialize};
use throng_store::StoredObject;

use crate::error::StateError;
use crate::results::ResultsOf;

/// A file in the form for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Id of the file.
    pub id: String,
    /// Name of the uploaded file.
    pub filename: String,
    /// Purpose of the file.
    pub purpose: String,
    /// Bytes of its content.
    pub n_bytes: u64,
    /// Time of its creation.
    pub created_unix_s: u64,
    /// Time of its deletion; `None` for never.
    pub expires_unix_s: Option<u64>,
}

impl File {
    pub(crate) fn new(object: &StoredObject, record: FileRecord) -> Self {
        Self {
            id: object.key.id.clone(),
            filename: record.filename,
            purpose: record.purpose,
            n_bytes: record.n_bytes,
            created_unix_s: object.created_unix_s,
            expires_unix_s: object.expires_unix_s,
        }
    }
}

/// Body of a file's object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub filename: String,
    pub purpose: String,
    pub n_bytes: u64,
    /// Whether the upload has ended.
    pub is_whole: bool,
    /// Results that are the content; otherwise it is the object's items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<ResultsOf>,
}

impl FileRecord {
    pub fn read(object: &StoredObject) -> Result<Self, StateError> {
        serde_json::from_slice(&object.body).map_err(|_| StateError::Unreadable(object.key.id.clone()))
    }

    pub fn write(&self) -> Result<Vec<u8>, StateError> {
        serde_json::to_vec(self).map_err(|_| StateError::Unreadable(self.filename.clone()))
    }
}
