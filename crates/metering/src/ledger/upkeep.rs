//! Upkeep of the ledger's sums of hours and days: what an older version has written, before its upgrade or
//! beside this one, is added up in the background, an hour at a time. Does not know requests.

use std::time::Duration;

use throng_store::{Store, StoreError};
use tokio::time::Instant;

use super::now_unix_s;

const HOUR_S: u64 = 3_600;
/// Hours that are looked at when the server has started.
const N_HOURS_AT_START: u64 = 24;
/// Hours whose totals are made again when one has passed: entries may have waited in a journal.
const N_HOURS: u64 = 2;
/// Pause after a failure.
const REST: Duration = Duration::from_secs(60);

/// Progress of the upkeep.
#[derive(Debug)]
pub(super) struct Upkeep {
    /// Whether hours of before the upgrade may not be added up.
    has_earlier: bool,
    /// The next hour to look at, and the hour until which that is done.
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

    /// Does one hour's work, if there is some.
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
