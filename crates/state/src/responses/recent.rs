//! Conversations up to recent responses, in the memory of the process: a turn does not read and parse items
//! that were made a moment ago. The database decides: entries that were deleted, changed or have expired
//! there are not used. Does not know how responses are made.

use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use throng_api::responses::{History, TokenTrail};

/// Maximum bytes of the conversations in memory.
const MAX_BYTES: u64 = 32 << 20;
/// Number of conversations for which the table has room at first.
const USUAL_CONVERSATIONS: usize = 1_000;
/// Bytes that each one counts for beside its items.
const ENTRY_BYTES: u64 = 512;

/// A conversation up to the end of a response, in memory.
#[derive(Debug, Clone)]
pub struct Past {
    /// Items of the conversation.
    pub history: History,
    /// Its tokens as far as they are kept.
    pub trail: Arc<TokenTrail>,
    /// The kept responses that it consists of, the oldest first; `None` where a part of it is not kept.
    pub kept: Option<Vec<KeptResponse>>,
    /// Whether it has items of a conversation, which can be deleted without a change of any response.
    pub has_conversation: bool,
    /// Approximate bytes of the items.
    pub n_bytes: usize,
}

/// A kept response, as it was when it was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResponse {
    /// Id of the response.
    pub id: String,
    /// Version of the response in the database.
    pub version: u64,
}

/// Conversations up to recent responses of all tenants.
#[derive(Debug)]
pub struct RecentPasts(Cache<Key, Arc<Past>, ByBytes>);

/// Ids of the tenant and of the response.
type Key = (Arc<str>, Arc<str>);

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Key, Arc<Past>> for ByBytes {
    fn weight(&self, (tenant, response): &Key, past: &Arc<Past>) -> u64 {
        let n_bytes = tenant.len() + response.len() + past.n_bytes + past.trail.n_bytes();
        ENTRY_BYTES + n_bytes as u64
    }
}

impl Default for RecentPasts {
    fn default() -> Self {
        // One shard: a conversation may then be as large as the whole, not only as a part for each processor.
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(USUAL_CONVERSATIONS)
            .weight_capacity(MAX_BYTES)
            .build()
            .expect("all capacities are set");
        Self(Cache::with_options(
            options,
            ByBytes,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ))
    }
}

impl RecentPasts {
    /// The conversation up to the end of a response. Only the database shows whether it is still valid.
    pub fn find(&self, tenant: &str, response: &str) -> Option<Arc<Past>> {
        self.0.get(&key(tenant, response))
    }

    /// Keeps a conversation in memory. The least used ones are removed for it.
    pub fn remember(&self, tenant: &str, response: &str, past: Past) {
        self.0.insert(key(tenant, response), Arc::new(past));
    }

    /// Removes a conversation from memory.
    pub fn forget(&self, tenant: &str, response: &str) {
        self.0.remove(&key(tenant, response));
    }
}

fn key(tenant: &str, response: &str) -> Key {
    (tenant.into(), response.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(n_bytes: usize) -> Past {
        Past {
            history: History::default(),
            trail: Arc::default(),
            kept: None,
            has_conversation: false,
            n_bytes,
        }
    }

    #[test]
    fn a_conversation_is_its_tenants_and_all_together_are_bounded() {
        let pasts = RecentPasts::default();
        pasts.remember("a", "r", past(10));
        assert!(pasts.find("a", "r").is_some() && pasts.find("b", "r").is_none());
        pasts.forget("a", "r");
        assert!(pasts.find("a", "r").is_none());
        for n in 0..100 {
            pasts.remember("a", &n.to_string(), past(4 << 20));
        }
        let n_bytes: usize =
            (0..100).filter_map(|n| pasts.find("a", &n.to_string())).map(|past| past.n_bytes).sum();
        assert!(n_bytes <= MAX_BYTES as usize && n_bytes > 0, "{n_bytes}");
    }
}
