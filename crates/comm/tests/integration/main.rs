//! Ranks as threads of one process over one shared memory: results, their bits, and ranks that are lost.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

mod collectives;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use throng_comm::Deadline;
use throng_comm::shared::{Membership, SharedHost};

/// Long enough for any machine.
fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

/// Runs `body` as each rank on a thread of its own, and returns what they return in order of rank.
fn run_ranks<T: Send>(
    n_ranks: usize,
    groups: &[Vec<usize>],
    body: impl Fn(usize, Membership) -> T + Sync,
) -> Vec<T> {
    let host = SharedHost::create(n_ranks, groups).expect("there is memory");
    std::thread::scope(|scope| {
        let (host, body) = (&host, &body);
        let rank = |rank| scope.spawn(move || body(rank, Arc::clone(host).join(rank).expect("a thread")));
        let threads: Vec<_> = (0..n_ranks).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
