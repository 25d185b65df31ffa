//! The policies of the router on a trace of a real service, under a virtual clock: Mooncake's conversations,
//! 12,031 requests of an hour with the names of their prefixes (Qin et al., FAST 2025). `cargo test
//! --workspace --test integration routing_trace -- --nocapture` prints the table of `docs/fleet.md`.

use std::collections::VecDeque;

use throng_core::fleet::routing::{
    CachedPrefixes, LoadReport, Policy, PrefixIndex, Query, ReplicaId, Router, Ticket,
};
use throng_core::scheduling::StepTime;
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::time::{Nanos, Timestamp};

/// The trace names blocks of 512 tokens and the router takes a name for 16, so prompts are counted in units
/// of 32 tokens.
const UNIT: u64 = 32;
const N_REPLICAS: usize = 4;
/// Tokens that a name of the trace stands for.
const BLOCK: usize = 512;
/// Requests a second in parts of the trace's, and names that a replica has room for: 0.5 and 4 million
/// tokens.
const SETTINGS: [(f64, usize); 3] = [(1.0, 1000), (1.2, 1000), (1.0, 8000)];
/// Time of a step of one replica: 10 ms, 60 µs a prompt token, 0.2 ms a sequence that decodes, at most 2,048
/// prompt tokens.
const STEP: StepTime = StepTime {
    fixed: Nanos::from_ms(10),
    per_prompt_token: Nanos(60_000 * UNIT),
    per_sequence: Nanos(200_000),
    max_step_tokens: 2048 / UNIT as u32,
};
/// Between two reports of a replica, as workers send them.
const REPORT_INTERVAL: Nanos = Nanos::from_ms(250);
/// A request counts for goodput if its first token comes within this.
const TTFT_TARGET_MS: f64 = 5_000.0;

struct Arrival {
    at: Timestamp,
    n_units: u32,
    n_output: u32,
    blocks: Vec<BlockKey>,
}

/// A request at a replica.
struct Job {
    arrived: Timestamp,
    ticket: Ticket,
    n_left: u64,
    n_output: u32,
    blocks: Vec<BlockKey>,
}

/// A replica that runs steps: prompts in the order of their arrival, in chunks, and all that decode beside
/// them.
struct Replica {
    id: ReplicaId,
    cache: CachedPrefixes,
    waiting: VecDeque<Job>,
    decoding: Vec<Job>,
    now: Timestamp,
}

#[derive(Default)]
struct Outcome {
    ttft_ms: Vec<f64>,
    n_cached: u64,
    n_units: u64,
}

impl Outcome {
    fn hit_rate(&self) -> f64 {
        self.n_cached as f64 / self.n_units as f64
    }

    fn mean_ms(&self) -> f64 {
        self.ttft_ms.iter().sum::<f64>() / self.ttft_ms.len() as f64
    }

    fn percentile_ms(&self, part: f64) -> f64 {
        self.ttft_ms[((self.ttft_ms.len() - 1) as f64 * part) as usize]
    }

    fn goodput(&self) -> f64 {
        let n_good = self.ttft_ms.iter().filter(|&&ms| ms <= TTFT_TARGET_MS).count();
        n_good as f64 / self.ttft_ms.len() as f64
    }
}

impl Replica {
    fn n_queued(&self) -> u64 {
        self.waiting.iter().map(|job| job.n_left).sum()
    }

    fn report(&self) -> LoadReport {
        LoadReport {
            n_queued_tokens: self.n_queued(),
            n_decoding: self.decoding.len() as u32,
            step_time: STEP,
            ..LoadReport::default()
        }
    }

    /// Runs the steps that begin before `until`.
    fn run_until(&mut self, until: Timestamp, router: &mut Router, outcome: &mut Outcome) {
        while self.now < until && !(self.waiting.is_empty() && self.decoding.is_empty()) {
            self.step(router, outcome);
        }
        self.now = self.now.max(until);
    }

    fn step(&mut self, router: &mut Router, outcome: &mut Outcome) {
        let mut budget = u64::from(STEP.max_step_tokens);
        let mut n_computed = 0;
        let mut n_done = 0;
        for job in &mut self.waiting {
            let n = job.n_left.min(budget);
            (job.n_left, budget, n_computed) = (job.n_left - n, budget - n, n_computed + n);
            n_done += usize::from(job.n_left == 0);
            if budget == 0 {
                break;
            }
        }
        let decoding = STEP.per_sequence.0 * self.decoding.len() as u64;
        self.now = self.now + Nanos(STEP.fixed.0 + STEP.per_prompt_token.0 * n_computed + decoding);
        for job in &mut self.decoding {
            job.n_output -= 1;
        }
        for mut job in self.waiting.drain(..n_done) {
            outcome.ttft_ms.push(self.now.since(job.arrived).0 as f64 / 1e6);
            router.first_token(&mut job.ticket);
            self.cache.publish(&job.blocks);
            job.n_output = job.n_output.saturating_sub(1);
            self.decoding.push(job);
        }
        for job in self.decoding.extract_if(.., |job| job.n_output == 0) {
            router.end(job.ticket);
        }
    }
}

fn arrivals(text: &str, load: f64) -> Vec<Arrival> {
    let numbers = |line: &str| -> Vec<u64> {
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    let arrival = |line: &str| {
        let [ms, n_input, n_output, names @ ..] = &*numbers(line) else { panic!("four fields: {line}") };
        let at = Timestamp::from_ns((*ms as f64 * 1e6 / load) as u64);
        let n_units = n_input.div_ceil(UNIT).max(1) as u32;
        // A name stands for a full block.
        let n_full = (n_units / 16) as usize;
        let blocks = names.iter().take(n_full).map(|&name| BlockKey(name)).collect();
        Arrival { at, n_units, n_output: (*n_output).max(1) as u32, blocks }
    };
    text.lines().map(arrival).collect()
}

fn simulate(policy: Policy, arrivals: &[Arrival], cache_blocks: usize) -> Outcome {
    let mut router = Router::new(policy, 7);
    let replica = |router: &mut Router, i: usize| Replica {
        id: router.add(&i.to_string(), PrefixIndex::Inferred, cache_blocks),
        cache: CachedPrefixes::new(cache_blocks),
        waiting: VecDeque::new(),
        decoding: Vec::new(),
        now: Timestamp::from_ns(0),
    };
    let mut replicas: Vec<Replica> = (0..N_REPLICAS).map(|i| replica(&mut router, i)).collect();
    let ids: Vec<ReplicaId> = replicas.iter().map(|replica| replica.id).collect();
    let (mut outcome, mut reported) = (Outcome::default(), Timestamp::from_ns(0));
    for arrival in arrivals {
        replicas.iter_mut().for_each(|replica| replica.run_until(arrival.at, &mut router, &mut outcome));
        if arrival.at.since(reported) >= REPORT_INTERVAL {
            replicas.iter().for_each(|replica| router.report(replica.id, replica.report(), arrival.at));
            reported = arrival.at;
        }
        let query = Query {
            n_tokens: arrival.n_units,
            blocks: &arrival.blocks,
            session: None,
            pinned: None,
            eligible: &ids,
            regions: None,
        };
        let choice = router.choose(&query, arrival.at).expect("a replica");
        let ticket = router.start(&choice, &query);
        let replica = replicas.iter_mut().find(|replica| replica.id == choice.replica).expect("known");
        let n_cached =
            (replica.cache.n_cached(&arrival.blocks) as u64 * 16).min(u64::from(arrival.n_units) - 1);
        outcome.n_cached += n_cached;
        outcome.n_units += u64::from(arrival.n_units);
        let n_left = u64::from(arrival.n_units) - n_cached;
        let (arrived, n_output, blocks) = (arrival.at, arrival.n_output, arrival.blocks.clone());
        replica.waiting.push_back(Job { arrived, ticket, n_left, n_output, blocks });
    }
    let end = Timestamp::from_ns(u64::MAX / 2);
    replicas.iter_mut().for_each(|replica| replica.run_until(end, &mut router, &mut outcome));
    outcome.ttft_ms.sort_by(f64::total_cmp);
    outcome
}

#[test]
fn the_default_policy_is_the_best_on_mooncakes_conversations() {
    let Some(path) = throng_testkit::shared_files::shared("traces/mooncake_conversation.jsonl") else {
        return;
    };
    let text = std::fs::read_to_string(path).expect("readable");
    println!(
        "| load, cache of a replica | policy | cache hits | TTFT mean, p50, p90, p99 (s) | within 5 s |"
    );
    for (load, cache_blocks) in SETTINGS {
        let arrivals = arrivals(&text, load);
        assert_eq!(arrivals.len(), 12_031);
        let outcomes = Policy::ALL.map(|policy| (policy, simulate(policy, &arrivals, cache_blocks)));
        for (policy, outcome) in &outcomes {
            assert_eq!(outcome.ttft_ms.len(), arrivals.len(), "each request has a first token");
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| outcome.percentile_ms(part) / 1e3);
            let (hits, mean) = (100.0 * outcome.hit_rate(), outcome.mean_ms() / 1e3);
            let (good, name) = (100.0 * outcome.goodput(), policy.name());
            let setting = format!("{load}, {} k tokens", cache_blocks * BLOCK / 1000);
            println!(
                "| {setting} | `{name}` | {hits:.1} % | {mean:.2}, {p50:.2}, {p90:.2}, {p99:.2} | {good:.1} % |"
            );
        }
        let default =
            outcomes.iter().find(|(policy, _)| *policy == Policy::default()).map(|(_, outcome)| outcome);
        let default = default.expect("one of all");
        for (policy, other) in &outcomes {
            let name = policy.name();
            assert!(default.hit_rate() >= 0.97 * other.hit_rate(), "hits of {name} at {load}");
            assert!(default.mean_ms() <= 1.03 * other.mean_ms(), "mean time of {name} at {load}");
            assert!(
                default.percentile_ms(0.99) <= 1.03 * other.percentile_ms(0.99),
                "p99 of {name} at {load}"
            );
            assert!(default.goodput() >= other.goodput(), "goodput of {name} at {load}");
        }
    }
}
