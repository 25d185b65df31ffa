//! One of four workers is slow, fails now and then, or fails always, while its connection is whole: requests
//! leave it, no client sees an error, few attempts are made twice, and it comes back once it is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, completion};
use crate::running_worker::{RunningWorker, all_ready, gateway_with, until};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_gateway::{Fleet, GatewayConfig, RoutingPolicy};
use throng_testkit::paper_executor::PaperExecutor;

const N_WORKERS: usize = 4;
const N_CLIENTS: usize = 8;
/// Step time of a healthy worker.
const STEP_MS: u64 = 30;

/// How a worker is; it may change at any time.
#[derive(Debug, Default)]
struct Condition {
    step_ms: AtomicU64,
    /// Each step of this number with a client's prompt fails; 1: all steps, those of probes too; 0: none.
    failing_step: AtomicU64,
    /// Steps with a client's prompt.
    n_steps: AtomicU64,
}

struct Conditional {
    paper: PaperExecutor,
    condition: Arc<Condition>,
}

impl Executor for Conditional {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        std::thread::sleep(Duration::from_millis(self.condition.step_ms.load(Ordering::Relaxed)));
        // A probe's prompt is shorter. It must not fail by chance, or it would be the reason of the ejection.
        let is_of_client =
            batch.sequences().iter().any(|sequence| sequence.n_prompt as usize == PROMPT_TOKENS);
        let number = self.condition.n_steps.fetch_add(u64::from(is_of_client), Ordering::Relaxed) + 1;
        let fails = match self.condition.failing_step.load(Ordering::Relaxed) {
            0 => false,
            1 => true,
            n => is_of_client && number.is_multiple_of(n),
        };
        if fails {
            return Err(ExecutorError::Device("an injected fault".into()));
        }
        self.paper.execute(batch, output)
    }
}

/// Four workers, of which the first may be ill, behind a gateway.
struct Place {
    workers: Vec<RunningWorker>,
    condition: Arc<Condition>,
    address: std::net::SocketAddr,
    _fleet: Fleet,
}

impl Place {
    async fn start(policy: &str) -> Self {
        let condition = || Arc::new(Condition { step_ms: STEP_MS.into(), ..Condition::default() });
        let conditions: Vec<Arc<Condition>> = (0..N_WORKERS).map(|_| condition()).collect();
        let mut workers = Vec::new();
        for condition in &conditions {
            let condition = condition.clone();
            let make = move |capacity| {
                let paper = PaperExecutor::new(capacity);
                Box::new(Conditional { paper, condition: condition.clone() }) as Box<dyn Executor>
            };
            workers.push(RunningWorker::start_over(make, 512, "paper", |_| {}).await);
        }
        let mut config = GatewayConfig::default();
        config.routing.policy = serde_json::from_value::<RoutingPolicy>(json!(policy)).expect("a policy");
        let (fleet, address) = gateway_with(config, &workers.iter().collect::<Vec<_>>()).await;
        let mut client = Client::connect(address).await;
        until(&mut client, |workers| workers.len() == N_WORKERS && all_ready(workers)).await;
        Self { workers, condition: conditions[0].clone(), address, _fleet: fleet }
    }

    /// The state and the reason of the first worker, as the gateway tells them.
    async fn first(&self) -> (String, String) {
        let told = Client::connect(self.address).await.get("/fleet").await.json();
        let text = |name: &str| told["workers"][0][name].as_str().unwrap_or_default().to_owned();
        (text("state"), text("reason"))
    }

    async fn until_first_is(&self, state: &str) -> String {
        let waiting = async {
            loop {
                let (now, reason) = self.first().await;
                if now == state {
                    return reason;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so")
    }

    /// Prompt tokens that each worker has computed or found in its cache.
    fn prompt_tokens(&self) -> Vec<u64> {
        let counters = |worker: &RunningWorker| worker.engine.stats().scheduler.counters;
        self.workers.iter().map(|worker| counters(worker).cache_query_tokens).collect()
    }

    /// Many clients ask `n` requests in all, each for a prompt of its own. The share of the first worker in
    /// what all workers were given, the attempts for each request, and the p99 of the answers' times.
    async fn load(&self, n: usize, seed: u64) -> Load {
        let before = self.prompt_tokens();
        let of_client = |client: usize| async move {
            let mut connection = Client::connect(self.address).await;
            let mut times = Vec::new();
            for number in (client..n).step_by(N_CLIENTS) {
                let mut random = fastrand::Rng::with_seed(seed + number as u64);
                let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|_| random.u32(..250)).collect();
                let body = completion(json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true}));
                let began = Instant::now();
                let reply = connection.post("/v1/completions", &body).await;
                assert_eq!(reply.status, 200, "request {number} of seed {seed}: {}", reply.text());
                times.push(began.elapsed());
            }
            times
        };
        let times = futures_util::future::join_all((0..N_CLIENTS).map(of_client)).await;
        let mut times: Vec<Duration> = times.into_iter().flatten().collect();
        times.sort_unstable();
        let given: Vec<u64> =
            self.prompt_tokens().iter().zip(before).map(|(now, before)| now - before).collect();
        let total: u64 = given.iter().sum();
        let load = Load {
            share: given[0] as f64 / total as f64,
            attempts: total as f64 / (n * PROMPT_TOKENS) as f64,
            p99: times[times.len() * 99 / 100],
        };
        println!("{load:?}");
        load
    }
}

const PROMPT_TOKENS: usize = 64;

#[derive(Debug)]
struct Load {
    share: f64,
    attempts: f64,
    p99: Duration,
}

fn seed() -> u64 {
    let seed = std::env::var("THRONG_SEED")
        .map_or_else(|_| fastrand::u64(..1 << 32), |text| text.parse().expect("a number"));
    println!("THRONG_SEED={seed}");
    seed
}

/// The worker is ill for a while: it is ejected for one of these reasons, loses nearly all of its requests,
/// and comes back when it is well.
async fn is_left_and_comes_back(policy: &str, expected: &[&str], ill: impl Fn(&Condition)) {
    let (place, seed) = (Place::start(policy).await, seed());
    place.load(200, seed).await;
    ill(&place.condition);
    // Some requests must find out.
    let mut number = 1;
    let reason = loop {
        place.load(100, seed + 1000 * number).await;
        number += 1;
        let (state, reason) = place.first().await;
        if state == "ejected" {
            break reason;
        }
        assert!(number < 50, "it is never ejected: {state} {reason}");
    };
    assert!(expected.contains(&&*reason), "{reason}");
    // No probe succeeds, so that it stays ejected while it is looked at.
    place.condition.failing_step.store(1, Ordering::Relaxed);
    let without = place.load(200, seed + 1000 * number).await;
    assert!(without.share < 0.1, "{policy}: an ejected worker still gets requests: {without:?}");
    place.condition.step_ms.store(STEP_MS, Ordering::Relaxed);
    place.condition.failing_step.store(0, Ordering::Relaxed);
    place.until_first_is("ready").await;
    let again = place.load(200, seed + 1000 * (number + 1)).await;
    assert!(again.share > 0.1, "{policy}: it gets no requests although it is well: {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_ten_times_slower_loses_its_requests() {
    let slow = |condition: &Condition| condition.step_ms.store(10 * STEP_MS, Ordering::Relaxed);
    is_left_and_comes_back("round-robin", &["slow"], slow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predicted_times_keep_requests_from_a_slow_worker() {
    let (place, seed) = (Place::start("least-ttft").await, seed());
    let healthy = place.load(200, seed).await;
    place.condition.step_ms.store(10 * STEP_MS, Ordering::Relaxed);
    // Its reports tell the router how long its steps take now, or its answers that it must be ejected.
    place.load(200, seed + 1000).await;
    let slow = place.load(400, seed + 2000).await;
    println!("p99 of answers: {:?} with four fast workers, {:?} beside a slow one", healthy.p99, slow.p99);
    assert!(slow.share < 0.1, "{slow:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_fails_one_step_in_twenty_loses_its_requests() {
    let failing = |condition: &Condition| condition.failing_step.store(20, Ordering::Relaxed);
    // A probe, and several requests one after the other, may meet failing steps as well.
    let reasons = ["failure rate", "failed probe", "consecutive failures"];
    is_left_and_comes_back("round-robin", &reasons, failing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_always_fails_costs_few_attempts_and_no_client_an_answer() {
    let (place, seed) = (Place::start("round-robin").await, seed());
    place.condition.failing_step.store(1, Ordering::Relaxed);
    let load = place.load(600, seed).await;
    assert!(load.attempts <= 1.10, "{load:?}");
    let (state, reason) = place.first().await;
    assert_ne!(state, "ready", "{reason}");
}

/// Nobody can be asked where all fail; their clients are told, and attempts are not multiplied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_end_where_everything_fails() {
    let make = |capacity| {
        let condition = Arc::new(Condition { failing_step: 1.into(), ..Condition::default() });
        Box::new(Conditional { paper: PaperExecutor::new(capacity), condition }) as Box<dyn Executor>
    };
    let mut workers = Vec::new();
    for _ in 0..N_WORKERS {
        workers.push(RunningWorker::start_over(make, 512, "paper", |_| {}).await);
    }
    let (_fleet, address) = gateway_with(GatewayConfig::default(), &workers.iter().collect::<Vec<_>>()).await;
    let mut client = Client::connect(address).await;
    until(&mut client, |workers| workers.iter().all(|worker| worker["models"] != Value::Null)).await;
    let n = 300;
    for number in 0..n {
        let body = completion(json!({"prompt": vec![number % 250; PROMPT_TOKENS], "max_tokens": 2}));
        let reply = client.post("/v1/completions", &body).await;
        assert!(matches!(reply.status, 500 | 503), "{}", reply.text());
    }
    let counters = |worker: &RunningWorker| worker.engine.stats().scheduler.counters.cache_query_tokens;
    let attempts = workers.iter().map(counters).sum::<u64>() as f64 / (n as usize * PROMPT_TOKENS) as f64;
    println!("{attempts:.3} attempts a request where all fail");
    // A tenth of the requests, and the ten retries that are reserved.
    assert!(attempts <= 1.10 + 10.0 / f64::from(n) + 0.05, "{attempts}");
}
