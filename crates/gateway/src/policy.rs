//! The policy around every request.

use std::sync::Arc;
use std::time::Duration;

use throng_state::responses::{RecentPasts, Responses};

use crate::auth::ApiKeys;
use crate::limits::RateLimits;
use crate::moderation::Moderation;
use throng_cache::ResponseCache;
use throng_metering::ledger::Ledger;

/// Keys, limits, ledger, moderation and kept answers.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Keys and tokens.
    pub keys: ApiKeys,
    /// The use of the keys' limits.
    pub limits: Arc<RateLimits>,
    /// Ledger of usage, where there is a database.
    pub ledger: Option<Arc<Ledger>>,
    /// Texts that are not to be sent.
    pub moderation: Arc<Moderation>,
    /// Answers that were generated before.
    pub cache: Arc<ResponseCache>,
    /// Conversations up to recent responses.
    pub recent: Arc<RecentPasts>,
}

impl Policy {
    /// The kept responses and conversations, where there is a database; new ones are kept for `retention`,
    /// without one for ever.
    pub fn responses(&self, retention: Option<Duration>) -> Option<Responses> {
        let store = self.ledger.as_deref()?.store()?;
        Some(Responses::new(store.clone(), self.recent.clone(), retention))
    }
}
