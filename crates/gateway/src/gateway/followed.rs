//! State that tasks keep up to date while a gateway serves: keys, the ledger, shared limits. Does not know
//! the tasks.

use std::sync::Arc;

use super::Loading;
use crate::limits::SharedLimits;
use throng_auth::{IssuerKeys, StoredKeys};
use throng_metering::ledger::Ledger;

impl Loading {
    /// Keys of the database, for a task that follows it; `None` without a configured database.
    pub fn stored_keys(&self) -> Option<StoredKeys> {
        self.shared.keys.clone()
    }

    /// Keys of the token issuer, for a task that reads them; `None` without a configured one.
    pub fn issuer_keys(&self) -> Option<IssuerKeys> {
        self.shared.issuer_keys.clone()
    }

    /// The ledger, for a task that opens it over the database; `None` without a configured one.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.shared.ledger.clone()
    }

    /// Starts sharing the limits of keys through the configured Redis, which may be unavailable; `None`
    /// without one.
    ///
    /// # Errors
    /// When the URL of Redis is invalid, or the certificates cannot be read.
    pub fn share_limits(&self) -> Result<Option<SharedLimits>, String> {
        let access = &self.config.access;
        let start = |url| SharedLimits::start(url, access.redis_ca.as_deref(), self.shared.limits.clone());
        access.redis.as_ref().map(start).transpose()
    }
}
