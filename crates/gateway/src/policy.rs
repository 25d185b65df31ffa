//! State of the policies around every request.

use std::sync::Arc;
use std::time::Duration;

use throng_state::responses::{RecentPasts, Responses};

use crate::limits::RateLimits;
use crate::moderation::Moderation;
use throng_auth::ApiKeys;
use throng_cache::ResponseCache;
use throng_metering::ledger::Ledger;

/// Keys, limits, ledger, moderation and kept answers.
#[derive(Debug)]
pub(crate) struct Policy {
    /// API keys and tokens.
    pub keys: ApiKeys,
    /// Usage of the keys' limits.
    pub limits: Arc<RateLimits>,
    /// Ledger of usage, if there is a database.
    pub ledger: Option<Arc<Ledger>>,
    /// Moderation rules and classifier.
    pub moderation: Arc<Moderation>,
    /// The response cache.
    pub cache: Arc<ResponseCache>,
    /// Conversations up to recent responses, held in memory.
    pub recent: Arc<RecentPasts>,
}

impl Policy {
    /// Kept responses and conversations, if there is a database; new ones are kept for `retention`, or for
    /// ever without it.
    pub fn responses(&self, retention: Option<Duration>) -> Option<Responses> {
        let store = self.ledger.as_deref()?.store()?;
        Some(Responses::new(store.clone(), self.recent.clone(), retention))
    }
}
