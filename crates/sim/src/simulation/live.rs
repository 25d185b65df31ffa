//! A running request: its place at the gateway, its attempts, and the tokens that its client has got.

use std::sync::Arc;

use throng_core::fleet::limits::Reservation;
use throng_core::fleet::overload;
use throng_core::fleet::{Attempt, Failover, Tried};
use throng_core::request::{RequestId, SamplingParams, TokenId};
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::time::Timestamp;
use throng_core::timeline::latency::TokenClock;

use crate::workload::TimedRequest;

/// Name of a request that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub slot: u32,
    pub generation: u32,
}

/// A request that has not ended. What each token reads stands in front.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Live {
    /// Number of the request, in order of sending.
    pub number: u64,
    pub clock: TokenClock,
    /// Number of output tokens that have been passed on since the client's last attempt.
    pub n_passed: u32,
    pub state: State,
    pub timed: TimedRequest,
    pub tokens: Arc<[TokenId]>,
    pub sampling: Arc<SamplingParams>,
    /// Names of the blocks of its prompt, where a choice depends on them.
    pub blocks: Vec<BlockKey>,
    /// Number of the client's retries.
    pub n_retries: u32,
    pub n_failovers: u32,
    /// Number of these tokens that were reported to the failover.
    pub n_noted: u32,
    pub cached_tokens: u32,
    pub is_prompt_done: bool,
    /// Time at which the gateway took it in.
    pub received: Timestamp,
    pub first_step: Option<Timestamp>,
    pub reservation: Option<Reservation>,
    pub ticket: Option<overload::Ticket>,
    /// Whether a replica has admitted the request since the client's last attempt.
    pub was_taken_in: bool,
    pub tried: Tried,
    pub failover: Option<Failover>,
    pub first_refusal: Option<Failure>,
    /// Index of the replica that was tried last.
    pub last_replica: Option<u32>,
}

/// State of a request.
#[derive(Debug)]
pub(super) enum State {
    /// The request is at its client, on its way to the gateway, or in a stage in front of the replicas.
    Outside,
    /// The request is at a replica, or on its way there.
    Asking(Running),
    /// Waits for a replica to come back until this time.
    Waiting { until: Timestamp },
}

/// An attempt at a replica.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Running {
    pub id: RequestId,
    pub has_answered: bool,
    /// Whether the replica was expected to answer.
    pub was_there: bool,
    /// Whether the request waited for a replica to come back before.
    pub is_back: bool,
    /// Index of the replica.
    pub replica: usize,
    pub attempt: Attempt,
    pub began: Timestamp,
    /// Time at which the gateway is notified of the request's admission.
    pub taken_in: Option<Timestamp>,
    /// Time until which the request waits for a replica if this one refuses it.
    pub until: Option<Timestamp>,
    /// Time at which the replica took it in.
    pub submitted: Timestamp,
}

/// Reason why a replica does not finish a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub kind: FailureKind,
    /// Whether another replica may succeed.
    pub is_retryable: bool,
}

/// Kinds of failure that the gateway distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    QueueFull,
    NeverFits,
    QueuedTooLong,
    Failed,
    Unhealthy,
    Stopped,
}

impl FailureKind {
    /// Whether the replica has stopped.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Stopped)
    }

    /// Whether the failure counts against the replica.
    pub fn is_judged(self) -> bool {
        matches!(self, Self::Failed | Self::Unhealthy)
    }
}

/// The requests that have not ended.
#[derive(Debug, Default)]
pub(super) struct Slab {
    slots: Vec<(u32, Option<Box<Live>>)>,
    free: Vec<u32>,
    n_live: usize,
}

impl Slab {
    pub fn insert(&mut self, live: Live) -> Key {
        self.n_live += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(Box::new(live));
        Key { slot, generation: *generation }
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&Live> {
        let (generation, live) = self.slots.get(key.slot as usize)?;
        live.as_deref().filter(|_| *generation == key.generation)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Live> {
        let (generation, live) = self.slots.get_mut(key.slot as usize)?;
        live.as_deref_mut().filter(|_| *generation == key.generation)
    }

    /// The request of an attempt, whichever attempt it has now.
    #[inline]
    pub fn of_attempt(&self, id: RequestId) -> Option<&Live> {
        self.slots.get(slot_of(id) as usize)?.1.as_deref()
    }

    #[inline]
    pub fn of_attempt_mut(&mut self, id: RequestId) -> Option<(Key, &mut Live)> {
        let slot = slot_of(id);
        let (generation, live) = self.slots.get_mut(slot as usize)?;
        Some((Key { slot, generation: *generation }, live.as_deref_mut()?))
    }

    pub fn remove(&mut self, key: Key) -> Option<Live> {
        let (generation, live) = self.slots.get_mut(key.slot as usize)?;
        if *generation != key.generation {
            return None;
        }
        let live = live.take()?;
        *generation += 1;
        self.free.push(key.slot);
        self.n_live -= 1;
        Some(*live)
    }

    pub fn len(&self) -> usize {
        self.n_live
    }

    /// All requests, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Live)> {
        self.slots.iter().enumerate().filter_map(|(slot, (generation, live))| {
            Some((Key { slot: slot as u32, generation: *generation }, live.as_deref()?))
        })
    }
}

/// The id of an attempt: its number, and the slot of its request.
pub(super) fn attempt_id(number: u32, key: Key) -> RequestId {
    RequestId(u64::from(number) << 32 | u64::from(key.slot))
}

fn slot_of(id: RequestId) -> u32 {
    id.0 as u32
}

impl Live {
    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Asking(running) => Some(running),
            State::Outside | State::Waiting { .. } => None,
        }
    }

    pub fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.state {
            State::Asking(running) => Some(running),
            State::Outside | State::Waiting { .. } => None,
        }
    }

    /// Whether `id` is the present attempt of the request.
    #[inline]
    pub fn runs(&self, id: RequestId) -> bool {
        self.running().is_some_and(|running| running.id == id)
    }

    /// Time since the gateway took it in.
    pub fn age(&self, now: Timestamp) -> std::time::Duration {
        std::time::Duration::from_nanos(now.since(self.received).0)
    }
}
