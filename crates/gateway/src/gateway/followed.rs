//! What is kept up to date by tasks while a gateway serves: keys, the ledger, shared limits. Does not know
//! how.

use std::sync::Arc;

use super::Loading;
use crate::auth::{IssuerKeys, StoredKeys};
use crate::limits::SharedLimits;
use throng_metering::ledger::Ledger;

impl Loading {
    /// The keys of the database, to be read from it and to follow it; `None` without a configured database.
    pub fn stored_keys(&self) -> Option<StoredKeys> {
        self.shared.keys.clone()
    }

    /// The keys of the tokens' issuer, to be read and followed; `None` without a configured one.
    pub fn issuer_keys(&self) -> Option<IssuerKeys> {
        self.shared.issuer_keys.clone()
    }

    /// The ledger, to be opened over the database; `None` without a configured one.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.shared.ledger.clone()
    }

    /// Begins to share the limits of keys through the Redis of the configuration; `None` where there is none.
    /// Redis need not be there yet.
    ///
    /// # Errors
    /// When its URL cannot be understood, or its certificates cannot be read.
    pub fn share_limits(&self) -> Result<Option<SharedLimits>, String> {
        let access = &self.config.access;
        let start = |url| SharedLimits::start(url, access.redis_ca.as_deref(), self.shared.limits.clone());
        access.redis.as_ref().map(start).transpose()
    }
}
