//! Files of a tenant: uploaded in chunks, or built from the results of a batch. No file is in memory as a
//! whole.

mod content;
mod record;
mod upload;

use throng_store::{ListOrder, ObjectKind, ObjectWrite, StoredObject};

pub use content::Content;
pub use record::File;
use record::FileRecord;
pub use upload::{CHUNK_BYTES, NewFile, Upload};

use crate::error::StateError;
use crate::results::{ResultPart, ResultsOf, delete_results};
use crate::tenant::{Page, TenantState};

/// Name of a file in sentences.
pub(crate) const FILE: &str = "file";

/// A page of a tenant's files.
#[derive(Debug, Clone)]
pub struct FileQuery {
    /// Purpose of the listed files; `None` for all.
    pub purpose: Option<String>,
    /// Id of the file after which the page begins.
    pub after: Option<String>,
    /// Order of the files.
    pub order: ListOrder,
    /// Maximum number of files of the page.
    pub limit: usize,
}

/// Reads the metadata of a file.
///
/// # Errors
/// [`StateError::NotFound`], also while it is being uploaded.
pub async fn get(tenant: &TenantState, id: &str) -> Result<File, StateError> {
    let (object, record) = find(tenant, id).await?;
    Ok(File::new(&object, record))
}

/// Lists files, except unreadable and unfinished ones.
///
/// # Errors
/// [`StateError::NotFound`] for an unknown `after`.
pub async fn list(tenant: &TenantState, query: &FileQuery) -> Result<Page<File>, StateError> {
    let (parent, after) = (query.purpose.as_deref(), query.after.as_deref());
    let page = tenant.page(ObjectKind::File, FILE, (parent, after), query.order, query.limit).await?;
    Ok(page.filter_map(|object| {
        let record = FileRecord::read(&object).ok().filter(|record| record.is_whole)?;
        Some(File::new(&object, record))
    }))
}

/// Opens a file's content.
///
/// # Errors
/// [`StateError::NotFound`].
pub async fn content(tenant: &TenantState, id: &str) -> Result<(File, Content), StateError> {
    let (object, record) = find(tenant, id).await?;
    let content = Content::of(tenant, &object, &record);
    Ok((File::new(&object, record), content))
}

/// Deletes a file with its content or the results that it shows.
///
/// # Errors
/// [`StateError::NotFound`].
pub async fn delete(tenant: &TenantState, id: &str) -> Result<(), StateError> {
    let (object, record) = find(tenant, id).await?;
    if let Some(results) = &record.results {
        delete_results(tenant, results).await?;
    }
    tenant.store().delete_object(&object.key).await?;
    Ok(())
}

/// Write that creates a file from a batch's results.
pub(crate) fn of_results(
    tenant: &TenantState,
    id: &str,
    created_unix_s: u64,
    results: ResultsOf,
    n_bytes: u64,
) -> Result<ObjectWrite, StateError> {
    let name = match results.part {
        ResultPart::Output => "output",
        ResultPart::Errors => "error",
    };
    let record = FileRecord {
        filename: format!("{}_{name}.jsonl", results.batch),
        purpose: "batch_output".to_owned(),
        n_bytes,
        is_whole: true,
        results: Some(results),
    };
    let made = ObjectWrite::create(tenant.key(ObjectKind::File, id), created_unix_s, record.write()?);
    Ok(made.with_parent(Some(record.purpose)))
}

async fn find(tenant: &TenantState, id: &str) -> Result<(StoredObject, FileRecord), StateError> {
    let object = tenant.object(ObjectKind::File, id, FILE).await?;
    let record = FileRecord::read(&object)?;
    if record.is_whole {
        Ok((object, record))
    } else {
        Err(StateError::NotFound { what: FILE, id: id.to_owned() })
    }
}
