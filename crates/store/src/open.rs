//! Opens a database by its URL. Does not know SQL.

use std::path::Path;
use std::sync::Arc;

use crate::error::StoreError;
use crate::sql::SqlStore;
use crate::store::Store;

/// Location of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    File(&'a Path),
    Postgres(&'a str),
}

/// Opens a database and updates its schema: a SQLite file, `PATH` or `sqlite:PATH`, which is created if it
/// does not exist, or a PostgreSQL server, `postgres://USER:PASSWORD@HOST/DATABASE`.
///
/// # Errors
/// [`StoreError`], for example when a newer version of Throng has written it.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(match place_of(url)? {
        Place::File(path) => SqlStore::open_file(path).await?,
        Place::Postgres(url) => SqlStore::connect(url).await?,
    }))
}

/// Opens a database like [`open`], but refuses a file that does not exist, so that a mistyped path does not
/// create an empty database.
///
/// # Errors
/// [`StoreError`].
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    match place_of(url)? {
        Place::File(path) if !path.exists() => Err(StoreError::Missing { path: path.to_owned() }),
        _ => open(url).await,
    }
}

/// The file of a SQLite database; `None` for a server.
///
/// # Errors
/// When the URL is not that of a supported database.
pub fn file_of(url: &str) -> Result<Option<&Path>, StoreError> {
    Ok(match place_of(url)? {
        Place::File(path) => Some(path),
        Place::Postgres(_) => None,
    })
}

fn place_of(url: &str) -> Result<Place<'_>, StoreError> {
    let path = match url.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").unwrap_or(path),
        Some(("postgres" | "postgresql", _)) => return Ok(Place::Postgres(url)),
        // A single letter is a Windows drive.
        Some((scheme, _)) if scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Err(StoreError::UnsupportedDatabase { scheme: scheme.to_owned() });
        }
        _ => url,
    };
    if path.is_empty() { Err(StoreError::EmptyPath) } else { Ok(Place::File(Path::new(path))) }
}
