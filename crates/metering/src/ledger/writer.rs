//! From the journal into the database, in batches, for ever: what cannot be written now is written later, and
//! what the database cannot take is set aside. Does not know requests.

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
/// Interval of reading the totals of the day, in which the entries of other servers are.
const DAY_INTERVAL: Duration = Duration::from_millis(400);
/// Interval at which the totals of the month are read.
const MONTH_INTERVAL: Duration = Duration::from_secs(5);
/// Most of the time that reading may take.
const READING_SHARE: u32 = 10;
/// Longest interval between two of them.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of trying a database that could not be written.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Most entries that are written at once.
const BATCH: usize = 500;

/// Reason why the ledger cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The journal cannot be read or written.
    #[error("the journal of the ledger fails: {0}")]
    Journal(#[from] io::Error),
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Pace of something that is done again and takes a while.
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

    /// Time at which it was begun.
    fn done(&mut self, began: Instant) {
        let now = Instant::now();
        self.next = now + self.interval.max((now - began) * READING_SHARE).min(MAX_INTERVAL);
    }
}

impl Ledger {
    /// Writes what the journal has from before and reads what has been spent; from now on requests are
    /// counted. What cannot be written now does not keep the server from starting.
    ///
    /// # Errors
    /// When what has been spent cannot be read.
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

    /// Writes the ledger for ever. The log says when that begins to fail and when it works again.
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

    /// Writes all entries and lines of the audit that wait.
    ///
    /// # Errors
    /// When the journal or the database fails; what is not written waits on.
    pub async fn write(&self) -> Result<(), LedgerError> {
        let entries = self.write_entries().await;
        self.write_audit().await?;
        entries
    }

    /// Whether a database that could not be written can be written again: nothing else may be there to write.
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
            // Reading them takes longer than threads that serve sockets may be kept.
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
                // Fewer and fewer, until the one is found.
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

    /// The database cannot take an entry: nobody else waits for it. It stays spent in the budgets.
    fn set_aside(&self, journal: &Journal, slot: Slot, entry: &LedgerEntry, error: &str) -> io::Result<()> {
        self.n_refused.fetch_add(1, Ordering::Relaxed);
        tracing::error!(?entry, error, "an entry of the ledger is set aside: the database refuses it");
        if !journal.set_aside(slot)? {
            self.lose(entry, &io::Error::other("too many entries are set aside"));
        }
        Ok(())
    }

    /// Reads what has been spent in this month.
    async fn read_month(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let now = periods::at(now_unix_s());
        let totals = store.daily_totals(periods::first_of_month(now.day)..u64::MAX).await?;
        self.accounts().read(totals_by_scope(&totals, now.day), now);
        Ok(())
    }

    /// Reads what has been spent today.
    async fn read_day(&self) -> Result<(), LedgerError> {
        let _alone = self.writing.lock().await;
        let Some(Opened { store, .. }) = self.opened.get() else { return Ok(()) };
        let now = periods::at(now_unix_s());
        let totals = totals_by_scope(&store.daily_totals(now.day..now.day + 1).await?, now.day);
        self.accounts().read_day(totals.into_iter().map(|(scope, (day, _))| (scope, day)), now);
        Ok(())
    }
}
