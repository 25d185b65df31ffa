//! From the journal into the database, in batches, for ever: what cannot be written now is written later. Does not know requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use throng_store::{Journal, Store, StoreError};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{Ledger, Opened, now_unix_s, periods, scopes_of, spending, totals_by_scope};

/// How often entries are written.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// How often the totals of the ledger are read, in which the entries of other servers are.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Most entries that are written at once.
const BATCH: usize = 500;

/// Why the ledger cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The journal cannot be read or written.
    #[error("the journal of the ledger fails: {0}")]
    Journal(#[from] io::Error),
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Ledger {
    /// Writes what the journal has from before and reads what has been spent; from now on requests are counted.
    ///
    /// # Errors
    /// When the journal or the database fails.
    pub async fn open(&self, journal: Journal, store: Arc<dyn Store>) -> Result<(), LedgerError> {
        let n_left = journal.n_waiting();
        let _ = self.opened.set(Opened { journal: Arc::new(journal), store });
        self.write().await?;
        self.read().await?;
        if n_left > 0 {
            tracing::info!(entries = n_left, "the ledger has taken up what was not written before");
        }
        Ok(())
    }

    /// Writes the ledger for ever. The log says when that begins to fail and when it works again.
    pub async fn follow(self: Arc<Self>) {
        let (mut is_failing, mut read_at) = (false, Instant::now());
        loop {
            tokio::time::sleep(WRITE_INTERVAL).await;
            let mut done = self.write().await;
            if done.is_ok() && read_at.elapsed() >= READ_INTERVAL {
                read_at = Instant::now();
                done = self.read().await;
            }
            match done {
                Ok(()) if is_failing => {
                    is_failing = false;
                    tracing::info!("the ledger is written again");
                }
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(%error, "the ledger cannot be written; entries wait in the journal");
                }
                _ => {}
            }
        }
    }

    /// Writes all entries and lines of the audit that wait.
    ///
    /// # Errors
    /// When the journal or the database fails; what is not written waits on.
    pub async fn write(&self) -> Result<(), LedgerError> {
        let entries = self.write_entries().await;
        self.write_audit().await?;
        entries
    }

    async fn write_audit(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        loop {
            let lines = self.audit.next();
            if lines.is_empty() {
                return Ok(());
            }
            store.append_audit(&lines).await?;
            self.audit.forget(lines.len());
        }
    }

    async fn write_entries(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { journal, store }) = self.opened.get() else { return Ok(()) };
        loop {
            // Reading them takes longer than threads that serve sockets may be kept.
            let waiting = spawn_blocking({
                let journal = journal.clone();
                move || journal.waiting(BATCH)
            });
            let (n_slots, entries) = waiting.await.map_err(io::Error::other)??;
            if n_slots == 0 {
                return Ok(());
            }
            store.append(&entries).await?;
            let mut accounts = self.accounts();
            for entry in &entries {
                accounts.wrote(&scopes_of(entry), spending(entry), periods::at(entry.at_unix_s));
            }
            drop(accounts);
            journal.forget(n_slots)?;
        }
    }

    /// Reads what has been spent.
    async fn read(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let now = periods::at(now_unix_s());
        let totals = store.daily_totals(periods::first_of_month(now.day)).await?;
        self.accounts().read(totals_by_scope(&totals, now.day), now);
        Ok(())
    }
}
