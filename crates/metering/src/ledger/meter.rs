//! Usage of one request, counted while it runs. Does not know when it ends.

use std::sync::Arc;
use std::time::Instant;

use throng_core::fleet::limits::BudgetReservation;
use throng_store::{LedgerEntry, Outcome, Slot};

use super::{Ledger, now_unix_s, periods, spending};

/// Usage of one request. Dropping it ends the request.
#[derive(Debug)]
pub struct Meter {
    ledger: Arc<Ledger>,
    entry: LedgerEntry,
    reservation: Option<BudgetReservation>,
    began: Instant,
    has_begun: bool,
    slot: Option<Slot>,
    /// Number of output tokens of answers that have not ended.
    n_running: u64,
}

impl Meter {
    /// Creates the meter of a request that may run, with its slot in the journal, if any.
    pub(super) fn new(
        ledger: Arc<Ledger>,
        entry: LedgerEntry,
        reservation: BudgetReservation,
        slot: Option<Slot>,
    ) -> Self {
        let reservation = Some(reservation);
        Self { ledger, entry, reservation, began: Instant::now(), has_begun: false, slot, n_running: 0 }
    }

    /// Records that the request has reached an engine; from now on it gets a ledger entry.
    pub fn begin(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        // If this write fails, the one at the request's end may succeed.
        if let (Some(slot), Some(journal)) = (self.slot, self.ledger.journal()) {
            let _ = journal.begin(slot);
        }
    }

    /// Counts a prompt that was computed or found in the prefix cache.
    pub fn prompt(&mut self, n_tokens: u64, n_cached: u64) {
        let entry = &mut self.entry;
        entry.prompt_tokens = entry.prompt_tokens.saturating_add(n_tokens);
        entry.cached_tokens = entry.cached_tokens.saturating_add(n_cached);
        self.note();
    }

    /// Counts an output token.
    pub fn token(&mut self) {
        self.n_running += 1;
        self.note();
    }

    /// Records the end of an answer with `n_tokens` tokens, of which `n_seen` were counted before.
    pub fn answer_ended(&mut self, n_tokens: u64, n_seen: u64) {
        self.entry.generated_tokens = self.entry.generated_tokens.saturating_add(n_tokens);
        self.n_running = self.n_running.saturating_sub(n_seen);
        self.note();
    }

    /// Ends the request; its entry then waits for the database.
    pub fn end(&mut self, outcome: Outcome) {
        let Some(reservation) = self.reservation.take() else { return };
        let now = now_unix_s();
        let n_running = std::mem::take(&mut self.n_running);
        self.entry.generated_tokens = self.entry.generated_tokens.saturating_add(n_running);
        self.entry.at_unix_s = now;
        self.entry.outcome = outcome;
        self.entry.latency_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        // The spending is settled before the entry can be written, so that it never counts twice.
        self.ledger.accounts().settle(reservation, spending(&self.entry), periods::at(now));
        if !self.has_begun {
            if let (Some(slot), Some(journal)) = (self.slot.take(), self.ledger.journal()) {
                journal.give_back(slot);
            }
            return;
        }
        if let Some(journal) = self.ledger.journal()
            && let Err(error) = journal.end(self.slot, &self.entry)
        {
            self.ledger.lose(&self.entry, &error);
        }
    }

    fn note(&self) {
        let Self { entry, .. } = self;
        if let (Some(slot), Some(journal)) = (self.slot, self.ledger.journal()) {
            let generated = entry.generated_tokens.saturating_add(self.n_running);
            // All counts are written again at the request's end.
            let _ = journal.count(slot, entry.prompt_tokens, entry.cached_tokens, generated);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.end(Outcome::Abort);
    }
}
