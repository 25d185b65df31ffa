//! Tests of the gate in front of a simulated engine under random arrivals at several times its capacity. A
//! failing seed is printed; planted bugs are found.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;

use throng_core::fleet::overload::*;
use throng_core::request::TenantId;
use throng_core::scheduling::{ServiceRate, StepTime};
use throng_core::time::{Nanos, Timestamp};

const MS: u64 = 1_000_000;
const N_SLOTS: u32 = 8;
const MAX_WAIT_MS: u64 = 4_000;

/// Bugs that the test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A request that has ended still counts.
    LeakedRequest,
    /// A running request counts as a waiting one.
    FirstTokenIgnored,
    /// All tenants wait in one queue.
    OneTenant,
    /// All requests are of the least urgent class.
    OneClass,
    /// Every request is admitted.
    NoGate,
}

const BUGS: [Bug; 5] =
    [Bug::LeakedRequest, Bug::FirstTokenIgnored, Bug::OneTenant, Bug::OneClass, Bug::NoGate];

struct Entered {
    tenant: usize,
    class: ServiceClass,
    arrived: Timestamp,
    n_prompt: u64,
    n_output: u64,
    n_left: u64,
    ticket: Option<Ticket>,
}

/// Outcome of the requests of a class or tenant.
#[derive(Debug, Default, Clone, Copy)]
struct Outcome {
    n_asked: u32,
    n_refused: u32,
    n_done: u32,
    longest_wait: u64,
}

struct World {
    rng: Rng,
    gate: Gate,
    bug: Option<Bug>,
    now: Timestamp,
    waiting: [VecDeque<Entered>; 3],
    turn: usize,
    running: Vec<Entered>,
    tenants: [Outcome; 3],
    classes: [Outcome; 4],
    n_steps_full: u32,
    n_steps: u32,
}

/// Tenants with their classes and arrivals, in multiples of the engine's capacity.
type Demand = [(usize, ServiceClass, f64)];

const STEP_TIME: StepTime = StepTime {
    fixed: Nanos(10 * MS),
    per_prompt_token: Nanos(MS / 10),
    per_sequence: Nanos(MS),
    max_step_tokens: 64,
};
/// 20 output tokens and 40 prompt tokens on average.
const MEAN_OUTPUT: u64 = 20;
const MEAN_PROMPT: u64 = 40;

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut gate = Gate::new(GateConfig { max_wait: Nanos::from_ms(MAX_WAIT_MS) });
        if bug != Some(Bug::NoGate) {
            gate.set_machine(Some(ServiceRate { step_time: STEP_TIME, n_slots: N_SLOTS, n_replicas: 1 }));
        }
        Self {
            rng: Rng::with_seed(seed),
            gate,
            bug,
            now: Timestamp::from_ns(0),
            waiting: Default::default(),
            turn: 0,
            running: Vec::new(),
            tenants: Default::default(),
            classes: Default::default(),
            n_steps_full: 0,
            n_steps: 0,
        }
    }

    /// Runs for `seconds` under this demand.
    fn run(&mut self, demand: &Demand, seconds: u64) {
        // A full engine ends this many requests a second.
        let step_s = (10.0 + f64::from(N_SLOTS)) / 1e3;
        let per_request_s = step_s * MEAN_OUTPUT as f64 / f64::from(N_SLOTS) + 0.0001 * MEAN_PROMPT as f64;
        let end = self.now + Nanos::from_ms(seconds * 1_000);
        let mut due: Vec<f64> =
            demand.iter().map(|_| self.now.since(Timestamp::from_ns(0)).as_secs_f64()).collect();
        while self.now < end {
            for (&(tenant, class, times), due) in demand.iter().zip(&mut due) {
                while *due <= self.now.since(Timestamp::from_ns(0)).as_secs_f64() {
                    *due += -self.rng.f64().max(1e-9).ln() * per_request_s / times;
                    self.ask(tenant, class);
                }
            }
            self.step();
        }
    }

    fn ask(&mut self, tenant: usize, class: ServiceClass) {
        let n_prompt = self.rng.u64(1..2 * MEAN_PROMPT);
        let n_output = self.rng.u64(1..2 * MEAN_OUTPUT);
        let named = if self.bug == Some(Bug::OneTenant) { 0 } else { tenant };
        let ask = AdmissionRequest {
            tenant: TenantId(Arc::from(format!("tenant {named}"))),
            class: if self.bug == Some(Bug::OneClass) { ServiceClass::Batch } else { class },
            n_sequences: 1,
            n_prompt_tokens: n_prompt,
            max_tokens: 1_000,
            deadline: None,
        };
        let outcomes = [&mut self.tenants[tenant], &mut self.classes[class as usize]];
        let admitted = self.gate.admit(&ask, self.now);
        for outcome in outcomes {
            outcome.n_asked += 1;
            outcome.n_refused += u32::from(admitted.is_err());
        }
        if let Ok(ticket) = admitted {
            let (arrived, ticket) = (self.now, Some(ticket));
            let entered = Entered { tenant, class, arrived, n_prompt, n_output, n_left: n_output, ticket };
            self.waiting[tenant].push_back(entered);
        }
    }

    /// Runs one step of the engine: tenants take turns to begin, prompts are computed whole.
    fn step(&mut self) {
        let mut n_prompt = 0;
        while self.running.len() < N_SLOTS as usize && n_prompt < u64::from(STEP_TIME.max_step_tokens) {
            let Some(tenant) = (1..=3).map(|i| (self.turn + i) % 3).find(|&t| !self.waiting[t].is_empty())
            else {
                break;
            };
            self.turn = tenant;
            let entered = self.waiting[tenant].pop_front().expect("not empty");
            n_prompt += entered.n_prompt;
            let wait = self.now.since(entered.arrived).0 / MS;
            for outcome in [&mut self.tenants[tenant], &mut self.classes[entered.class as usize]] {
                outcome.longest_wait = outcome.longest_wait.max(wait);
            }
            self.running.push(entered);
        }
        let n = self.running.len() as u64;
        self.n_steps += 1;
        self.n_steps_full += u32::from(n == u64::from(N_SLOTS));
        self.now = self.now + Nanos(10 * MS + n * MS + n_prompt * MS / 10);
        let mut still = Vec::new();
        for mut entered in std::mem::take(&mut self.running) {
            if self.bug != Some(Bug::FirstTokenIgnored) {
                self.gate.first_token(entered.ticket.as_mut().expect("entered"), self.now);
            }
            entered.n_left -= 1;
            if entered.n_left > 0 {
                still.push(entered);
                continue;
            }
            for outcome in [&mut self.tenants[entered.tenant], &mut self.classes[entered.class as usize]] {
                outcome.n_done += 1;
            }
            let ticket = entered.ticket.take().expect("entered");
            if self.bug == Some(Bug::LeakedRequest) && self.rng.u8(..4) == 0 {
                std::mem::forget(ticket);
            } else {
                self.gate.end(ticket, entered.n_output, true);
            }
        }
        self.running = still;
    }

    fn check(&self, holds: bool, what: &str) -> Result<(), String> {
        let Self { tenants, classes, gate, .. } = self;
        if holds { Ok(()) } else { Err(format!("{what}: {tenants:?} {classes:?} {:?}", gate.n_sequences())) }
    }
}

/// Tests five times the engine's capacity of three tenants: the engine stays full, and no request waits
/// much longer than it may.
fn flood(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(seed, bug);
    let class = ServiceClass::Interactive;
    world.run(&[(0, class, 2.0), (1, class, 2.0), (2, class, 1.0)], 60);
    let longest = world.tenants.iter().map(|tenant| tenant.longest_wait).max().unwrap_or(0);
    world.check(longest <= MAX_WAIT_MS * 3 / 2, "waits are bounded")?;
    world.check(world.n_steps_full * 100 >= world.n_steps * 95, "the engine is full")?;
    let is_fair = world.tenants.iter().all(|tenant| tenant.n_done * 4 >= world.tenants[0].n_done);
    world.check(is_fair, "all tenants are served")?;
    let n_waiting = world.waiting.iter().map(|waiting| waiting.len() as u64).sum();
    let is_counted = world.gate.n_sequences() == (n_waiting, world.running.len() as u64);
    world.check(is_counted, "what waits and runs is counted")?;
    // A pause, and everything is as before.
    world.run(&[], 30);
    world.check(world.gate.n_sequences() == (0, 0), "nothing is counted that has ended")?;
    let n_refused = world.tenants[0].n_refused;
    world.run(&[(0, class, 0.5)], 30);
    world.check(world.tenants[0].n_refused == n_refused, "nobody is refused where there is room")
}

/// Tests that a flooding tenant does not take the turn of another one.
fn two_tenants(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(seed, bug);
    world.run(&[(0, ServiceClass::Default, 20.0), (1, ServiceClass::Default, 0.2)], 60);
    world.check(world.tenants[1].n_refused == 0, "a tenant below its share is not refused")?;
    world.check(world.tenants[1].longest_wait <= MAX_WAIT_MS / 2, "and does not wait for the others")
}

/// Tests that the least urgent class is refused first, but never completely.
fn classes(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (interactive, batch) = (ServiceClass::Interactive, ServiceClass::Batch);
    // Of one tenant, and of two of which neither asks for more than its share for what is urgent.
    for demand in [[(0, interactive, 0.7), (0, batch, 3.0)], [(0, interactive, 0.4), (1, batch, 3.0)]] {
        let mut world = World::new(seed, bug);
        world.run(&demand, 60);
        let [_, first, _, last] = world.classes;
        let is_kept = first.n_refused * 100 <= first.n_asked;
        world.check(is_kept, "interactive requests are not refused while batch is there")?;
        world.check(last.n_refused > 0, "batch is refused")?;
    }
    let mut world = World::new(seed, bug);
    world.run(&[(0, interactive, 5.0), (0, batch, 5.0)], 90);
    let [_, first, _, last] = world.classes;
    let n_done = first.n_done + last.n_done;
    world.check(last.n_done * 100 >= n_done * 4, "batch gets its least share")?;
    world.check(first.n_done > 2 * last.n_done, "and not much more while others ask")
}

/// A case under a seed, with a bug planted.
type Case = fn(u64, Option<Bug>) -> Result<(), String>;

const CASES: [Case; 3] = [flood, two_tenants, classes];

#[test]
fn more_than_the_engine_can_do_is_refused_at_the_gate() {
    for seed in 0..30 {
        for case in CASES {
            case(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let is_found = (0..10).any(|seed| CASES.iter().any(|case| case(seed, Some(bug)).is_err()));
        assert!(is_found, "{bug:?}");
    }
}

#[test]
fn deadlines_decide_and_waits_are_told() {
    let mut gate = Gate::new(GateConfig { max_wait: Nanos::from_ms(4_000) });
    let now = Timestamp::from_ns(0);
    let ask = |deadline_ms: Option<u64>| AdmissionRequest {
        tenant: TenantId::anonymous(),
        class: ServiceClass::Interactive,
        n_sequences: 1,
        n_prompt_tokens: 640,
        max_tokens: 20,
        deadline: deadline_ms.map(Nanos::from_ms),
    };
    let blind = gate.admit(&ask(Some(1)), now).expect("nothing is known of the machine");
    gate.end(blind, 0, false);
    gate.set_machine(Some(ServiceRate { step_time: STEP_TIME, n_slots: 1, n_replicas: 1 }));
    // Ten steps of 10 ms and 64 ms for the prompt, 20 of 11 ms for the output.
    assert!(
        matches!(gate.admit(&ask(Some(300)), now), Err(Overloaded::TooSlow { needed }) if needed == Nanos(384 * MS))
    );
    let mut first = gate.admit(&ask(Some(400)), now).expect("in time");
    let Err(Overloaded::Busy { retry_after, .. }) = gate.admit(&ask(Some(400)), now) else {
        panic!("not in time")
    };
    assert!(retry_after.0 > 100 * MS, "{retry_after:?}");
    gate.first_token(&mut first, now + Nanos::from_ms(164));
    let mut tickets = vec![first];
    let wait = loop {
        match gate.admit(&ask(None), now) {
            Ok(ticket) => tickets.push(ticket),
            Err(Overloaded::Busy { wait, retry_after }) => {
                assert_eq!(wait.0 - retry_after.0, 4_000 * MS);
                break wait;
            }
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(wait > Nanos::from_ms(4_000) && tickets.len() > 2, "{wait:?}");
    tickets.into_iter().for_each(|ticket| gate.end(ticket, 20, true));
    assert_eq!(gate.n_sequences(), (0, 0));
}
