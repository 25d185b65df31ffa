//! Replicas that a request was submitted to, and whether they may be tried again. Does not send requests.

use crate::fleet::routing::ReplicaId;

/// Maximum number of replicas that one request is submitted to, except those that ended after a token of
/// it. A request that makes every replica fail harms no more than these, and a failure of many replicas
/// does not multiply the work.
const MAX_REPLICAS_TRIED: usize = 3;

/// Whether another replica may be tried after one has failed or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Permitted outside the retry budget: a retry of a request whose process has ended adds no load.
    Free,
    /// Permitted within the retry budget, since other requests may fail in the same way.
    Paid,
    /// Forbidden: the maximum number of replicas was tried.
    Never,
}

/// The replicas that a request was submitted to.
#[derive(Debug, Default)]
pub struct Tried {
    /// Number of submissions that count.
    n: usize,
    /// Replicas that run the request, refused it or failed at it.
    known: Vec<ReplicaId>,
    /// Replicas whose process ended. A process that replaced one can be tried when no other replica is left.
    ended: Vec<ReplicaId>,
}

impl Tried {
    /// Whether one more replica may be tried.
    pub fn may_ask(&self) -> bool {
        self.n < MAX_REPLICAS_TRIED
    }

    /// All replicas that were tried.
    pub fn all(&self) -> Vec<ReplicaId> {
        self.known.iter().chain(&self.ended).copied().collect()
    }

    /// Replicas that are never tried again, and the one that ended last.
    pub fn refusing(&self) -> Vec<ReplicaId> {
        self.known.iter().chain(self.ended.last()).copied().collect()
    }

    /// Replicas that run the request, refused it or failed at it.
    pub fn known(&self) -> &[ReplicaId] {
        &self.known
    }

    /// Notes that a replica did not take the request, because it `has_ended` or for another reason.
    /// `was_there`: it was expected to answer.
    pub fn refuse(&mut self, id: ReplicaId, has_ended: bool, was_there: bool) -> Retry {
        match (has_ended, was_there) {
            (true, true) => self.end(id),
            (true, false) => self.miss(id),
            // What others refuse or fail at must not double the load of the rest.
            (false, _) => return Retry::Paid,
        }
        Retry::Free
    }

    /// Notes that a replica had no room for the request, and may have some later.
    pub fn release(&mut self, id: ReplicaId) {
        self.known.retain(|known| *known != id);
        self.n = self.n.saturating_sub(1);
    }

    /// Notes that a replica could not be reached.
    fn miss(&mut self, id: ReplicaId) {
        self.end(id);
        self.n = self.n.saturating_sub(1);
    }

    /// Notes that the request is submitted to this replica.
    pub fn ask(&mut self, id: ReplicaId) {
        self.n += 1;
        self.known.push(id);
    }

    /// Notes that the process of this replica has ended.
    pub fn end(&mut self, id: ReplicaId) {
        self.known.retain(|known| *known != id);
        self.ended.retain(|ended| *ended != id);
        self.ended.push(id);
    }

    /// Notes that the process of this replica has ended after a token of the request: earlier submissions
    /// do not count any more.
    pub fn outlive(&mut self, id: ReplicaId) {
        *self = Self { n: 1, known: Vec::new(), ended: vec![id] };
    }
}
