//! Runs scenarios: parses a line, applies it to a scheduler, and prints the effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{Priority, Request, RequestId, SamplingParams, SequenceId, TenantId, TokenId};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{
    Event, Scheduler, SchedulerConfig, SchedulingPolicy, SpeculationMethod, Step,
};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::PaperExecutor;

const VOCABULARY_SIZE: u32 = 1000;

/// A scheduler on a machine whose steps take `ms_a_step + ms_a_token · tokens`.
pub struct Stage {
    scheduler: Scheduler,
    executor: PaperExecutor,
    ms_a_step: u64,
    ms_a_token: u64,
    now: Timestamp,
    names: Vec<String>,
    /// The steps in flight, the oldest first.
    steps: VecDeque<Step>,
}

impl Default for Stage {
    fn default() -> Self {
        Self::new(&BTreeMap::new())
    }
}

impl Stage {
    /// The effects of one line.
    pub fn run(&mut self, words: &[&str]) -> Vec<String> {
        let options: BTreeMap<&str, &str> = words.iter().filter_map(|word| word.split_once('=')).collect();
        match words {
            [] | ["#", ..] => Vec::new(),
            ["engine", ..] => {
                *self = Self::new(&options);
                Vec::new()
            }
            ["submit", name, ..] => self.submit(name, &options),
            ["abort", name] => self.abort(name),
            ["pause", name] => {
                self.scheduler.pause(self.id_of(name));
                self.scheduler.check_invariants().expect("the books are in order");
                Vec::new()
            }
            ["resume", name] => {
                self.scheduler.resume(self.id_of(name));
                Vec::new()
            }
            ["plan"] => self.plan(),
            ["complete"] => self.complete(),
            ["lose"] => self.lose(),
            ["step"] => self.steps(1),
            ["step", n] => self.steps(number(n)),
            ["run"] => self.steps(1000),
            _ => panic!("what is {words:?}?"),
        }
    }

    fn new(options: &BTreeMap<&str, &str>) -> Self {
        let capacity = ExecutorCapacity {
            n_blocks: get(options, "blocks", 100),
            max_batch_tokens: get(options, "tokens", 64),
            max_batch_sequences: get(options, "sequences", 8),
            max_sequence_tokens: get(options, "context", 10_000),
            vocabulary_size: VOCABULARY_SIZE,
            n_state_slots: 0,
            max_steps_in_flight: get(options, "steps_in_flight", 1),
            takes_whole_prompts: get(options, "whole_prompts", 0) > 0,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let config = SchedulerConfig {
            inter_token_target_ms: get(options, "target_ms", 1_000_000),
            max_queued_requests: get(options, "queued_requests", 100),
            max_queued_tokens: get(options, "queued_tokens", 100_000),
            prefix_caching: options.get("caching") != Some(&"off"),
            speculation: match options.get("lookup") {
                Some(&"on") => SpeculationMethod::PromptLookup,
                _ => SpeculationMethod::None,
            },
            policy: match options.get("policy") {
                Some(&"fcfs") => SchedulingPolicy::Fcfs,
                _ => SchedulingPolicy::Priority,
            },
            ..SchedulerConfig::default()
        };
        Self {
            scheduler: Scheduler::new(config, capacity),
            executor: PaperExecutor::new(capacity).with_drafts(Rng::with_seed(5), get(options, "drafts", 0)),
            ms_a_step: get(options, "ms_a_step", 10),
            ms_a_token: get(options, "ms_a_token", 0),
            now: Timestamp::default(),
            names: Vec::new(),
            steps: VecDeque::new(),
        }
    }

    fn submit(&mut self, name: &str, options: &BTreeMap<&str, &str>) -> Vec<String> {
        let request = Request {
            tenant: TenantId(options.get("tenant").copied().unwrap_or_default().into()),
            cache_salt: options.get("salt").map(|&salt| Arc::from(salt)),
            n: get(options, "n", 1),
            priority: Priority(get(options, "priority", 0)),
            ..Request::plain(
                RequestId(self.names.len() as u64),
                options.get("prompt").map_or_else(Vec::new, |text| prompt(text)),
                SamplingParams {
                    max_tokens: get(options, "max", 1),
                    prompt_logprobs: options.get("prompt_logprobs").map(|n| number(n)),
                    ..SamplingParams::default()
                },
            )
        };
        match self.scheduler.submit(request, self.now) {
            Ok(()) => {
                self.names.push(name.to_owned());
                Vec::new()
            }
            Err(refusal) => vec![format!("refused: {refusal}")],
        }
    }

    fn abort(&mut self, name: &str) -> Vec<String> {
        let (name, index) = name.split_once('.').map_or((name, None), |(name, index)| (name, Some(index)));
        let request = self.id_of(name);
        let (names, mut effects) = (&self.names, Vec::new());
        let mut emit = |event: Event<'_>| effects.extend(describe(names, &event));
        match index {
            None => self.scheduler.abort(request, self.now, &mut emit),
            Some(index) => {
                let sequence = SequenceId { request, index: number(index) };
                self.scheduler.abort_sequence(sequence, self.now, &mut emit);
            }
        }
        effects
    }

    fn id_of(&self, name: &str) -> RequestId {
        let id = self.names.iter().position(|known| known == name).expect("a request that was submitted");
        RequestId(id as u64)
    }

    fn steps(&mut self, n: usize) -> Vec<String> {
        let mut effects = Vec::new();
        for _ in 0..n {
            if self.scheduler.is_idle() {
                break;
            }
            while self.steps.len() < self.scheduler.max_steps_in_flight() {
                let n_before = self.steps.len();
                effects.extend(self.plan());
                if self.steps.len() == n_before {
                    break;
                }
            }
            if self.steps.is_empty() {
                break;
            }
            effects.extend(self.complete());
        }
        effects
    }

    fn plan(&mut self) -> Vec<String> {
        let (names, mut effects) = (&self.names, Vec::new());
        let mut emit = |event: Event<'_>| effects.extend(describe(names, &event));
        let Some(step) = self.scheduler.plan(self.now, &mut emit) else {
            return if self.steps.is_empty() { vec!["nothing to do".into()] } else { effects };
        };
        self.executor.submit(step.batch()).expect("paper does not fail");
        let batch = step.batch();
        assert_eq!(step.shape().n_tokens, batch.n_tokens(), "the step is not what was planned");
        let sequences = batch.sequences().iter().map(|scheduled| {
            let (start, end) = (scheduled.start, scheduled.start as usize + scheduled.n_known());
            let carried = if scheduled.carried.is_some() { " carried" } else { "" };
            let sampled = if scheduled.sample { " -> token" } else { "" };
            let drafts =
                if scheduled.n_drafts > 0 { format!(" +{}", scheduled.n_drafts) } else { String::new() };
            format!(
                "{} {start}..{end}{carried}{drafts}{sampled}",
                describe_sequence(&self.names, scheduled.id)
            )
        });
        let sequences: Vec<String> = sequences.collect();
        let stats = self.scheduler.stats();
        let n_free = stats.total_blocks - stats.used_blocks - stats.cached_blocks;
        let paused = if stats.paused > 0 { format!(", paused {}", stats.paused) } else { String::new() };
        let at = self.now.since(Timestamp::default()).as_ms_f64();
        effects.push(format!(
            "{at} ms: {} (waiting {}{paused}; blocks used {}, cached {}, free {n_free})",
            sequences.join(", "),
            stats.waiting,
            stats.used_blocks,
            stats.cached_blocks
        ));
        self.steps.push_back(step);
        effects
    }

    fn complete(&mut self) -> Vec<String> {
        let Some(step) = self.steps.pop_front() else { return Vec::new() };
        let mut output = StepOutput::default();
        self.executor.collect(step.batch(), &mut output).expect("paper does not fail");
        let ms = self.ms_a_step + self.ms_a_token * step.batch().n_tokens() as u64;
        self.now = self.now + Nanos::from_ms(ms);
        let (names, mut effects) = (&self.names, Vec::new());
        let mut emit = |event: Event<'_>| effects.extend(describe(names, &event));
        self.scheduler.complete(step, &output, self.now, &mut emit);
        self.scheduler.check_invariants().expect("the books are in order");
        effects
    }

    /// The oldest step in flight is lost, and the executor with it.
    fn lose(&mut self) -> Vec<String> {
        let Some(step) = self.steps.pop_front() else { return Vec::new() };
        let (names, mut effects) = (&self.names, Vec::new());
        let mut emit = |event: Event<'_>| effects.extend(describe(names, &event));
        self.scheduler.fail(step, self.now, &mut emit);
        for step in self.steps.drain(..) {
            self.scheduler.discard(step, self.now);
        }
        self.scheduler.reset_cache();
        self.executor = PaperExecutor::new(self.executor.capacity());
        self.scheduler.check_invariants().expect("the books are in order");
        effects
    }
}

fn describe_sequence(names: &[String], id: SequenceId) -> String {
    format!("{}.{}", names[id.request.0 as usize], id.index)
}

/// The events that are printed: not each token, and not that a request left the queue.
fn describe(names: &[String], event: &Event<'_>) -> Option<String> {
    let name = |id: &RequestId| &names[id.0 as usize];
    match event {
        Event::Dequeued { .. } | Event::Token { .. } => None,
        Event::PromptToken { request, token } => {
            Some(format!("{}: logprob of prompt token {}", name(request), token.chosen.token))
        }
        Event::PromptDone { request, cached_tokens } => {
            Some(format!("{}: prompt done, {cached_tokens} tokens cached", name(request)))
        }
        Event::Finished { sequence, reason, timeline } => {
            let preempted = match timeline.n_preemptions {
                0 => String::new(),
                n => format!(", preempted {n}x"),
            };
            let n_tokens = timeline.output_tokens;
            Some(format!("{}: {reason:?} after {n_tokens}{preempted}", describe_sequence(names, *sequence)))
        }
        Event::Failed { request, failure } => Some(format!("{}: {failure}", name(request))),
    }
}

fn get<T: std::str::FromStr>(options: &BTreeMap<&str, &str>, name: &str, otherwise: T) -> T {
    options.get(name).map_or(otherwise, |value| number(value))
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

/// `system:32+me:8`: 32 tokens that every `system` begins with, then 8 of `me`.
fn prompt(text: &str) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    for part in text.split('+') {
        let (word, n) = part.split_once(':').expect("word:count");
        let seed = word.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        tokens.extend((0..number(n)).map(|i: u32| (seed.wrapping_add(i * 17)) % VOCABULARY_SIZE));
    }
    tokens
}
