//! State of the policies around every request.

use std::sync::Arc;
use std::time::Duration;

use throng_state::responses::Responses;

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
    /// Usage of the keys' limits.
    pub limits: Arc<RateLimits>,
    /// Ledger of usage, if there is a database.
    pub ledger: Option<Arc<Ledger>>,
    /// Moderation rules and classifier.
    pub moderation: Arc<Moderation>,
    /// Cache of answers.
    pub cache: Arc<ResponseCache>,
    /// Time for which responses are kept; `None` for ever.
    pub response_retention: Option<Duration>,
}

impl Policy {
    /// Kept responses and conversations, if there is a database.
    pub fn responses(&self) -> Option<Responses> {
        let store = self.ledger.as_deref()?.store()?;
        Some(Responses::new(store.clone(), self.response_retention))
    }
}
