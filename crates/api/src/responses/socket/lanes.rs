//! Requests of one connection: those of a lane run one after another, those of different lanes concurrently.
//! Does not know the content of requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::error::ApiError;

/// Maximum number of named lanes of a connection.
const MAX_NAMED_LANES: usize = 32;
/// Maximum number of responses of a connection that are generated at a time.
const MAX_RUNNING: usize = 16;
/// Maximum number of requests of a connection that wait for others.
const MAX_WAITING: usize = 64;

/// A lane. Requests without a lane's name share the lane without a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane(Option<Arc<str>>);

impl Lane {
    /// The lane of this name.
    pub fn named(name: &str) -> Self {
        Self(Some(name.into()))
    }

    /// Name of the lane, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// The requests of a connection.
#[derive(Debug)]
pub struct Lanes<T> {
    /// Whether a request of each lane runs.
    is_running: BTreeMap<Lane, bool>,
    /// Waiting requests, in order of arrival.
    waiting: VecDeque<(Lane, T)>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { is_running: BTreeMap::new(), waiting: VecDeque::new() }
    }
}

impl<T> Lanes<T> {
    /// Whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.n_running() == 0 && self.waiting.is_empty()
    }

    fn n_running(&self) -> usize {
        self.is_running.values().filter(|is_running| **is_running).count()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// 400 beyond the number of lanes, 429 beyond the number of requests that wait.
    pub fn push(&mut self, lane: Lane, request: T) -> Result<(), ApiError> {
        let n_named = self.is_running.keys().filter(|lane| lane.name().is_some()).count();
        if lane.name().is_some() && n_named == MAX_NAMED_LANES && !self.is_running.contains_key(&lane) {
            return Err(ApiError::websocket_stream_limit_reached(MAX_NAMED_LANES));
        }
        if self.waiting.len() == MAX_WAITING {
            return Err(ApiError::websocket_queue_full(MAX_WAITING));
        }
        self.is_running.entry(lane.clone()).or_insert(false);
        self.waiting.push_back((lane, request));
        Ok(())
    }

    /// Takes the request that is to begin next, if one may begin now.
    pub fn start_next(&mut self) -> Option<(Lane, T)> {
        if self.n_running() == MAX_RUNNING {
            return None;
        }
        let next = self.waiting.iter().position(|(lane, _)| self.is_running.get(lane) == Some(&false))?;
        let (lane, request) = self.waiting.remove(next)?;
        self.is_running.insert(lane.clone(), true);
        Some((lane, request))
    }

    /// Notes that the running request of a lane has ended.
    pub fn end(&mut self, lane: &Lane) {
        if let Some(is_running) = self.is_running.get_mut(lane) {
            *is_running = false;
        }
    }

    /// Drops the requests that wait, with their lanes.
    pub fn drop_waiting(&mut self) -> Vec<(Lane, T)> {
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(lanes: &mut Lanes<u32>) -> Vec<u32> {
        std::iter::from_fn(|| lanes.start_next().map(|(_, request)| request)).collect()
    }

    #[test]
    fn a_lane_runs_in_order_and_lanes_run_beside_each_other() {
        let mut lanes = Lanes::default();
        for (lane, request) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
            lanes.push(Lane::named(lane), request).expect("room");
        }
        lanes.push(Lane::default(), 5).expect("room");
        assert_eq!(started(&mut lanes), [1, 3, 5]);
        lanes.end(&Lane::named("b"));
        assert!(started(&mut lanes).is_empty());
        lanes.end(&Lane::named("a"));
        assert_eq!(started(&mut lanes), [2]);
        lanes.end(&Lane::default());
        assert_eq!(lanes.drop_waiting().into_iter().map(|(_, request)| request).collect::<Vec<_>>(), [4]);
        assert!(!lanes.is_idle());
        lanes.end(&Lane::named("a"));
        assert!(lanes.is_idle());
    }

    #[test]
    fn lanes_and_requests_are_bounded() {
        let mut lanes = Lanes::default();
        for lane in 0..MAX_NAMED_LANES {
            lanes.push(Lane::named(&lane.to_string()), lane as u32).expect("room");
        }
        let refused = lanes.push(Lane::named("more"), 0).expect_err("too many lanes");
        assert_eq!(refused.code(), "websocket_stream_limit_reached");
        assert_eq!(started(&mut lanes).len(), MAX_RUNNING);
        while lanes.push(Lane::default(), 7).is_ok() {}
        assert_eq!(lanes.drop_waiting().len(), MAX_WAITING);
        assert_eq!(lanes.n_running(), MAX_RUNNING);
    }
}
