//! The scheduler, which chooses the tokens of each sequence in the next step. There is no prefill and no
//! decode phase: each sequence has `n_computed`, which catches up with its tokens (as in vLLM V1). Decides
//! when work is done, never its result. Does not know a clock, threads and the meaning of tokens.

mod ahead;
mod beams;
mod budget;
mod complete;
mod config;
mod drafts;
mod encoding;
mod event;
mod fairness;
mod losses;
mod media;
mod pause;
mod plain;
mod plan;
mod restoring;
mod shares;
mod states;
mod stats;
mod step_time;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use config::{SchedulerConfig, SchedulingPolicy, SpeculationMethod};
pub use event::{Event, Failure, Step};
pub use fairness::{MaskReport, SLOW_MASKS, SLOW_MASKS_REMEMBERED};
pub use stats::{Counters, SchedulerStats};
pub use step_time::{StepShape, StepTimeModel};

use crate::request::{FinishReason, Priority, Request, RequestId, SequenceId};
use crate::scheduling::admission::{Admission, QueueBound, Refusal};
use crate::scheduling::batch::{BlockId, ScheduledBatch};
use crate::scheduling::block_hash::BlockHash;
use crate::scheduling::block_pool::{BlockPool, CacheEvent};
use crate::scheduling::block_store::BlockStore;
use crate::scheduling::block_table::blocks_for;
use crate::scheduling::executor::ExecutorCapacity;
use crate::scheduling::sequence::{Finished, Paused, Rank, Running, Sequence, Waiting};
use crate::time::Timestamp;
use beams::BeamProgress;
use encoding::EncodingTime;
use fairness::{LowShareTenants, SlowMasks, WaitingQueue};
use losses::Losses;

/// Receiver of events.
pub type Emit<'a> = dyn FnMut(Event<'_>) + 'a;

/// Plans steps. [`Scheduler::plan`] begins a step; [`Scheduler::complete`], [`Scheduler::fail`] or
/// [`Scheduler::discard`] ends it. Steps end in the order in which they began.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    admission: Admission,
    queue: QueueBound,
    pool: BlockPool,
    waiting: WaitingQueue,
    light: LowShareTenants,
    slow_masks: SlowMasks,
    /// Running sequences, in the order in which their tenants' turns came; the sequences of one tenant are
    /// ordered by rank among its places. Each has blocks; most have a share of each step.
    running: Vec<Sequence<Running>>,
    /// Sequences whose readers are behind.
    paused: BTreeMap<SequenceId, Sequence<Paused>>,
    /// Beams without blocks that wait for other beams.
    idle_beams: BTreeMap<SequenceId, Sequence<Waiting>>,
    requests: BTreeMap<RequestId, Progress>,
    step_time: StepTimeModel,
    /// Durations of passes of the executor's draft model.
    draft_time: StepTimeModel,
    /// Durations of parts of the work on pictures.
    encoding_time: EncodingTime,
    /// Number of passes of the draft model.
    n_draft_passes: u64,
    /// Number of steps since the last pass of the draft model.
    n_steps_without_pass: u64,
    n_planned: u64,
    last_step_ended: Timestamp,
    n_arrivals: u64,
    counters: Counters,
    /// Batches of the latest steps, at most as many as steps in flight, reused once no executor reads them.
    batches: Vec<Arc<ScheduledBatch>>,
    /// Whether decoding sequences get shares without content.
    has_plain_shares: bool,
    /// Whether the step that is being completed ends a sequence.
    has_ending: bool,
    /// Sequences whose end is still to be reported.
    ended: Vec<Sequence<Finished>>,
    /// Hits of a look-up; emptied after each use.
    hits: Vec<BlockId>,
    deferred: Vec<Sequence<Waiting>>,
    failed: Vec<(RequestId, Failure)>,
    complete_beams: Vec<RequestId>,
}

/// State of a request beyond its sequences.
#[derive(Debug)]
struct Progress {
    request: Arc<Request>,
    arrival: u64,
    /// Number of sequences that have not ended.
    n_live: usize,
    /// Whether the request has left the queue.
    started: bool,
    prompt_done: bool,
    /// Number of prompt tokens whose log-probability was reported; the first token has none.
    n_prompt_reported: usize,
    beams: Option<BeamProgress>,
    losses: Losses,
}

impl Progress {
    /// Whether the whole prompt must be computed, because its log-probabilities are requested.
    fn needs_whole_prompt(&self) -> bool {
        self.request.sampling.prompt_logprobs.is_some() && !self.prompt_done
    }
}

/// Number of tokens to compute before the next output token, without the one that each decoding sequence has.
fn prefilling_tokens(sequence: &Sequence<Running>) -> usize {
    (sequence.tokens().len() - 1).saturating_sub(sequence.n_computed())
}

impl Scheduler {
    /// Creates a scheduler for an executor of this capacity.
    pub fn new(config: SchedulerConfig, capacity: ExecutorCapacity) -> Self {
        let config = config.within(&capacity);
        let capacity = ExecutorCapacity {
            max_batch_tokens: config.max_batch_tokens,
            max_batch_sequences: config.max_batch_sequences,
            ..capacity
        };
        let max_queued_tokens = usize::try_from(config.max_queued_tokens).unwrap_or(usize::MAX);
        let admission = Admission::new(capacity);
        let batches = (0..admission.max_steps_in_flight()).map(|_| Arc::default()).collect();
        Self {
            admission,
            queue: QueueBound::new(config.max_queued_requests as usize, max_queued_tokens),
            pool: BlockPool::new(capacity.n_blocks).with_states(capacity.n_state_slots).with_eviction(
                config.eviction,
                if config.prefix_caching { config.max_marked_percent } else { 0 },
            ),
            waiting: WaitingQueue::default(),
            light: LowShareTenants::default(),
            slow_masks: SlowMasks::default(),
            running: Vec::with_capacity(config.max_batch_sequences as usize),
            paused: BTreeMap::new(),
            idle_beams: BTreeMap::new(),
            requests: BTreeMap::new(),
            step_time: StepTimeModel::default(),
            draft_time: StepTimeModel::default(),
            encoding_time: EncodingTime::default(),
            n_draft_passes: 0,
            n_steps_without_pass: 0,
            n_planned: 0,
            last_step_ended: Timestamp::default(),
            n_arrivals: 0,
            counters: Counters::default(),
            batches,
            has_plain_shares: false,
            has_ending: false,
            hits: Vec::new(),
            deferred: Vec::new(),
            failed: Vec::new(),
            complete_beams: Vec::new(),
            ended: Vec::new(),
            config,
        }
    }

    /// Takes a request in; all its continuations wait for their turn.
    ///
    /// # Errors
    /// When the request can never run, or too much waits.
    ///
    /// # Panics
    /// When a request with this id has not ended yet.
    pub fn submit(&mut self, request: Request, now: Timestamp) -> Result<(), Refusal> {
        self.admission.check(&request)?;
        self.queue.enter(request.n_queued_tokens())?;
        if self.is_idle() {
            self.waiting.forget_service();
        }
        let request = Arc::new(request);
        let arrival = self.n_arrivals;
        self.n_arrivals += 1;
        let priority = self.priority(&request);
        let root = if self.config.prefix_caching {
            let adapter = request.adapter.map(|adapter| adapter.digest);
            BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter)
        } else {
            BlockHash::private_root(request.id)
        };
        let beams = BeamProgress::new(&request, self.admission.max_sequence_tokens());
        // A search begins with one sequence.
        let n_first = if beams.is_some() { 1 } else { request.n as usize };
        let mut n_live = 0;
        for (index, _) in request.continuations().take(n_first) {
            let rank = Rank { priority, arrival, index: if beams.is_some() { 0 } else { index } };
            let mut sequence = Sequence::new(Arc::clone(&request), rank, root, now);
            if n_live == 0 {
                self.hits.clear();
                sequence.find_cached(&self.pool, &mut self.hits);
                self.pool.note_awaited(&self.hits, now);
            }
            match sequence.ending(self.admission.max_sequence_tokens()) {
                None => self.waiting.insert(sequence),
                // Its last token was reported before, its end was not: the next plan reports it.
                Some(reason) => self.ended.push(sequence.finish(reason, now)),
            }
            n_live += 1;
        }
        let progress = Progress {
            arrival,
            n_live,
            started: false,
            prompt_done: request.is_resumed(),
            n_prompt_reported: 0,
            beams,
            losses: Losses::default(),
            request: Arc::clone(&request),
        };
        let before = self.requests.insert(request.id, progress);
        assert!(before.is_none(), "two live requests of one id");
        Ok(())
    }

    /// Ends all continuations of a request. Results of steps in flight for them are dropped. Does nothing
    /// if the request has ended.
    pub fn abort(&mut self, request: RequestId, now: Timestamp, emit: &mut Emit<'_>) {
        let n = self.requests.get(&request).map_or(0, |progress| progress.request.n_sequences());
        for index in 0..n {
            self.end_sequence(SequenceId { request, index }, now, emit);
        }
    }

    /// Ends one continuation. Does nothing if it has ended, or for a beam search, whose continuations are
    /// determined only at its end.
    pub fn abort_sequence(&mut self, id: SequenceId, now: Timestamp, emit: &mut Emit<'_>) {
        if self.requests.get(&id.request).is_some_and(|progress| progress.beams.is_none()) {
            self.end_sequence(id, now, emit);
        }
    }

    fn end_sequence(&mut self, id: SequenceId, now: Timestamp, emit: &mut Emit<'_>) {
        let waiting = self.take_waiting(id).or_else(|| self.idle_beams.remove(&id));
        if let Some(sequence) = waiting {
            self.retire(sequence.finish(FinishReason::Abort, now), emit);
        } else if let Some(sequence) = self.paused.remove(&id) {
            self.retire(sequence.finish(FinishReason::Abort, now), emit);
        } else if let Some(i) = self.running.iter().position(|sequence| sequence.id() == id) {
            let sequence = self.running.remove(i).finish(FinishReason::Abort, &mut self.pool, now);
            self.retire(sequence, emit);
        }
    }

    /// Drops all computed content, so that running sequences wait again. For executors that have lost their
    /// KV bytes.
    ///
    /// # Panics
    /// When a step is in flight.
    pub fn reset_cache(&mut self) {
        assert_eq!(self.n_in_flight(), 0, "a step in flight reads the cache");
        while let Some(sequence) = self.running.pop() {
            self.counters.preemptions += 1;
            let sequence = sequence.preempt(&mut self.pool);
            self.wait_again(sequence);
        }
        self.pool.forget_published();
    }

    /// Number of steps that were planned and have not ended.
    pub fn n_in_flight(&self) -> usize {
        (self.n_planned - self.counters.steps) as usize
    }

    /// Maximum number of steps in flight.
    pub fn max_steps_in_flight(&self) -> usize {
        self.admission.max_steps_in_flight()
    }

    /// Whether no sequence runs, waits or is paused.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests that were taken in and have not ended, in order of their ids.
    pub fn requests(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// Whether a request was taken in and has not ended.
    pub fn is_alive(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    /// Maximum number of tokens (prompt and output) of one sequence; a sequence that reaches it ends with
    /// [`FinishReason::Length`].
    pub fn max_sequence_tokens(&self) -> usize {
        self.admission.max_sequence_tokens()
    }

    /// Number of steps that have ended.
    pub fn n_steps(&self) -> u64 {
        self.counters.steps
    }

    /// Number of sequences that wait, beams without blocks included.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len() + self.idle_beams.len()
    }

    /// Current numbers of the scheduler.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len(),
            awaiting_masks: self.running.iter().filter(|s| s.awaits_masks_since().is_some()).count(),
            waiting: self.n_waiting(),
            paused: self.paused.len(),
            queued_requests: self.queue.n_requests(),
            queued_tokens: self.queue.n_tokens(),
            prefilling_tokens: self.running.iter().map(prefilling_tokens).sum(),
            total_blocks: self.pool.n_total(),
            used_blocks: self.pool.n_used(),
            cached_blocks: self.pool.n_cached(),
            marked_blocks: self.pool.n_marked(),
            evictions: self.pool.evictions(),
            stored_blocks: self.pool.store().map_or(0, BlockStore::n_kept),
            store: self.pool.store().map(BlockStore::counters).unwrap_or_default(),
            counters: self.counters,
        }
    }

    /// The block pool, for reading.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Takes the changes of the prefix cache since the last call; the first call starts recording them.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        if !self.pool.records_cache_events() {
            self.pool.record_cache_events();
        }
        self.pool.take_cache_events()
    }

    /// The block pool, for tests that plant a fault: a missing reference, a wrong name.
    #[doc(hidden)]
    pub fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Checks that every reference in the pool is held by exactly one table entry, and the pool itself.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.pool.check_invariants()?;
        let mut n_holders = vec![0; self.pool.n_total()];
        for block in self.running.iter().flat_map(|sequence| sequence.held_blocks()) {
            n_holders[block.0 as usize] += 1;
        }
        self.check_states()?;
        let settled = self.running.iter().filter(|sequence| !sequence.is_in_flight());
        for sequence in settled {
            let (n_tokens, n_computed) = (sequence.tokens().len(), sequence.n_computed());
            let is_idle = n_computed == n_tokens && self.awaits_beams(sequence.id());
            if (n_computed >= n_tokens && !is_idle) || sequence.blocks().len() > blocks_for(n_tokens) {
                let n_blocks = sequence.blocks().len();
                return Err(format!("{n_computed} of {n_tokens} tokens are computed, in {n_blocks} blocks"));
            }
        }
        for (i, &n) in n_holders.iter().enumerate() {
            let n_references = self.pool.n_references(BlockId(i as u32));
            if n != n_references {
                return Err(format!("block {i} has {n_references} references and {n} holders"));
            }
        }
        let mut last_ranks = BTreeMap::new();
        for Sequence { request, rank, .. } in &self.running {
            if last_ranks.insert(&request.tenant, rank).is_some_and(|last| last > rank) {
                return Err("what a tenant runs is not in order of rank".into());
            }
        }
        let n_live: usize = self.requests.values().map(|progress| progress.n_live).sum();
        let n_without_blocks = self.waiting.len() + self.idle_beams.len() + self.paused.len();
        let n_found = self.running.len() + n_without_blocks + self.ended.len();
        if n_live != n_found {
            return Err(format!("{n_live} sequences are alive, {n_found} run, wait or are paused"));
        }
        Ok(())
    }

    fn take_waiting(&mut self, id: SequenceId) -> Option<Sequence<Waiting>> {
        let Progress { request, arrival, .. } = self.requests.get(&id.request)?;
        let rank = Rank { priority: self.priority(request), arrival: *arrival, index: id.index };
        self.waiting.remove(&request.tenant, rank)
    }

    fn priority(&self, request: &Request) -> Priority {
        match self.config.policy {
            SchedulingPolicy::Fcfs => Priority::default(),
            SchedulingPolicy::Priority => request.priority,
        }
    }

    /// Reports the end of a sequence; removes the request with its last one.
    fn retire(&mut self, sequence: Sequence<Finished>, emit: &mut Emit<'_>) {
        let id = sequence.id();
        let Some(progress) = self.requests.get_mut(&id.request) else { return };
        progress.n_live -= 1;
        if progress.n_live == 0 && !progress.started {
            self.queue.leave(progress.request.n_queued_tokens());
            emit(Event::Dequeued { request: id.request });
        }
        let (reason, timeline) = (sequence.state.reason, sequence.timeline);
        if progress.beams.is_none() {
            emit(Event::Finished { sequence: id, reason, timeline });
        }
        if progress.n_live > 0 {
            return;
        }
        let Some(progress) = self.requests.remove(&id.request) else { return };
        // Sequences of a beam search are not its continuations; these end together.
        for (index, _) in progress.request.continuations().filter(|_| progress.beams.is_some()) {
            emit(Event::Finished { sequence: SequenceId { index, ..id }, reason, timeline });
        }
    }
}
