//! Upload of a file, chunk by chunk. The file cannot be found before its last chunk was written, and expires
//! if that never arrives.

use throng_api::ApiError;
use throng_store::{NewItem, ObjectKind, ObjectWrite, StoredObject, now_unix_s};

use super::record::{File, FileRecord};
use crate::error::StateError;
use crate::id::new_id;
use crate::tenant::TenantState;

/// Bytes of a chunk, which is the part of an upload in memory.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Seconds after which an unfinished upload is deleted.
const UPLOAD_LIMIT_S: u64 = 6 * 60 * 60;
/// Longest file name, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// A file as the client describes it.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Name of the file.
    pub filename: String,
    /// Purpose of the file.
    pub purpose: String,
    /// Seconds until its deletion; `None` for never.
    pub expires_after_s: Option<u64>,
}

/// A file that is being uploaded.
#[derive(Debug)]
pub struct Upload {
    tenant: TenantState,
    object: StoredObject,
    kind: ObjectKind,
    max_bytes: u64,
    n_bytes: u64,
    n_chunks: u64,
    chunk: Vec<u8>,
}

impl Upload {
    /// Begins an upload of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// Errors of the database, such as that the tenant has too many objects.
    pub async fn begin(tenant: &TenantState, max_bytes: u64) -> Result<Self, StateError> {
        Self::begin_as(tenant, ObjectKind::File, "file-", max_bytes).await
    }

    pub(crate) async fn begin_as(
        tenant: &TenantState,
        kind: ObjectKind,
        prefix: &str,
        max_bytes: u64,
    ) -> Result<Self, StateError> {
        let now = now_unix_s();
        let key = tenant.key(kind, &new_id(prefix));
        let record = FileRecord {
            filename: String::new(),
            purpose: String::new(),
            n_bytes: 0,
            is_whole: false,
            results: None,
        };
        let made = ObjectWrite::create(key.clone(), now, record.write()?)
            .expiring(Some(now + UPLOAD_LIMIT_S))
            .within(tenant.quota());
        tenant.store().write_objects(&[made]).await?;
        let object = tenant.object(kind, &key.id, super::FILE).await?;
        let chunk = Vec::new();
        Ok(Self { tenant: tenant.clone(), object, kind, max_bytes, n_bytes: 0, n_chunks: 0, chunk })
    }

    /// Appends bytes to the upload.
    ///
    /// # Errors
    /// 413 beyond `max_bytes`; errors of the database.
    pub async fn push(&mut self, mut bytes: &[u8]) -> Result<(), StateError> {
        self.n_bytes += bytes.len() as u64;
        if self.n_bytes > self.max_bytes {
            let max_bytes = usize::try_from(self.max_bytes).unwrap_or(usize::MAX);
            return Err(ApiError::request_too_large(max_bytes).into());
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            if self.chunk.len() == CHUNK_BYTES {
                self.write_chunk().await?;
            }
            bytes = later;
        }
        Ok(())
    }

    async fn write_chunk(&mut self) -> Result<(), StateError> {
        let items = vec![NewItem { id: self.n_chunks.to_string(), body: std::mem::take(&mut self.chunk) }];
        self.n_chunks += 1;
        let append = ObjectWrite::append(self.object.key.clone(), items).within(self.tenant.quota());
        self.tenant.store().write_objects(&[append]).await?;
        Ok(())
    }

    /// Ends the upload, after which the file can be found.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn finish(mut self, new: NewFile) -> Result<File, StateError> {
        if !self.chunk.is_empty() {
            self.write_chunk().await?;
        }
        let created = self.object.created_unix_s;
        let expires = new.expires_after_s.map(|seconds| created.saturating_add(seconds));
        let expires = expires.into_iter().chain(self.tenant.expiry(created)).min();
        let mut filename = new.filename;
        filename.truncate(filename.floor_char_boundary(MAX_NAME_BYTES));
        let record = FileRecord {
            filename,
            purpose: new.purpose.clone(),
            n_bytes: self.n_bytes,
            is_whole: true,
            results: None,
        };
        let parent = Some(new.purpose).filter(|purpose| !purpose.is_empty());
        let whole = ObjectWrite::replace(&self.object, record.write()?)
            .with_parent(parent)
            .expiring(expires)
            .within(self.tenant.quota());
        self.tenant.store().write_objects(&[whole]).await?;
        let object = self.tenant.object(self.kind, &self.object.key.id, super::FILE).await?;
        Ok(File::new(&object, record))
    }

    /// Deletes the unfinished upload.
    pub async fn abandon(self) {
        // Else it expires.
        let _ = self.tenant.store().delete_object(&self.object.key).await;
    }
}
