//! State of a worker: health, load, and whether it would refuse any request. Does not know its use.

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::{self, Load, RankReport};
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
    /// Ranks of the worker's model, if it is divided over processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankReport>,
}

/// Maximum number of block names in one line; a worker with more cached blocks does not report the rest.
pub const MAX_CACHE_NAMES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_sent_by_workers_that_have_them() {
        let older: Status = serde_json::from_str(r#"{"health": "ready"}"#).expect("known fields");
        assert_eq!(older.ranks, None);
        assert!(!serde_json::to_string(&older).expect("a line").contains("ranks"));
        let ranks =
            RankReport { tensor: 2, pipeline: 2, transport: "MPI".to_owned(), ..RankReport::default() };
        let divided = Status { ranks: Some(ranks), ..older };
        let line = serde_json::to_string(&divided).expect("a line");
        assert_eq!(serde_json::from_str::<Status>(&line).expect("its own"), divided);
        let newer = line.replacen(r#""tensor":2"#, r#""tensor":2,"a_new_field":[1]"#, 1);
        assert_eq!(serde_json::from_str::<Status>(&newer).expect("known fields"), divided);
    }
}
