//! The last response of each lane of a connection, which can be continued even if no store keeps it. Does not
//! know sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_api::responses::Lane;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_state::responses::Past;

/// Conversations of a connection, each up to the end of its lane's last response.
#[derive(Debug)]
pub(crate) struct LanePasts {
    memory: Arc<MemoryBudget>,
    lanes: Mutex<BTreeMap<Lane, LanePast>>,
}

#[derive(Debug)]
struct LanePast {
    response: String,
    past: Past,
    _memory: Reservation,
}

impl LanePasts {
    /// Creates an empty memory of responses, whose later entries count in `memory`.
    pub fn new(memory: Arc<MemoryBudget>) -> Self {
        Self { memory, lanes: Mutex::default() }
    }

    /// The conversation up to the end of this response, if it is the last one of a lane.
    pub fn find(&self, response: &str) -> Option<Past> {
        self.lanes().values().find(|last| last.response == response).map(|last| last.past.clone())
    }

    /// Remembers the last response of a lane in place of the one before it, if there is memory for it.
    pub fn remember(&self, lane: &Lane, response: &str, past: Past) {
        let mut lanes = self.lanes();
        // Its memory is free for the new one.
        lanes.remove(lane);
        if let Ok(memory) = self.memory.reserve(Part::Prompts, past.n_bytes + past.trail.n_bytes()) {
            lanes.insert(lane.clone(), LanePast { response: response.to_owned(), past, _memory: memory });
        }
    }

    /// Removes the last response of a lane if it is this one: the response that continued it has failed.
    pub fn forget(&self, lane: &Lane, response: &str) {
        let mut lanes = self.lanes();
        if lanes.get(lane).is_some_and(|last| last.response == response) {
            lanes.remove(lane);
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<Lane, LanePast>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_its_last_response_where_there_is_memory_for_it() {
        let past = |n_bytes| Past {
            history: Vec::new().into(),
            trail: Arc::default(),
            kept: None,
            has_conversation: false,
            n_bytes,
        };
        let (pasts, lane) = (LanePasts::new(MemoryBudget::new(100)), Lane::named("a"));
        pasts.remember(&lane, "first", past(80));
        // Both together would not fit.
        pasts.remember(&lane, "second", past(90));
        assert!(pasts.find("first").is_none() && pasts.find("second").is_some());
        pasts.remember(&Lane::named("b"), "other", past(20));
        assert!(pasts.find("other").is_none() && pasts.find("second").is_some());
        pasts.forget(&lane, "first");
        assert!(pasts.find("second").is_some(), "another response failed");
        pasts.remember(&lane, "third", past(101));
        assert!(pasts.find("second").is_none() && pasts.find("third").is_none());
    }
}
