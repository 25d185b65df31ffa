//! Counts the attempts of a request at engines that take text, whose answers cannot be resumed elsewhere.

use super::tried::Retry;
use crate::fleet::routing::ReplicaId;

/// Maximum number of engines that a request is sent to, each at most once.
const MAX_ATTEMPTS: usize = 3;
/// Maximum number of further gateways that reject a request because none of their engines is in a permitted
/// region.
const MAX_TURNED_AWAY: usize = 16;

/// The engines that a request was sent to.
#[derive(Debug, Default)]
pub struct Attempts {
    tried: Vec<ReplicaId>,
    n_turned_away: usize,
}

impl Attempts {
    /// Engines that were tried, which are not tried again.
    pub fn tried(&self) -> &[ReplicaId] {
        &self.tried
    }

    /// Notes that the request is sent to this engine.
    pub fn ask(&mut self, id: ReplicaId) {
        self.tried.push(id);
    }

    /// Notes that the last engine, a gateway, turned the request away; `false` if that happened so often
    /// that it counts as a failure.
    pub fn turn_away(&mut self) -> bool {
        let is_free = self.n_turned_away < MAX_TURNED_AWAY;
        self.n_turned_away += usize::from(is_free);
        is_free
    }

    /// Whether another engine may be tried after the last one has failed; if its connection was lost, the
    /// next attempt is no retry.
    pub fn retry(&self, is_lost: bool) -> Retry {
        if self.tried.len() - self.n_turned_away >= MAX_ATTEMPTS {
            Retry::Never
        } else if is_lost {
            Retry::Free
        } else {
            Retry::Paid
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::routing::{Policy, PrefixIndex, Router};

    #[test]
    fn a_few_failures_end_it_and_gateways_that_turn_it_away_do_not() {
        let mut router = Router::new(Policy::default(), 0);
        let mut next = || router.add("engine", PrefixIndex::Inferred, 0);
        let mut attempts = Attempts::default();
        for _ in 0..MAX_TURNED_AWAY {
            attempts.ask(next());
            assert!(attempts.turn_away());
        }
        for (is_lost, retry) in [(true, Retry::Free), (false, Retry::Paid), (true, Retry::Never)] {
            attempts.ask(next());
            assert!(!attempts.turn_away(), "too many have");
            assert_eq!(attempts.retry(is_lost), retry);
        }
        assert_eq!(attempts.tried().len(), MAX_TURNED_AWAY + MAX_ATTEMPTS);
    }
}
