//! Errors of databases and refused changes. No message contains a secret.

use std::path::PathBuf;

/// Error of a database, or reason why a change is refused.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kind of database is not supported by this build.
    #[error(
        "cannot use a database at {scheme}: use PATH, sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE"
    )]
    UnsupportedDatabase {
        /// Scheme of the URL.
        scheme: String,
    },
    /// The path of the database is empty.
    #[error("the path of the database is empty")]
    EmptyPath,
    /// The file does not exist.
    #[error("there is no database {}", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error("cannot make the database {}: {source}", path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The database belongs to another program.
    #[error("{place} is a database of another program")]
    Foreign {
        /// Location of the database.
        place: String,
    },
    /// The database was written by a newer version of Throng.
    #[error("{place} has schema version {found}, but this version of Throng knows {known} at most")]
    NewerSchema {
        /// Location of the database.
        place: String,
        /// Schema version of the database.
        found: i64,
        /// Newest schema version that this build supports.
        known: i64,
    },
    /// The URL of a database server is invalid.
    #[error("the URL of the database is not like postgres://USER:PASSWORD@HOST/DATABASE")]
    BadUrl,
    /// The database does not answer.
    #[error("the database does not answer")]
    NoAnswer,
    /// Backups of this kind of database need its own tools.
    #[error("copy a PostgreSQL database with pg_dump")]
    NoBackup,
    /// The database is damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The target of a backup already exists.
    #[error("{} exists already; a backup does not overwrite", path.display())]
    BackupExists {
        /// Name of the target.
        path: PathBuf,
    },
    /// No key has this id or prefix.
    #[error("there is no API key {0:?}")]
    UnknownKey(String),
    /// The organisation or project does not exist.
    #[error("there is no organisation or project {0:?}")]
    UnknownScope(String),
    /// Several keys begin with this prefix.
    #[error("several API keys have the prefix {0:?}: name the key by its id")]
    AmbiguousKey(String),
    /// A name, an expiry or a list is invalid.
    #[error("{field} must be {expected}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// The database has the maximum number of keys, which servers hold in memory.
    #[error("the database has {0} API keys, as many as it may have")]
    TooManyKeys(usize),
    /// A result has more rows than a query may return.
    #[error("the answer has more than {0} rows: ask for a shorter time or for wider buckets")]
    TooManyRows(usize),
    /// An object already exists, or has another version than the one to replace.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// The object or item does not exist.
    #[error("there is no such object")]
    UnknownObject,
    /// Another process has the lease of an object.
    #[error("another process has taken the object over")]
    LeaseLost,
    /// The tenant has reached its quota of objects or bytes.
    #[error("the tenant has as many objects or bytes as it may have")]
    Full,
    /// The operating system returned no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// The database rejects a ledger entry or an audit line as invalid.
    #[error("the database refuses an entry: {0}")]
    Refused(sqlx::Error),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}
