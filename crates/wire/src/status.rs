//! How a worker is at present: whether it answers, how busy it is, whether it would refuse any request. Does
//! not know how this is shown and who decides by it.

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::{self, Load};
use throng_core::scheduling::block_pool::CacheNews;

use crate::WireError;

/// State of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether it answers.
    pub health: replica::Status,
    /// Its load.
    #[serde(default)]
    pub load: Load,
    /// Reason why it would refuse any request now, however short.
    #[serde(default)]
    pub refuses: Option<WireError>,
    /// Changes of its prefix cache since the line before, in lines of [`WATCH`](crate::WATCH) only. Workers
    /// that never say anything here do not tell what they have cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheNews>,
}

/// Most names of blocks in one line; a worker with more cached blocks does not name the rest.
pub const MAX_CACHE_NAMES: usize = 1 << 16;
