//! Changes of the engine's prefix cache, for choosing replicas by their caches. Does not know the readers.

use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::block_pool::CacheEvent;

use super::EngineCore;

impl EngineCore {
    /// Takes the changes of the prefix cache since the last call; the first call returns the whole content.
    /// Calls do not change the engine's effects.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.scheduler.take_cache_events()
    }

    /// Names of all blocks that can be found in the prefix cache.
    pub fn cached_names(&self) -> Vec<BlockKey> {
        self.scheduler.pool().names()
    }
}
