//! A tenant that sends a hundred times as much as another hardly raises the other's times to the first token,
//! and loses little of the machine: under a virtual clock, on machines whose steps take a fixed time and a
//! time for each token.

use std::collections::BTreeMap;

use fastrand::Rng;
use throng_core::request::{Request, RequestId, SamplingParams, TenantId};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::PaperExecutor;

const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 4096,
    max_batch_tokens: 512,
    max_batch_sequences: 128,
    max_sequence_tokens: 8192,
    vocabulary_size: 1000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

const N_QUIET_REQUESTS: usize = 200;
const N_WARM_UP: usize = 10;
const QUIET: u32 = u32::MAX;

/// How fast a machine is.
#[derive(Debug, Clone, Copy)]
struct ServiceRate {
    us_a_step: u64,
    us_a_token: u64,
}

/// What each client of the loud tenant asks for, one request after the other.
#[derive(Debug, Clone, Copy)]
struct Loud {
    n_clients: u32,
    n_prompt: usize,
    n_output: u32,
}

/// One scheduler with its executor and clients.
struct World {
    rng: Rng,
    machine: ServiceRate,
    scheduler: Scheduler,
    executor: PaperExecutor,
    now: Timestamp,
    n_requests: u64,
    /// Tenant and arrival of each running request.
    open: BTreeMap<RequestId, (u32, Timestamp)>,
    n_loud_tokens: usize,
    quiet_times_ms: Vec<f64>,
}

impl World {
    fn new(seed: u64, machine: ServiceRate) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            machine,
            scheduler: Scheduler::new(SchedulerConfig::default(), CAPACITY),
            executor: PaperExecutor::new(CAPACITY),
            now: Timestamp::default(),
            n_requests: 0,
            open: BTreeMap::new(),
            n_loud_tokens: 0,
            quiet_times_ms: Vec::new(),
        }
    }

    fn submit(&mut self, client: u32, n_prompt: usize, max_tokens: u32, arrived: Timestamp) {
        let id = RequestId(self.n_requests);
        self.n_requests += 1;
        let request = Request {
            tenant: TenantId(if client == QUIET { "quiet" } else { "loud" }.into()),
            ..Request::plain(
                id,
                (0..n_prompt).map(|_| self.rng.u32(..1000)).collect::<Vec<_>>(),
                SamplingParams { max_tokens, ignore_eos: true, ..Default::default() },
            )
        };
        self.scheduler.submit(request, arrived).expect("there is room");
        self.open.insert(id, (client, arrived));
    }

    /// Runs one step. Says who has been answered.
    fn step(&mut self) -> Vec<u32> {
        let step = self.scheduler.plan(self.now, &mut |_| {}).expect("somebody waits");
        let mut output = StepOutput::default();
        self.executor.execute(step.batch(), &mut output).expect("paper does not fail");
        let n_tokens = step.batch().n_tokens() as u64;
        self.now = self.now + Nanos(1000 * (self.machine.us_a_step + self.machine.us_a_token * n_tokens));
        let (open, now, mut answered) = (&mut self.open, self.now, Vec::new());
        let (n_loud_tokens, times) = (&mut self.n_loud_tokens, &mut self.quiet_times_ms);
        for scheduled in step.batch().sequences() {
            let is_loud = open.get(&scheduled.id.request).is_some_and(|&(client, _)| client != QUIET);
            *n_loud_tokens += if is_loud { scheduled.n_tokens() } else { 0 };
        }
        self.scheduler.complete(step, &output, now, &mut |event| match event {
            Event::PromptDone { request, .. } => {
                let (client, arrived) = open[&request];
                if client == QUIET {
                    times.push(now.since(arrived).as_ms_f64());
                }
            }
            Event::Finished { sequence, .. } => {
                answered.extend(open.remove(&sequence.request).map(|(client, _)| client));
            }
            _ => {}
        });
        answered
    }

    /// The quiet tenant sends one request after the other, the loud one as it does. Returns the loud tenant's
    /// tokens a second.
    fn run(&mut self, loud: Option<Loud>) -> f64 {
        for client in 0..loud.map_or(0, |loud| loud.n_clients) {
            let Loud { n_prompt, n_output, .. } = loud.expect("it has clients");
            self.submit(client, n_prompt, n_output, self.now);
        }
        for _ in 0..if loud.is_some() { 300 } else { 0 } {
            self.step_loud(loud);
        }
        let (begun, n_before) = (self.now, self.n_loud_tokens);
        for number in 0..N_QUIET_REQUESTS {
            // Steps are short once the tenant is known.
            if number == N_WARM_UP {
                self.quiet_times_ms.clear();
            }
            let n_due = self.n_loud_tokens + loud.map_or(0, |_| 100 * self.rng.usize(60..100));
            while self.n_loud_tokens < n_due {
                self.step_loud(loud);
            }
            // It arrives while a step runs.
            let begun = self.now;
            if loud.is_some() {
                self.step_loud(loud);
            }
            let arrived = begun + Nanos(self.rng.u64(..=self.now.since(begun).0));
            let n_prompt = self.rng.usize(60..100);
            self.submit(QUIET, n_prompt, 4, arrived);
            while self.open.values().any(|&(client, _)| client == QUIET) {
                self.step_loud(loud);
            }
        }
        (self.n_loud_tokens - n_before) as f64 / (self.now.since(begun).as_secs_f64())
    }

    fn step_loud(&mut self, loud: Option<Loud>) {
        for client in self.step() {
            if let Some(loud) = loud.filter(|_| client != QUIET) {
                self.submit(client, loud.n_prompt, loud.n_output, self.now);
            }
        }
    }
}

fn p99(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}

/// Runs the quiet tenant alone and beside the loud one: by how much its 99th percentile rises, and the loud
/// tenant's tokens by what the machine computes at most.
fn rise_and_use(seed: u64, machine: ServiceRate, loud: Loud) -> (f64, f64) {
    let (mut alone, mut beside) = (World::new(seed, machine), World::new(seed, machine));
    alone.run(None);
    let tokens_per_s = beside.run(Some(loud));
    let rise = p99(&beside.quiet_times_ms) / p99(&alone.quiet_times_ms);
    let step_us = machine.us_a_step + machine.us_a_token * u64::from(CAPACITY.max_batch_tokens);
    let most_per_s = f64::from(CAPACITY.max_batch_tokens) / (step_us as f64 / 1e6);
    println!(
        "seed {seed}, {machine:?}, {loud:?}: {rise:.2} times alone, {:.2} of the machine",
        tokens_per_s / most_per_s
    );
    (rise, tokens_per_s / most_per_s)
}

#[test]
fn a_loud_tenant_hardly_delays_a_quiet_one() {
    let fast = ServiceRate { us_a_step: 150, us_a_token: 30 };
    let slow = ServiceRate { us_a_step: 14_000, us_a_token: 3_500 };
    let short = Loud { n_clients: 100, n_prompt: 80, n_output: 4 };
    let medium = Loud { n_clients: 100, n_prompt: 400, n_output: 2 };
    let long = Loud { n_clients: 1, n_prompt: 8000, n_output: 4 };
    let decoding = Loud { n_clients: 100, n_prompt: 20, n_output: 40 };
    let seed = fastrand::u64(..);
    let cases = [
        (fast, short, 1.5),
        (fast, medium, 1.5),
        (fast, long, 1.5),
        (fast, decoding, 1.5),
        // Its longest prompts need more than one step, which the others' tokens take part in.
        (slow, short, 2.2),
        (slow, long, 1.5),
    ];
    for (machine, loud, most) in cases {
        let (rise, used) = rise_and_use(seed, machine, loud);
        assert!(rise <= most, "seed {seed}, {machine:?}, {loud:?}: {rise}");
        assert!(used >= 0.8, "seed {seed}, {machine:?}, {loud:?}: {used}");
    }
}
