//! Which replica of several a request goes to: one that answers, with the least load. Does not know what requests ask
//! for.

use std::sync::Arc;

use super::Replica;

/// The index of the replica that a request goes to next; `None` when those in `tried` are all there are. Replicas that
/// answer come first, then those with fewer sequences, then those with the smaller index.
pub(crate) fn choose(replicas: &[Arc<dyn Replica>], tried: &[usize]) -> Option<usize> {
    let untried = (0..replicas.len()).filter(|idx| !tried.contains(idx));
    untried.min_by_key(|&idx| (replicas[idx].status(), replicas[idx].load().n_sequences()))
}
