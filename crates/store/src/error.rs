//! Why a database cannot be used or a change is refused. No message has a secret in it.

use std::path::PathBuf;

/// Reason why a database cannot be used or a change is refused.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A database of a kind that this build does not know.
    #[error(
        "cannot use a database at {scheme}: use PATH, sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE"
    )]
    UnsupportedDatabase {
        /// The part of the URL before the colon.
        scheme: String,
    },
    /// The path of the database is empty.
    #[error("the path of the database is empty")]
    EmptyPath,
    /// The file does not exist.
    #[error("there is no database {}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be made.
    #[error("cannot make the database {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A database of another program.
    #[error("{place} is a database of another program")]
    Foreign {
        /// The database.
        place: String,
    },
    /// A newer version of Throng has written the database.
    #[error("{place} has schema version {found}, but this version of Throng knows {known} at most")]
    NewerSchema {
        /// The database.
        place: String,
        /// Its version.
        found: i64,
        /// The newest version that is known.
        known: i64,
    },
    /// The URL of a database server cannot be read.
    #[error("the URL of the database is not like postgres://USER:PASSWORD@HOST/DATABASE")]
    BadUrl,
    /// The database does not answer.
    #[error("the database does not answer")]
    NoAnswer,
    /// The database has backups of its own.
    #[error("copy a PostgreSQL database with pg_dump")]
    NoBackup,
    /// The database is damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The target of a backup is there already.
    #[error("{} exists already; a backup does not overwrite", path.display())]
    BackupExists {
        /// The target.
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
    /// A name, an expiry or a list is out of its range.
    #[error("{field} must be {expected}")]
    Invalid {
        /// The executor.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// There are as many keys as a server holds in memory.
    #[error("the database has {0} API keys, as many as it may have")]
    TooManyKeys(usize),
    /// An answer has more rows than are read at once.
    #[error("the answer has more than {0} rows: ask for a shorter time or for wider buckets")]
    TooManyRows(usize),
    /// An object is there already, or has another version than the one that was to be replaced.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// There is no such object or item.
    #[error("there is no such object")]
    UnknownObject,
    /// Another process does the work of an object.
    #[error("another process has taken the object over")]
    LeaseLost,
    /// A tenant has as many objects or bytes as it may have.
    #[error("the tenant has as many objects or bytes as it may have")]
    Full,
    /// The system has no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// The database cannot take an entry of the ledger or a line of the audit.
    #[error("the database refuses an entry: {0}")]
    Refused(sqlx::Error),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}
