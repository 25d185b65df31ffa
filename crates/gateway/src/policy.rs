//! The policy around every request.

use std::sync::Arc;

use crate::auth::ApiKeys;
use crate::ledger::Ledger;
use crate::limits::RateLimits;
use crate::moderation::Moderation;
use throng_cache::ResponseCache;

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
}
