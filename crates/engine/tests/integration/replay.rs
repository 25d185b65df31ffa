//! A real engine, with its threads and clock, under load: clients that read slowly, leave and cancel, and
//! steps that fail, panic and hang. Its log of inputs, run through a fresh core, plans the same batches and
//! gives every stream the same events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use crate::gate::{CAPACITY, random_request, stop};
use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::{
    BeamSearch, EarlyStopping, Request, RequestId, SamplingParams, SequenceId, TokenId,
};
use throng_core::scheduling::batch::{BlockId, ScheduledBatch, ScheduledSequence, SequenceError, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_core::time::Nanos;
use throng_engine::{
    Effect, Engine, EngineConfig, EngineCore, EngineHandle, Input, StepRecord, StreamEvent, TokenStream,
};
use throng_testkit::paper_constraint::PaperConstraint;
use throng_testkit::paper_executor::PaperExecutor;

const N_CLIENTS: u64 = 6;
const ROUNDS: usize = 15;

/// A sequence as data.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    sequence: SequenceId,
    start: u32,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    history: Vec<TokenId>,
    carried: Option<usize>,
}

/// A batch as data, and which executor ran it.
type Batch = (u64, Vec<Row>);

fn sequences(batch: &ScheduledBatch) -> Vec<Row> {
    let sequence_as_data = |scheduled: &ScheduledSequence| Row {
        sequence: scheduled.id,
        start: scheduled.start,
        tokens: batch.tokens(scheduled).to_vec(),
        blocks: batch.blocks(scheduled).to_vec(),
        history: batch.history(scheduled, scheduled.n_drafts).to_vec(),
        carried: scheduled.carried,
    };
    batch.sequences().iter().map(sequence_as_data).collect()
}

/// What all executors of the engine share.
#[derive(Default)]
struct Record {
    batches: Mutex<Vec<Batch>>,
    released: Mutex<bool>,
    changed: Condvar,
}

impl Record {
    fn wait_for_release(&self) {
        let mut released = self.released.lock().expect("nobody panics with the lock");
        while !*released {
            released = self.changed.wait(released).expect("nobody panics with the lock");
        }
    }

    fn release(&self) {
        *self.released.lock().expect("nobody panics with the lock") = true;
        self.changed.notify_all();
    }
}

/// Writes down each batch, then runs it or fails in one of all ways.
struct Recording {
    paper: PaperExecutor,
    epoch: u64,
    record: Arc<Record>,
    /// The numbers of the steps in flight.
    numbers: VecDeque<usize>,
}

impl Executor for Recording {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        let mut batches = self.record.batches.lock().expect("nobody panics with the lock");
        batches.push((self.epoch, sequences(batch)));
        self.numbers.push_back(batches.len());
        self.paper.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let number = self.numbers.pop_front().expect("a step was submitted");
        match number {
            150 | 300 => self.record.wait_for_release(),
            _ if number.is_multiple_of(97) => panic!("as the test wants it"),
            _ if number.is_multiple_of(61) => {
                return Err(ExecutorError::Device("as the test wants it".into()));
            }
            _ => {}
        }
        self.paper.collect(batch, output)?;
        if number.is_multiple_of(43) {
            output.fail_sequence(SequenceError::InvalidLogits);
        }
        Ok(())
    }
}

/// A constraint some of whose masks take long.
#[derive(Debug)]
struct Slow(PaperConstraint);

impl Slow {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let vocabulary_size = CAPACITY.vocabulary_size;
        Self(PaperConstraint { vocabulary_size, seed: rng.u64(..), one_in_forced: 3, fails_after: None })
    }
}

impl TokenConstraint for Slow {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        self.0.mask(output, mask)?;
        if [7, 9, 11].into_iter().all(|token| mask.contains(token)) {
            // The mask is the same each time.
            let mut again = TokenMask::new(mask.vocabulary_size());
            for _ in 0..10_000 {
                again.reset(mask.vocabulary_size());
                self.0.mask(output, &mut again)?;
            }
            assert_eq!(again, *mask);
        }
        Ok(())
    }
}

/// What a client saw of its request.
struct Seen {
    events: Vec<StreamEvent>,
    /// Whether it read to the end.
    is_whole: bool,
}

/// A random request, now and then with a beam search.
fn some_request(engine: &EngineHandle, rng: &mut fastrand::Rng) -> Request {
    let request = random_request(engine, rng);
    if rng.u32(0..3) == 0 {
        return Request { constraint: Some(Arc::new(Slow::new(rng))), ..request };
    }
    if rng.u32(0..5) > 0 {
        return request;
    }
    let beams =
        BeamSearch { width: request.n + 1, length_penalty: 1.0, early_stopping: EarlyStopping::WhenFull };
    let sampling = SamplingParams { beams: Some(beams), ..(*request.sampling).clone() };
    Request { sampling: Arc::new(sampling), ..request }
}

/// Reads several streams in turns; leaves some of them.
fn run_client(engine: &EngineHandle, seed: u64, seen: &Mutex<BTreeMap<RequestId, Seen>>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        let mut streams: Vec<(TokenStream, Vec<StreamEvent>)> = (0..rng.usize(1..5))
            .map(|_| engine.submit(some_request(engine, &mut rng)).expect("there is room"))
            .map(|stream| (stream, Vec::new()))
            .collect();
        while !streams.is_empty() {
            let i = rng.usize(0..streams.len());
            if rng.u32(0..20) == 0 {
                streams[i].0.abort_sequence(rng.u32(0..3));
            }
            let leaves = rng.u32(0..40) == 0;
            let mut has_ended = false;
            for _ in 0..rng.usize(1..30) {
                let (stream, events) = &mut streams[i];
                match stream.blocking_next() {
                    Some(event) => events.push(event),
                    None => has_ended = true,
                }
            }
            if leaves || has_ended {
                let (stream, events) = streams.swap_remove(i);
                let mut seen = seen.lock().expect("nobody panics with the lock");
                seen.insert(stream.request_id(), Seen { events, is_whole: has_ended });
            }
        }
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        scheduler: SchedulerConfig {
            max_batch_sequences: 8,
            speculation: SpeculationMethod::None,
            ..SchedulerConfig::default()
        },
        step_timeout_ms: 1_000,
        max_buffered_events: 2,
        max_paused_requests: 6,
        max_logged_steps: 100_000,
        max_logged_inputs: 1 << 20,
        max_logged_input_bytes: u64::MAX,
        ..EngineConfig::default()
    }
}

/// What a core decides, sorted by what can be compared.
#[derive(Default)]
struct Replayed {
    batches: Vec<Batch>,
    events: BTreeMap<RequestId, Vec<StreamEvent>>,
    steps: Vec<StepRecord>,
}

impl Replayed {
    fn note(&mut self, effect: Effect) {
        match effect {
            Effect::Execute { epoch, batch, .. } => self.batches.push((epoch.0, sequences(&batch))),
            Effect::EndStep { record, .. } => self.steps.push(record),
            Effect::Deliver { request, event } => self.events.entry(request).or_default().push(event),
            Effect::Close { request, failure: Some(error), .. } => {
                self.events.entry(request).or_default().push(StreamEvent::Failed { error });
            }
            Effect::Close { failure: None, .. }
            | Effect::Accept(_)
            | Effect::Refuse { .. }
            | Effect::LeaveQueue { .. }
            | Effect::EvaluateMasks(_)
            | Effect::OrderStore(_)
            | Effect::DeliverPlain { .. }
            | Effect::ReplaceExecutor { .. }
            | Effect::GiveUpExecutor { .. }
            | Effect::State(_) => {}
        }
    }
}

#[test]
fn the_log_of_a_real_engine_replays_batch_for_batch() {
    replay(ExecutorCapacity { max_steps_in_flight: 1, ..CAPACITY });
}

#[test]
fn the_log_of_a_real_engine_with_two_steps_in_flight_replays_batch_for_batch() {
    let replayed = replay(ExecutorCapacity { max_steps_in_flight: 2, ..CAPACITY });
    let carried = replayed.iter().flat_map(|(_, rows)| rows).filter(|row| row.carried.is_some());
    assert!(carried.count() > 100, "tokens are carried");
}

/// The batches of a replayed log.
fn replay(capacity: ExecutorCapacity) -> Vec<Batch> {
    let record = Arc::new(Record::default());
    let engine = {
        let (record, mut n_made) = (Arc::clone(&record), 0);
        Engine::start(config(), move || {
            let executor = Recording {
                paper: PaperExecutor::new(capacity).with_late_masks(fastrand::Rng::with_seed(n_made), 2),
                epoch: n_made,
                record: Arc::clone(&record),
                numbers: VecDeque::new(),
            };
            n_made += 1;
            Ok(Box::new(executor) as Box<dyn Executor>)
        })
        .expect("it starts")
    };
    let seen = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for seed in 0..N_CLIENTS {
            let (engine, seen) = (&engine, &seen);
            scope.spawn(move || run_client(engine, seed, seen));
        }
    });
    let stats = stop(&engine);
    record.release();

    let log = engine.take_input_log();
    assert_eq!(log.n_forgotten(), 0, "the log is not whole");
    let (mut core, mut effects) = (EngineCore::new(config(), capacity), Vec::new());
    let (mut replayed, mut n_behind) = (Replayed::default(), 0);
    for logged in log.inputs() {
        n_behind += usize::from(matches!(logged.input, Input::ReaderBehind { .. }));
        core.apply(&logged.input, logged.now, &mut effects);
        effects.drain(..).for_each(|effect| replayed.note(effect));
    }

    let batches = std::mem::take(&mut *record.batches.lock().expect("nobody panics with the lock"));
    for epoch in 0..=stats.executor_restarts {
        let of_epoch = |batches: &[Batch]| -> Vec<Batch> {
            batches.iter().filter(|(of, _)| *of == epoch).cloned().collect()
        };
        let (recorded, replayed) = (of_epoch(&batches), of_epoch(&replayed.batches));
        // An executor that fails may not have come to the steps behind.
        assert!(replayed.len() - recorded.len() < capacity.max_steps_in_flight as usize);
        for (i, (recorded, replayed)) in recorded.iter().zip(&replayed).enumerate() {
            assert_eq!(recorded, replayed, "batch {i} of executor {epoch}");
        }
    }
    let without_planning = |step: StepRecord| StepRecord { planning: Nanos::default(), ..step };
    let steps: Vec<StepRecord> = engine.step_log().into_iter().map(without_planning).collect();
    assert_eq!(steps, replayed.steps);
    for (request, Seen { events, is_whole }) in &*seen.lock().expect("nobody panics with the lock") {
        let all = replayed.events.get(request).map_or(&[][..], Vec::as_slice);
        assert!(if *is_whole { all == events } else { all.starts_with(events) }, "request {}", request.0);
    }
    assert_eq!(core.stats(), stats);

    let failures = stats.failures;
    println!(
        "{} inputs, {} batches, {n_behind} readers behind, {failures:?}",
        log.inputs().len(),
        batches.len()
    );
    assert!(n_behind > 0 && failures.timed_out_steps >= 2 && failures.panicked_steps > 0);
    assert!(stats.scheduler.counters.left_out > 0, "masks came late");
    assert!(failures.failed_steps > 0 && stats.scheduler.counters.cache_hit_tokens > 0);
    replayed.batches
}
