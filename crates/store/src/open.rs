//! The choice of a database by its URL. Does not know SQL.

use std::path::Path;
use std::sync::Arc;

use crate::error::StoreError;
use crate::sqlite::SqliteStore;
use crate::store::Store;

/// Opens a database, `PATH` or `sqlite:PATH`, makes it when it is not there, and brings its schema to the newest version.
///
/// # Errors
/// [`StoreError`], among others when a newer version of Throng has written it.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(SqliteStore::open(path_of(url)?).await?))
}

/// As [`open`], but refuses a database that is not there, so that a mistyped path is not taken for an empty database.
///
/// # Errors
/// [`StoreError`].
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let path = path_of(url)?;
    if !path.exists() {
        return Err(StoreError::Missing { path: path.to_owned() });
    }
    open(url).await
}

fn path_of(url: &str) -> Result<&Path, StoreError> {
    let path = match url.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").unwrap_or(path),
        // A single letter is a drive.
        Some((scheme, _)) if scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Err(StoreError::UnsupportedDatabase { scheme: scheme.to_owned() });
        }
        _ => url,
    };
    if path.is_empty() {
        return Err(StoreError::EmptyPath);
    }
    Ok(Path::new(path))
}
