//! What the engine's prefix cache has, for those who choose replicas by it. Does not know who reads.

use crate::scheduling::block_pool::CacheEvent;

use super::EngineCore;

impl EngineCore {
    /// Changes of the prefix cache since the last call; the first one begins with all that there is. It
    /// decides nothing: an engine that is never asked has the same effects.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.scheduler.take_cache_events()
    }
}
