//! Connects the gateway with the database: its keys, at the start and after each change, and the ledger
//! with its journal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_gateway::{AccessConfig, Ledger, Loading};
use throng_store::{Journal, file_of, open};

use crate::usage_error::UsageError;

/// Time limit for writing the last ledger entries at shutdown.
const LAST_WRITE_LIMIT: Duration = Duration::from_secs(2);

/// Opens the database, reads its keys, opens the ledger, and keeps both current while the server runs. Does
/// nothing without a database.
///
/// # Errors
/// When the database or the journal cannot be used.
pub async fn follow(access: &AccessConfig, loading: &Loading) -> Result<Option<Arc<Ledger>>> {
    let (Some(keys), Some(ledger)) = (loading.stored_keys(), loading.ledger()) else { return Ok(None) };
    let Some(database) = access.database.as_deref() else { return Ok(None) };
    let store = open(database).await.context("cannot use the database of keys")?;
    keys.refresh(&*store).await.context("cannot read the keys")?;
    tokio::spawn(keys.follow(store.clone()));
    let stem = match &access.ledger_journal {
        Some(path) => path.clone(),
        None => default_stem(database)?,
    };
    let journal = Journal::open(&stem)
        .with_context(|| format!("cannot use the journal of the ledger {}", stem.display()))?;
    ledger.open(journal, store).await.context("cannot write the ledger")?;
    tokio::spawn(ledger.clone().follow());
    Ok(Some(ledger))
}

/// Writes the last ledger and audit entries at shutdown. Ledger entries that cannot be written now stay in
/// the journal.
pub async fn finish(ledger: Option<Arc<Ledger>>) {
    let Some(ledger) = ledger else { return };
    match tokio::time::timeout(LAST_WRITE_LIMIT, ledger.write()).await {
        Ok(Ok(())) => {}
        _ => tracing::warn!(
            "the database does not answer: the last entries of the ledger stay in the journal until the next start, and the last \
             lines of the audit are in the log only"
        ),
    }
}

/// Path of the journal without extension: beside a SQLite file; for a database server, in the user's state
/// folder.
fn default_stem(database: &str) -> Result<PathBuf> {
    if let Some(file) = file_of(database)? {
        return Ok(PathBuf::from(format!("{}-ledger", file.display())));
    }
    let folder = std::env::var_os("STATE_DIRECTORY").map(PathBuf::from).or_else(|| {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        Some(state.or_else(home)?.join("throng"))
    });
    let folder =
        folder.ok_or_else(|| UsageError("name a file with --ledger-journal: HOME is not set".to_owned()))?;
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    Ok(folder.join("ledger"))
}
