//! Leases of the ranks of a job: each one sends every other one a byte at short intervals, so that a rank
//! that is stopped, or cut off, is noticed by those that wait for it and by those that do not. Does not know
//! other messages.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination, Source};

use super::members::Members;
use crate::{CommError, Loss};

/// Tag of these messages. Those of groups are lower.
const TAG: i32 = 32_000;
/// Time between two renewals.
const RENEWAL: Duration = Duration::from_millis(100);
/// Time after a rank's last renewal after which it is lost. A packet that a network loses three times is
/// repeated within it.
const LEASE: Duration = Duration::from_millis(1_700);
/// Time for the first renewal: connections are made when they are first used.
const FIRST: Duration = Duration::from_secs(60);
/// A longer pause of this thread is its own fault, and not held against others.
const OWN_PAUSE: Duration = Duration::from_millis(300);
/// Longest time for the last messages.
const LAST: Duration = Duration::from_secs(1);

static ALIVE: [u8; 1] = [1];
static LEFT: [u8; 1] = [2];

type Sending = Request<'static, [u8; 1], StaticScope>;

/// The leases of the other ranks, and the renewals of this one.
pub(super) struct Leases {
    members: Arc<Members>,
    peers: Vec<Peer>,
}

struct Peer {
    rank: usize,
    /// Time until which the rank is believed to be there.
    until: Instant,
    /// The newest renewal, until MPI has taken it.
    sending: Option<Sending>,
}

impl Leases {
    pub(super) fn new(members: &Arc<Members>) -> Self {
        let until = Instant::now() + FIRST;
        let others = (0..members.n_ranks()).filter(|&rank| rank != members.rank);
        let peers = others.map(|rank| Peer { rank, until, sending: None }).collect();
        Self { members: Arc::clone(members), peers }
    }

    /// Renews this rank's lease and watches those of others, until the sender of `end` is dropped. Ends the
    /// process if a rank is lost.
    pub(super) fn renew_until(&mut self, end: &Receiver<()>) {
        let mut last = Instant::now();
        loop {
            self.send(&ALIVE);
            self.receive();
            self.check();
            if !matches!(end.recv_timeout(RENEWAL), Err(RecvTimeoutError::Timeout)) {
                return;
            }
            // While this process was stopped, it received nothing.
            let pause = last.elapsed();
            if pause > OWN_PAUSE {
                self.peers.iter_mut().for_each(|peer| peer.until += pause - RENEWAL);
            }
            last = Instant::now();
        }
    }

    /// Sends a byte to each rank that has taken the one before.
    fn send(&mut self, byte: &'static [u8; 1]) {
        let world = SimpleCommunicator::world();
        for peer in &mut self.peers {
            peer.sending = peer.sending.take().and_then(|sending| sending.test().err());
            if peer.sending.is_none() && !self.members.has_left(peer.rank) {
                let process = world.process_at_rank(peer.rank as i32);
                peer.sending = Some(process.immediate_send_with_tag(StaticScope, byte, TAG));
            }
        }
    }

    fn receive(&mut self) {
        let world = SimpleCommunicator::world();
        while let Some((message, status)) = world.any_process().immediate_matched_probe_with_tag(TAG) {
            let rank = status.source_rank() as usize;
            let (byte, _) = message.matched_receive::<u8>();
            if byte == LEFT[0] {
                self.members.note_left(rank);
            }
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == rank) {
                peer.until = Instant::now() + LEASE;
            }
        }
    }

    fn check(&self) {
        let now = Instant::now();
        let is_lost = |peer: &&Peer| peer.until < now && !self.members.has_left(peer.rank);
        if let Some(&Peer { rank, .. }) = self.peers.iter().find(is_lost) {
            self.members.end_process(&CommError::PeerLost { rank, how: Loss::Stopped });
        }
    }

    /// Tells all ranks that this one leaves.
    pub(super) fn leave(&mut self) {
        let since = Instant::now();
        for message in [&ALIVE, &LEFT] {
            self.send(message);
            while self.peers.iter().any(|peer| peer.sending.is_some()) && since.elapsed() < LAST {
                std::thread::sleep(Duration::from_millis(1));
                for peer in &mut self.peers {
                    peer.sending = peer.sending.take().and_then(|sending| sending.test().err());
                }
            }
        }
        // A rank that takes nothing is lost, or gone; its byte is static.
        self.peers.drain(..).for_each(|peer| std::mem::forget(peer.sending));
    }
}
