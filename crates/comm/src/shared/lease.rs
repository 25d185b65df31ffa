//! Leases of ranks: each rank increments a counter while its process runs, so that others notice when it is
//! stopped. Does not know why ranks wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::SharedHost;
use crate::{CommError, Loss};

/// Time between two renewals.
const RENEWAL: Duration = Duration::from_millis(100);
/// Time after a rank's last observed renewal after which it counts as lost.
const LEASE: Duration = Duration::from_millis(1_500);

/// The lease of this process's rank; when it is dropped, the rank has ended.
#[derive(Debug)]
pub(super) struct Lease {
    host: Weak<SharedHost>,
    rank: usize,
    /// Ends the thread when it is dropped.
    ending: Option<Sender<()>>,
    renewing: Option<JoinHandle<()>>,
}

fn heartbeat(host: &SharedHost, rank: usize) -> &AtomicU32 {
    &host.memory.flags()[host.layout.heartbeat(rank)]
}

fn ended(host: &SharedHost, rank: usize) -> &AtomicU32 {
    &host.memory.flags()[host.layout.ended(rank)]
}

pub(super) fn note_end(host: &SharedHost, rank: usize) {
    ended(host, rank).store(1, Ordering::SeqCst);
    // Whoever sleeps looks again.
    for group_idx in 0.. {
        let Some(members) = host.layout.members(group_idx) else { break };
        for member in 0..members.len() {
            let [rounds, _] = host.layout.rounds(group_idx, member);
            throng_os::shared_memory::wake_all(&host.memory.flags()[rounds]);
        }
    }
    for peer in 0..host.layout.n_ranks() {
        let boxes = [host.layout.mailbox_flags(rank, peer), host.layout.mailbox_flags(peer, rank)];
        for [flag, _] in boxes.into_iter().flatten() {
            throng_os::shared_memory::wake_all(&host.memory.flags()[flag]);
        }
    }
}

impl Lease {
    pub(super) fn begin(host: &Arc<SharedHost>, rank: usize) -> Result<Arc<Self>, CommError> {
        let (ending, end) = channel();
        heartbeat(host, rank).store(1, Ordering::SeqCst);
        let renewed = Arc::clone(host);
        let renew = move || {
            // Lower priority would not do: a busy machine must not look like a stopped process.
            while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(RENEWAL) {
                let flag = heartbeat(&renewed, rank);
                // 0 means that the rank has not joined.
                let next = flag.load(Ordering::Relaxed).wrapping_add(1).max(1);
                flag.store(next, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new().name(format!("throng-lease-{rank}"));
        let renewing = Some(thread.spawn(renew)?);
        Ok(Arc::new(Self { host: Arc::downgrade(host), rank, ending: Some(ending), renewing }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.ending.take());
        if let Some(renewing) = self.renewing.take() {
            // The thread cannot panic, and ends at once.
            let _ = renewing.join();
        }
        if let Some(host) = self.host.upgrade() {
            note_end(&host, self.rank);
        }
    }
}

/// Watches the leases of other ranks while this one waits.
#[derive(Debug)]
pub(super) struct Watch {
    /// Last observed renewal of each rank, with the time of its first observation.
    seen: Vec<(u32, Instant)>,
}

impl Watch {
    pub(super) fn new(n_ranks: usize) -> Self {
        Self { seen: vec![(0, Instant::now()); n_ranks] }
    }

    /// Fails if the rank has ended or its lease has expired. `waiting_since` is the time at which this wait
    /// began: earlier observations do not count, since no rank was watched in between.
    pub(super) fn check(
        &mut self,
        host: &SharedHost,
        rank: usize,
        waiting_since: Instant,
    ) -> Result<(), CommError> {
        if ended(host, rank).load(Ordering::SeqCst) != 0 {
            return Err(CommError::PeerLost { rank, how: Loss::Ended });
        }
        let beat = heartbeat(host, rank).load(Ordering::Acquire);
        let now = Instant::now();
        let (seen, since) = &mut self.seen[rank];
        if *seen != beat || *since < waiting_since {
            (*seen, *since) = (beat, now.max(waiting_since));
        } else if beat != 0 && now.duration_since(*since) > LEASE {
            return Err(CommError::PeerLost { rank, how: Loss::Stopped });
        }
        Ok(())
    }
}
