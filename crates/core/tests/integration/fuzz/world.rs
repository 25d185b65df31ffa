//! One scheduler with its executor, its clients and random failures, under a virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{RequestId, SequenceId, TokenId};
use throng_core::scheduling::batch::{
    BlockId, ScheduledBatch, ScheduledSequence, SequenceError, StepOutput, TokenLogprob,
};
use throng_core::scheduling::block_pool::EvictionPolicy;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::masks::{MaskPace, SequenceMasks};
use throng_core::scheduling::scheduler::{
    MaskReport, Scheduler, SchedulerConfig, SchedulingPolicy, SpeculationMethod, Step, StepShape,
};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::PaperExecutor;

use super::ledger::Ledger;
use super::message;
use super::pictures::Pictures;
use super::requests::{RequestSource, one_in};
use super::saboteur::{Bug, Memory};
use super::states::States;
use super::store::Store;

/// Counts of what happened in a run, to check that it covered enough.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub steps: usize,
    pub sequences: usize,
    pub finished: usize,
    pub aborted: usize,
    pub failed: usize,
    pub preemptions: usize,
    pub hit_tokens: usize,
    pub refused: usize,
    pub paused: usize,
    pub resumed: usize,
    pub drafts: usize,
    pub accepted_drafts: usize,
    pub constrained: usize,
    pub looked_up: usize,
    pub accepted_looked_up: usize,
    pub beams: usize,
    pub copied: usize,
    pub own_drafts: usize,
    pub accepted_own: usize,
    pub saved_states: usize,
    pub begun_from_states: usize,
    pub copied_states: usize,
    pub carried: usize,
    pub carried_in_vain: usize,
    pub left_out: usize,
    pub begun_masks: usize,
    pub early_masks: usize,
    pub parted_pictures: usize,
    pub saved_blocks: usize,
    pub loaded_blocks: usize,
    pub failed_blocks: usize,
    pub pulled_blocks: usize,
    pub failed_pulls: usize,
    pub served_blocks: usize,
    pub loaded_state_parts: usize,
    pub expired_marks: usize,
    pub marks_over_share: usize,
    pub dropped_marks: usize,
}

impl Seen {
    pub fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.sequences += other.sequences;
        self.finished += other.finished;
        self.aborted += other.aborted;
        self.failed += other.failed;
        self.preemptions += other.preemptions;
        self.hit_tokens += other.hit_tokens;
        self.refused += other.refused;
        self.paused += other.paused;
        self.resumed += other.resumed;
        self.drafts += other.drafts;
        self.accepted_drafts += other.accepted_drafts;
        self.constrained += other.constrained;
        self.looked_up += other.looked_up;
        self.accepted_looked_up += other.accepted_looked_up;
        self.beams += other.beams;
        self.copied += other.copied;
        self.own_drafts += other.own_drafts;
        self.accepted_own += other.accepted_own;
        self.saved_states += other.saved_states;
        self.begun_from_states += other.begun_from_states;
        self.copied_states += other.copied_states;
        self.carried += other.carried;
        self.carried_in_vain += other.carried_in_vain;
        self.left_out += other.left_out;
        self.begun_masks += other.begun_masks;
        self.early_masks += other.early_masks;
        self.parted_pictures += other.parted_pictures;
        self.saved_blocks += other.saved_blocks;
        self.loaded_blocks += other.loaded_blocks;
        self.failed_blocks += other.failed_blocks;
        self.pulled_blocks += other.pulled_blocks;
        self.failed_pulls += other.failed_pulls;
        self.served_blocks += other.served_blocks;
        self.loaded_state_parts += other.loaded_state_parts;
        self.expired_marks += other.expired_marks;
        self.marks_over_share += other.marks_over_share;
        self.dropped_marks += other.dropped_marks;
    }

    /// The count of the rarest event.
    pub fn least(&self) -> usize {
        let all = [self.steps, self.sequences, self.finished, self.aborted, self.failed, self.preemptions];
        let rest = [self.hit_tokens, self.refused, self.paused, self.resumed];
        let accepted = self.accepted_drafts - self.accepted_own;
        let drafts = [self.drafts, accepted, self.drafts - accepted, self.constrained];
        let looked_up = [self.accepted_looked_up, self.looked_up - self.accepted_looked_up];
        let own = [self.accepted_own, self.own_drafts - self.accepted_own];
        let beams = [self.beams, self.copied, self.carried, self.carried_in_vain];
        let all = all.into_iter().chain(rest).chain(drafts).chain(looked_up);
        let masks = [self.left_out, self.begun_masks, self.early_masks, self.parted_pictures];
        let states = [self.saved_states, self.begun_from_states, self.copied_states];
        let stored = [self.saved_blocks, self.loaded_blocks, self.failed_blocks, self.loaded_state_parts];
        // Few prompts of these worlds are long enough to be pulled.
        let moved = [10 * self.pulled_blocks, 10 * self.failed_pulls, self.served_blocks];
        let marks = [self.expired_marks, self.marks_over_share, self.dropped_marks];
        let all = all.chain(own).chain(beams).chain(states).chain(masks);
        all.chain(stored).chain(moved).chain(marks).min().unwrap_or(0)
    }
}

/// Where drafts may come from.
const METHODS: [SpeculationMethod; 4] = [
    SpeculationMethod::None,
    SpeculationMethod::PromptLookup,
    SpeculationMethod::DraftModel,
    SpeculationMethod::DraftModelAndPromptLookup,
];

/// Number of batches for each one that is sent as a message.
const ONE_IN_STEPS_SENT: u32 = 8;

pub struct World {
    rng: Rng,
    bug: Option<Bug>,
    capacity: ExecutorCapacity,
    config: SchedulerConfig,
    scheduler: Scheduler,
    executor: PaperExecutor,
    /// Most drafts that the executor proposes for a sequence.
    most_drafts: usize,
    memory: Memory,
    source: RequestSource,
    ledger: Ledger,
    states: States,
    now: Timestamp,
    n_sequences: usize,
    n_refused: usize,
    n_paused: usize,
    n_resumed: usize,
    /// A request with a sequence in the latest step, and a block of that sequence.
    latest: Option<(RequestId, BlockId)>,
    most_open: usize,
    /// No more requests arrive.
    closing: bool,
    one_in_steps_cancels: u32,
    one_in_steps_fails: u32,
    one_in_steps_pauses: u32,
    /// The steps that were submitted and have not ended, the oldest first.
    in_flight: VecDeque<InFlight>,
    /// Masks for which sequences wait.
    awaited: Vec<Arc<SequenceMasks>>,
    one_in_masks_late: u32,
    one_in_steps_reports: u32,
    n_begun_masks: usize,
    n_early_masks: usize,
    pictures: Pictures,
    store: Option<Store>,
}

/// A step that the executor has computed and the scheduler has not seen.
struct InFlight {
    step: Step,
    output: StepOutput,
}

impl World {
    pub fn new(mut rng: Rng, bug: Option<Bug>) -> Self {
        let rng = &mut rng;
        let capacity = ExecutorCapacity {
            n_blocks: if one_in(rng, 4) { rng.u32(1..6) } else { rng.u32(4..40) },
            max_batch_tokens: rng.u32(1..300),
            max_batch_sequences: rng.u32(1..40),
            max_sequence_tokens: rng.u32(2..400),
            vocabulary_size: rng.u32(8..40),
            n_state_slots: if rng.bool() { 0 } else { rng.u32(1..50) },
            max_steps_in_flight: rng.u32(1..=4),
            takes_whole_prompts: false,
            takes_media: true,
            keeps_media_whole: rng.bool(),
            n_stages: if rng.bool() { 1 } else { rng.u32(1..=4) },
        };
        let config = SchedulerConfig {
            max_batch_tokens: if one_in(rng, 3) { rng.u32(1..20) } else { 1_000 },
            max_batch_sequences: 64,
            inter_token_target_ms: rng.u32(0..40),
            max_queued_requests: rng.u32(1..60),
            max_queued_tokens: rng.u64(1..10_000),
            max_draft_tokens: rng.u32(0..20),
            speculation: *rng.choice(&METHODS).expect("not empty"),
            prompt_lookup_min: rng.u32(1..4),
            prefix_caching: !one_in(rng, 4),
            eviction: if one_in(rng, 3) { EvictionPolicy::Lru } else { EvictionPolicy::Worth },
            max_marked_percent: if one_in(rng, 4) { 0 } else { rng.u32(1..=100) },
            policy: if one_in(rng, 3) { SchedulingPolicy::Fcfs } else { SchedulingPolicy::Priority },
        };
        // A batch that a bug has spoiled has other masks than the scheduler's.
        let is_in_time = one_in(rng, 3) || bug.is_some();
        let one_in_masks_late = if is_in_time { u32::MAX } else { rng.u32(1..12) };
        let most_drafts = if one_in(rng, 4) { 0 } else { rng.usize(1..24) };
        let mut scheduler =
            Scheduler::new(bug.map_or(config.clone(), |bug| bug.spoil_config(&config)), capacity);
        let store = (scheduler.may_have_store() && !one_in(rng, 3))
            .then(|| Store::new(rng, capacity.n_state_slots > 0));
        store.iter().for_each(|store| store.attach(&mut scheduler));
        Self {
            bug,
            capacity,
            most_drafts,
            memory: Memory::default(),
            scheduler,
            store,
            ledger: Ledger::new(&config),
            config,
            states: States::default(),
            executor: PaperExecutor::new(capacity)
                .with_drafts(rng.fork(), most_drafts)
                .with_late_masks(rng.fork(), one_in_masks_late),
            source: RequestSource::new(rng, &capacity),
            now: Timestamp::default(),
            n_sequences: 0,
            n_refused: 0,
            n_paused: 0,
            n_resumed: 0,
            latest: None,
            most_open: rng.usize(1..60),
            closing: false,
            one_in_steps_cancels: if one_in(rng, 3) { u32::MAX } else { rng.u32(2..60) },
            one_in_steps_fails: if one_in(rng, 3) { u32::MAX } else { rng.u32(20..400) },
            one_in_steps_pauses: if one_in(rng, 3) { u32::MAX } else { rng.u32(2..60) },
            in_flight: VecDeque::new(),
            awaited: Vec::new(),
            one_in_masks_late,
            one_in_steps_reports: rng.u32(1..8),
            n_begun_masks: 0,
            n_early_masks: 0,
            pictures: Pictures::default(),
            rng: rng.fork(),
        }
    }

    /// Runs `n_steps` with arrivals, then until all requests have ended.
    pub fn run(mut self, n_steps: usize) -> Result<Seen, String> {
        for _ in 0..n_steps {
            self.let_clients_act()?;
            self.step()?;
        }
        self.closing = true;
        // Upper bound of steps: 60 requests of 5 continuations with 400 tokens, one token a step, each computed twice and
        // left out twice.
        let mut patience = 60 * 5 * 400 * 8;
        while !self.scheduler.is_idle() || !self.in_flight.is_empty() {
            self.step()?;
            patience -= 1;
            if patience == 0 {
                return Err("it does not come to an end".into());
            }
        }
        let stats = self.scheduler.stats();
        if stats.used_blocks + stats.running + stats.waiting + stats.paused + stats.queued_requests > 0 {
            return Err(format!("something is left: {stats:?}"));
        }
        match self.ledger.n_open() {
            0 => Ok(self.seen()),
            n => Err(format!("{n} requests were forgotten")),
        }
    }

    fn seen(&self) -> Seen {
        let counters = self.scheduler.stats().counters;
        let evictions = self.scheduler.stats().evictions;
        Seen {
            steps: counters.steps as usize,
            sequences: self.n_sequences,
            finished: self.ledger.n_finished,
            aborted: self.ledger.n_aborted,
            failed: self.ledger.n_failed,
            preemptions: counters.preemptions as usize,
            hit_tokens: self.ledger.n_hit_tokens,
            refused: self.n_refused,
            paused: self.n_paused,
            resumed: self.n_resumed,
            drafts: self.ledger.n_drafts,
            accepted_drafts: self.ledger.n_accepted,
            constrained: self.ledger.n_constrained,
            looked_up: self.ledger.n_looked_up,
            accepted_looked_up: self.ledger.n_accepted_looked_up,
            beams: self.ledger.n_beams,
            copied: self.ledger.n_copied,
            own_drafts: self.ledger.n_own_drafts,
            accepted_own: self.ledger.n_accepted_own,
            saved_states: self.states.n_saved,
            begun_from_states: self.states.n_begun,
            copied_states: self.states.n_copied,
            carried: self.ledger.n_carried,
            carried_in_vain: self.ledger.n_carried_in_vain,
            left_out: counters.left_out as usize,
            begun_masks: self.n_begun_masks,
            early_masks: self.n_early_masks,
            parted_pictures: self.pictures.n_parted,
            saved_blocks: self.store.as_ref().map_or(0, |store| store.n_saved),
            loaded_blocks: self.store.as_ref().map_or(0, |store| store.n_loaded),
            failed_blocks: self.store.as_ref().map_or(0, |store| store.n_failed),
            pulled_blocks: self.store.as_ref().map_or(0, |store| store.n_pulled),
            failed_pulls: self.store.as_ref().map_or(0, |store| store.n_failed_pulls),
            served_blocks: self.store.as_ref().map_or(0, |store| store.n_served),
            loaded_state_parts: self.store.as_ref().map_or(0, |store| store.n_state_parts),
            expired_marks: evictions.expired as usize,
            marks_over_share: evictions.over_share as usize,
            dropped_marks: evictions.marked as usize,
        }
    }

    fn let_clients_act(&mut self) -> Result<(), String> {
        while !self.closing && self.ledger.n_open() < self.most_open && one_in(&mut self.rng, 3) {
            self.submit();
        }
        if one_in(&mut self.rng, self.one_in_steps_cancels) {
            self.cancel();
        }
        self.verdict()
    }

    fn submit(&mut self) {
        let mut request = self.source.next(&mut self.rng);
        if let Some(store) = &mut self.store {
            request.holder = store.holder(&mut self.rng, &request);
            if one_in(&mut self.rng, 3) {
                store.ask_for(&request, &mut self.scheduler, self.now);
            }
        }
        let taken = match self.bug {
            Some(bug) => {
                bug.spoil_pool_for(&request, &mut self.scheduler);
                bug.spoil_request(request.clone())
            }
            None => request.clone(),
        };
        if self.scheduler.submit(taken, self.now).is_ok() {
            self.ledger.open(&request, &self.capacity, self.config.prefix_caching);
        } else {
            self.n_refused += 1;
        }
    }

    fn cancel(&mut self) {
        let request = self.source.some_id(&mut self.rng);
        let ledger = &mut self.ledger;
        if self.rng.bool() {
            ledger.cancel(request, None);
            self.scheduler.abort(request, self.now, &mut |event| ledger.note(&event));
        } else {
            let index = if self.rng.bool() { 0 } else { self.rng.u32(0..3) };
            ledger.cancel(request, Some(index));
            let sequence = SequenceId { request, index };
            self.scheduler.abort_sequence(sequence, self.now, &mut |event| ledger.note(&event));
        }
    }

    /// Readers fall behind or catch up.
    fn let_readers_act(&mut self) -> Result<(), String> {
        if !self.closing && one_in(&mut self.rng, self.one_in_steps_pauses) {
            // Mostly a running one, since only its blocks could be lost.
            let running = self.latest.filter(|_| !one_in(&mut self.rng, 4));
            let request = running.map_or_else(|| self.source.some_id(&mut self.rng), |(request, _)| request);
            self.pause(request, running.map(|(_, block)| block));
        }
        let catches_up = self.closing || one_in(&mut self.rng, self.one_in_steps_pauses);
        if let Some(&request) = self.rng.choice(&self.ledger.paused()).filter(|_| catches_up) {
            self.resume(request);
        }
        self.scheduler.check_invariants()
    }

    fn pause(&mut self, request: RequestId, block: Option<BlockId>) {
        if let Some(bug) = self.bug {
            bug.spoil_pause(block, &mut self.scheduler);
        }
        if self.bug != Some(Bug::LostPause) {
            self.scheduler.pause(request);
        }
        self.n_paused += usize::from(self.scheduler.is_alive(request));
        self.ledger.set_paused(request, true);
    }

    fn resume(&mut self, request: RequestId) {
        if self.bug != Some(Bug::LostResume) {
            self.scheduler.resume(request);
        }
        self.n_resumed += 1;
        self.ledger.set_paused(request, false);
    }

    /// Plans as many steps as there may be in flight, now and then fewer, and ends the oldest.
    fn step(&mut self) -> Result<(), String> {
        self.let_readers_act()?;
        let n_reports_before = self.n_store_reports();
        self.let_store_act()?;
        let was_idle = self.scheduler.is_idle();
        self.report_masks()?;
        while self.in_flight.len() < self.scheduler.max_steps_in_flight()
            && (self.in_flight.is_empty() || !one_in(&mut self.rng, 4))
            && self.begin_step()?
        {
            self.let_clients_act()?;
            self.report_masks()?;
        }
        if self.in_flight.is_empty() && !self.awaited.is_empty() {
            return self.report_some_masks();
        }
        if self.in_flight.is_empty()
            && let Some(store) = self.store.as_mut().filter(|store| store.has_work())
        {
            store.report(&mut self.rng, &mut self.scheduler);
            self.now = self.now + Nanos::from_ms(self.rng.u64(..5));
            return self.scheduler.check_invariants();
        }
        if self.in_flight.is_empty() && self.n_store_reports() > n_reports_before {
            // There may be a step now.
            return self.verdict();
        }
        let Some(InFlight { step, output }) = self.in_flight.pop_front() else {
            return if was_idle { self.verdict() } else { self.wake_a_reader() };
        };
        self.now = self.now + self.duration(step.batch());
        if self.store.is_some() && one_in(&mut self.rng, 40) {
            // A store rests after a write that failed.
            self.now = self.now + Nanos::from_ms(10_000);
        }
        if one_in(&mut self.rng, self.one_in_steps_fails) {
            self.fail(step);
        } else {
            self.complete(step, output);
        }
        self.scheduler.check_invariants()?;
        self.verdict()
    }

    fn n_store_reports(&self) -> usize {
        self.store.as_ref().map_or(0, |store| store.n_reports)
    }

    fn let_store_act(&mut self) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Ok(()) };
        store.act(&mut self.rng, &mut self.scheduler);
        self.scheduler.check_invariants()
    }

    /// Plans a step and has it computed; false when nothing is to be done.
    fn begin_step(&mut self) -> Result<bool, String> {
        let ledger = &mut self.ledger;
        let step = self.scheduler.plan(self.now, &mut |event| ledger.note(&event));
        self.take_begun_masks();
        self.let_store_act()?;
        let Some(step) = step else { return Ok(false) };
        let batch = std::sync::Arc::clone(step.batch());
        self.check_masks(&batch)?;
        let latest = self.rng.choice(batch.sequences());
        self.latest = latest.map(|scheduled| (scheduled.id.request, batch.blocks(scheduled)[0]));
        self.check_limits(&step)?;
        self.n_sequences += batch.sequences().len();
        self.ledger.check_batch(&batch);
        self.states.check(&batch, self.capacity.n_state_slots)?;
        if one_in(&mut self.rng, ONE_IN_STEPS_SENT) {
            message::check(&batch)?;
        }
        self.verdict()?;
        if let Some(store) = &mut self.store {
            store.exchange(&batch, &mut self.executor, self.bug)?;
        }
        let mut output = StepOutput::default();
        if let Some(bug) = self.bug {
            bug.spoil_pool(&mut self.rng, &batch, &mut self.scheduler);
            bug.publish_drafts(&batch, &self.ledger, &mut self.scheduler);
            let known = (&self.memory, &self.ledger);
            let batch = bug.spoil_batch(&mut self.rng, &batch, known, self.capacity.n_blocks);
            let _ = self.executor.execute(&batch, &mut output);
        } else {
            let _ = self.executor.execute(&batch, &mut output);
            self.pictures.work(&mut self.rng, &batch, &mut output)?;
        }
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate().take(output.n_sequences()) {
            let masks = scheduled.masks.as_ref().filter(|_| output.is_left_out(sequence_idx));
            self.awaited.extend(masks.cloned());
        }
        self.in_flight.push_back(InFlight { step, output });
        Ok(true)
    }

    fn take_begun_masks(&mut self) {
        let n_before = self.awaited.len();
        self.awaited.extend(self.scheduler.take_begun_masks());
        self.n_begun_masks += self.awaited.len() - n_before;
    }

    /// No sequence may have a token chosen while it waits for masks; those that were begun for it are there
    /// then.
    fn check_masks(&self, batch: &ScheduledBatch) -> Result<(), String> {
        let mut masks = batch.sequences().iter().filter_map(|scheduled| scheduled.masks.as_ref());
        match masks.find(|masks| self.awaited.iter().any(|awaited| Arc::ptr_eq(awaited, masks))) {
            Some(masks) => Err(format!("{} does not wait for its masks", masks.sequence())),
            None => Ok(()),
        }
    }

    /// Now and then masks are there, also while the step that lacked them is in flight.
    fn report_masks(&mut self) -> Result<(), String> {
        while !self.awaited.is_empty() && one_in(&mut self.rng, self.one_in_steps_reports) {
            self.report_some_masks()?;
        }
        if let Some((request, _)) = self.latest.filter(|_| one_in(&mut self.rng, 40)) {
            // Masks that were there in time and took long.
            let report = self.report(SequenceId { request, index: 0 }, 0);
            self.scheduler.note_masks(&report, self.now);
        }
        Ok(())
    }

    fn report_some_masks(&mut self) -> Result<(), String> {
        let masks = self.awaited.swap_remove(self.rng.usize(0..self.awaited.len()));
        if masks.evaluate(self.capacity.vocabulary_size, || MaskPace::Continue) != Some(true) {
            return Err("masks were evaluated twice, or nobody waits for them".into());
        }
        self.n_early_masks += usize::from(!self.in_flight.is_empty());
        let report = self.report(masks.sequence(), masks.number());
        self.scheduler.note_masks(&report, self.now);
        self.scheduler.check_invariants()
    }

    fn report(&mut self, sequence: SequenceId, number: u64) -> MaskReport {
        let took = Nanos(if one_in(&mut self.rng, 4) { 40_000_000 } else { 100_000 });
        MaskReport { sequence, number, took, charged: took }
    }

    /// No step can be planned: then all requests must be paused, and one of them has to be resumed.
    fn wake_a_reader(&mut self) -> Result<(), String> {
        let stats = self.scheduler.stats();
        match self.rng.choice(&self.ledger.paused()) {
            Some(&request) if stats.running + stats.waiting == 0 => {
                self.resume(request);
                self.verdict()
            }
            _ => Err("there is work but no step".into()),
        }
    }

    fn complete(&mut self, step: Step, mut output: StepOutput) {
        let batch = std::sync::Arc::clone(step.batch());
        if let (Some(Bug::AnswersOfTwoSteps), Some(next)) = (self.bug, self.in_flight.front_mut()) {
            std::mem::swap(&mut output, &mut next.output);
        }
        let fails_sequence = one_in(&mut self.rng, self.one_in_steps_fails) && !batch.sequences().is_empty();
        let failing_sequence = fails_sequence.then(|| self.rng.usize(0..batch.sequences().len()));
        if let Some(sequence_idx) = failing_sequence {
            self.ledger.may_fail(batch.sequences()[sequence_idx].id.request);
        }
        if failing_sequence.is_some() || self.bug.is_some() {
            let drafts_before = self.memory.note(&batch, &output);
            self.ledger.note_computed(&batch, &output);
            output = self.rewrite(&batch, &output, &drafts_before, failing_sequence);
        } else {
            self.ledger.note_computed(&batch, &output);
        }
        drop(batch);
        let ledger = &mut self.ledger;
        self.scheduler.complete(step, &output, self.now, &mut |event| ledger.note(&event));
        self.take_begun_masks();
    }

    fn rewrite(
        &self,
        batch: &ScheduledBatch,
        output: &StepOutput,
        drafts_before: &BTreeMap<SequenceId, Vec<TokenId>>,
        failing_sequence: Option<usize>,
    ) -> StepOutput {
        let mut copy = StepOutput::default();
        for sequence_idx in 0..output.n_sequences() {
            copy.begin_sequence();
            let from = self.bug.map_or(sequence_idx, |bug| bug.spoil_answer(sequence_idx, output));
            let Some(scheduled) = batch.sequences().get(sequence_idx) else { break };
            output.prompt(from).for_each(|token| copy.push_prompt(token.chosen, token.top));
            for (i, token) in output.sampled(from).enumerate() {
                let draft = match self.bug {
                    Some(Bug::WrongDraftAccepted) => batch.drafts(scheduled).get(i),
                    Some(Bug::WrongOwnDraftAccepted) => output.own_drafts(from).get(i),
                    _ => None,
                };
                let chosen = TokenLogprob { token: *draft.unwrap_or(&token.chosen.token), ..token.chosen };
                copy.push_sampled(chosen, token.top);
            }
            let drafts = match self.bug {
                Some(Bug::DraftsKept) => drafts_before.get(&scheduled.id).map_or(&[][..], Vec::as_slice),
                _ => output.drafts(from),
            };
            drafts.iter().for_each(|&draft| copy.push_draft(draft));
            if self.bug != Some(Bug::OwnDraftsHidden) {
                copy.set_own_drafts(sequence_idx, output.own_drafts(from));
            }
            if let Some(error) = output.error(from) {
                copy.fail_sequence(error);
            }
            if output.is_left_out(from) {
                copy.leave_out_sequence();
            }
            if failing_sequence == Some(sequence_idx) {
                copy.fail_sequence(SequenceError::InvalidLogits);
            }
        }
        copy.draft_passes.clone_from(&output.draft_passes);
        copy.media = output.media;
        copy
    }

    /// The step fails; sometimes the executor is lost as well.
    fn fail(&mut self, step: Step) {
        for scheduled in step.batch().sequences() {
            self.ledger.may_fail(scheduled.id.request);
        }
        self.ledger.note_failed();
        let ledger = &mut self.ledger;
        self.scheduler.fail(step, self.now, &mut |event| ledger.note(&event));
        if self.rng.bool() {
            for InFlight { step, .. } in self.in_flight.drain(..) {
                ledger.note_failed();
                self.scheduler.discard(step, self.now);
            }
            self.scheduler.reset_cache();
            self.store.iter_mut().for_each(|store| store.forget(&mut self.scheduler));
            let executor = PaperExecutor::new(self.capacity);
            let executor = executor.with_drafts(self.rng.fork(), self.most_drafts);
            self.executor = executor.with_late_masks(self.rng.fork(), self.one_in_masks_late);
            if self.store.is_none() {
                self.ledger.forget_computed();
            }
            self.pictures.forget();
        }
    }

    fn check_limits(&self, step: &Step) -> Result<(), String> {
        let batch = step.batch();
        let shapes = batch.sequences().iter().map(|scheduled| {
            StepShape::of_sequence(scheduled.start as usize, scheduled.n_tokens() + scheduled.n_to_draft)
        });
        let shape = shapes.fold(StepShape::default(), StepShape::plus);
        if step.shape() != shape {
            return Err(format!("{:?} is said, {shape:?} is planned", step.shape()));
        }
        let most_tokens = self.config.max_batch_tokens.min(self.capacity.max_batch_tokens) as usize;
        let most_sequences = self.config.max_batch_sequences.min(self.capacity.max_batch_sequences) as usize;
        let n_parts = batch.encodings().iter().map(|encoding| encoding.share.done - encoding.n_before);
        if shape.n_tokens + n_parts.sum::<u32>() as usize > most_tokens {
            return Err(format!("{:?} beside {} tokens", batch.encodings(), shape.n_tokens));
        }
        let has_traffic =
            !(batch.saves().is_empty() && batch.loads().is_empty() && batch.exports().is_empty());
        if batch.sequences().is_empty() && batch.encodings().is_empty() && !has_traffic {
            return Err("a step without work".into());
        }
        if shape.n_tokens > most_tokens || batch.sequences().len() > most_sequences {
            return Err(format!("{} tokens in {} sequences", batch.n_tokens(), batch.sequences().len()));
        }
        let is_cut = |scheduled: &ScheduledSequence| {
            let ends = [scheduled.start, scheduled.start + scheduled.n_tokens() as u32];
            let media = scheduled.media.as_deref();
            ends.into_iter().any(|at| media.and_then(|media| media.span_cut_at(at)).is_some())
        };
        if self.capacity.keeps_media_whole && batch.sequences().iter().any(is_cut) {
            return Err(format!("a picture is cut: {batch:?}"));
        }
        Ok(())
    }

    /// The simulated duration of a step, which is sometimes much longer.
    fn duration(&mut self, batch: &ScheduledBatch) -> Nanos {
        // Beside a store that takes longer than computing, nothing would be loaded.
        let pace = if self.store.is_some() { 20 } else { 1 };
        let usual = pace * (1_000_000 + 100_000 * batch.n_tokens() as u64);
        Nanos(if one_in(&mut self.rng, 50) { usual * self.rng.u64(1..100) } else { usual })
    }

    fn verdict(&mut self) -> Result<(), String> {
        self.ledger.problem.take().map_or(Ok(()), Err)
    }
}
