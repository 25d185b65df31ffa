//! State of a worker: health, load, and whether it would refuse any request. Does not know its use.

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::{self, Load};
use throng_core::scheduling::block_pool::CacheNews;

use crate::WireError;

/// State of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether the worker answers.
    pub health: replica::Status,
    /// Load of the worker.
    #[serde(default)]
    pub load: Load,
    /// Reason why the worker would refuse any request now, however short.
    #[serde(default)]
    pub refuses: Option<WireError>,
    /// Changes of the prefix cache since the line before, only in lines of [`WATCH`](crate::WATCH). Workers
    /// that never send it do not report their caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheNews>,
}

/// Maximum number of block names in one line; a worker with more cached blocks does not report the rest.
pub const MAX_CACHE_NAMES: usize = 1 << 16;
