//! Upkeep of the ledger's hourly and daily totals: adds missing entries of an older version in the
//! background, an hour at a time, both from before the upgrade and from servers that still run it. Does not
//! know requests.

use std::time::Duration;

use throng_store::{Store, StoreError};
use tokio::time::Instant;

use super::now_unix_s;

const HOUR_S: u64 = 3_600;
/// Number of hours checked after the start of the server.
const N_HOURS_AT_START: u64 = 24;
/// Number of hours checked again whenever one has passed: entries may have waited in a journal.
const N_HOURS: u64 = 2;
/// Pause after a failure.
const REST: Duration = Duration::from_secs(60);

/// Progress of the upkeep.
#[derive(Debug)]
pub(super) struct Upkeep {
    /// Whether hours before the upgrade may lack totals.
    has_earlier: bool,
    /// Next hour to check, and the hour up to which to check.
    next_unix_s: u64,
    until_unix_s: u64,
    not_before: Instant,
}

impl Upkeep {
    pub fn new() -> Self {
        let until_unix_s = this_hour();
        let next_unix_s = until_unix_s.saturating_sub(N_HOURS_AT_START * HOUR_S);
        Self { has_earlier: true, next_unix_s, until_unix_s, not_before: Instant::now() }
    }

    /// Processes one hour, if there is one.
    pub async fn step(&mut self, store: &dyn Store) {
        if Instant::now() < self.not_before {
            return;
        }
        if let Err(error) = self.work(store).await {
            tracing::warn!(%error, "hours of the ledger cannot be added up now; questions about them read its entries");
            self.not_before = Instant::now() + REST;
        }
    }

    async fn work(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.has_earlier {
            self.has_earlier = store.make_earlier_totals().await?;
            return Ok(());
        }
        if self.next_unix_s < self.until_unix_s {
            store.repair_totals(self.next_unix_s).await?;
            self.next_unix_s += HOUR_S;
        } else if this_hour() > self.until_unix_s {
            self.until_unix_s = this_hour();
            self.next_unix_s = self.until_unix_s.saturating_sub(N_HOURS * HOUR_S);
        }
        Ok(())
    }
}

fn this_hour() -> u64 {
    now_unix_s() / HOUR_S * HOUR_S
}
