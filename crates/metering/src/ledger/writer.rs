//! Writes the journal's entries into the database in batches. Retries entries that cannot be written now,
//! and sets aside entries that the database rejects. Does not know requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_store::{Journal, LedgerEntry, Slot, Store, StoreError};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::upkeep::Upkeep;
use super::{Ledger, Opened, now_unix_s, periods, scopes_of, spending, totals_by_scope};

/// Interval of writing entries.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of reading the day's totals, which include other servers' entries.
const DAY_INTERVAL: Duration = Duration::from_millis(400);
/// Interval of reading the month's totals.
const MONTH_INTERVAL: Duration = Duration::from_secs(5);
/// Divisor that limits the share of time spent reading totals.
const READING_SHARE: u32 = 10;
/// Maximum interval between two reads of totals.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of retries of a database that could not be written.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of entries written at once.
const BATCH: usize = 500;

/// Error of opening or writing the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The journal cannot be read or written.
    #[error("the journal of the ledger fails: {0}")]
    Journal(#[from] io::Error),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Interval of a repeated, slow task.
struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    fn new(interval: Duration) -> Self {
        Self { interval, next: Instant::now() + interval }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Schedules the next run after one that started at `began`.
    fn done(&mut self, began: Instant) {
        let now = Instant::now();
        self.next = now + self.interval.max((now - began) * READING_SHARE).min(MAX_INTERVAL);
    }
}

impl Ledger {
    /// Writes the entries that are left in the journal, reads past spending, and starts counting requests.
    /// The server starts even if a write fails.
    ///
    /// # Errors
    /// When past spending cannot be read.
    pub async fn open(&self, journal: Journal, store: Arc<dyn Store>) -> Result<(), LedgerError> {
        let n_left = journal.n_waiting();
        let _ = self.opened.set(Opened { journal: Arc::new(journal), store });
        let written = self.write().await;
        self.read_month().await?;
        match written {
            Ok(()) if n_left > 0 => {
                tracing::info!(entries = n_left, "the ledger has taken up what was not written before");
            }
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, entries = n_left, "the ledger cannot be written; entries wait in the journal");
            }
        }
        Ok(())
    }

    /// Writes the ledger. Logs when writing starts to fail and when it works again. Never returns.
    pub async fn follow(self: Arc<Self>) {
        let mut is_failing = false;
        let (mut day, mut month) = (Pace::new(DAY_INTERVAL), Pace::new(MONTH_INTERVAL));
        let mut probe = Pace::new(PROBE_INTERVAL);
        let mut upkeep = Upkeep::new();
        loop {
            tokio::time::sleep(WRITE_INTERVAL).await;
            let mut done = self.write().await;
            let began = Instant::now();
            if done.is_ok() && month.is_due() {
                done = self.read_month().await;
                month.done(began);
                day.done(began);
            } else if done.is_ok() && day.is_due() {
                done = self.read_day().await;
                day.done(began);
            }
            if probe.is_due() {
                done = done.and(self.probe().await);
                probe.done(Instant::now());
            }
            if let (Ok(()), Some(store)) = (&done, self.store()) {
                upkeep.step(&**store).await;
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

    /// Writes all waiting entries and audit lines.
    ///
    /// # Errors
    /// When the journal or the database fails; unwritten entries stay queued.
    pub async fn write(&self) -> Result<(), LedgerError> {
        let entries = self.write_entries().await;
        self.write_audit().await?;
        entries
    }

    /// Checks whether a database that could not be written can be written again, even without entries to
    /// write.
    async fn probe(&self) -> Result<(), LedgerError> {
        match self.store() {
            Some(store) if store.write_fault().is_some() => Ok(store.probe_write().await?),
            _ => Ok(()),
        }
    }

    async fn write_audit(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let mut batch = BATCH;
        loop {
            let lines = self.audit.next(batch);
            if lines.is_empty() {
                return Ok(());
            }
            match store.append_audit(&lines).await {
                Ok(()) => batch = BATCH,
                Err(StoreError::Refused(_)) if lines.len() > 1 => {
                    batch = lines.len() / 2;
                    continue;
                }
                Err(StoreError::Refused(error)) => {
                    tracing::error!(line = ?lines[0], %error, "a line of the audit is only here: the database refuses it");
                    self.n_refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
            self.audit.forget(lines.len());
        }
    }

    async fn write_entries(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { journal, store }) = self.opened.get() else { return Ok(()) };
        let mut batch = BATCH;
        loop {
            // Reading them would block threads that serve sockets for too long.
            let waiting = spawn_blocking({
                let journal = journal.clone();
                move || journal.waiting(batch)
            });
            let waiting = waiting.await.map_err(io::Error::other)??;
            let (slots, entries): (Vec<Slot>, Vec<LedgerEntry>) = waiting.into_iter().unzip();
            if slots.is_empty() {
                return Ok(());
            }
            match store.append(&entries).await {
                Ok(()) => batch = BATCH,
                // Bisects the batch until the rejected entry is found.
                Err(StoreError::Refused(_)) if entries.len() > 1 => {
                    batch = entries.len() / 2;
                    continue;
                }
                Err(StoreError::Refused(error)) => {
                    self.set_aside(journal, slots[0], &entries[0], &error.to_string())?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let mut accounts = self.accounts();
            for entry in &entries {
                accounts.wrote(&scopes_of(entry), spending(entry), periods::at(entry.at_unix_s));
            }
            drop(accounts);
            journal.forget(&slots)?;
        }
    }

    /// Sets aside an entry that the database rejects, so that other entries need not wait. Its spending
    /// still counts.
    fn set_aside(&self, journal: &Journal, slot: Slot, entry: &LedgerEntry, error: &str) -> io::Result<()> {
        self.n_refused.fetch_add(1, Ordering::Relaxed);
        tracing::error!(?entry, error, "an entry of the ledger is set aside: the database refuses it");
        if !journal.set_aside(slot)? {
            self.lose(entry, &io::Error::other("too many entries are set aside"));
        }
        Ok(())
    }

    /// Reads this month's spending.
    async fn read_month(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let now = periods::at(now_unix_s());
        let totals = store.daily_totals(periods::first_of_month(now.day)..u64::MAX).await?;
        self.accounts().read(totals_by_scope(&totals, now.day), now);
        Ok(())
    }

    /// Reads today's spending.
    async fn read_day(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let now = periods::at(now_unix_s());
        let totals = totals_by_scope(&store.daily_totals(now.day..now.day + 1).await?, now.day);
        self.accounts().read_day(totals.into_iter().map(|(scope, (day, _))| (scope, day)), now);
        Ok(())
    }
}
