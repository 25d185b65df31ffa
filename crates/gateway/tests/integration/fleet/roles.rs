//! Prefill and decode apart, over real workers with the paper executor: long prompts are computed by the
//! worker for prompts while others decode at the worker for answers, each request counts once, and whatever
//! happens to the worker for prompts, the answers are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use throng_core::fleet::routing::Role;
use throng_core::request::TokenId;
use throng_core::scheduling::batch::{BlockId, MemorySlot, ScheduledBatch, StepOutput};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_testkit::paper_executor::PaperExecutor;

use crate::harness::{Client, END, MAX_LEN, PATIENCE, Setup, completion, post_bytes};
use crate::running_worker::{RunningWorker, all_ready, gateway, until};

/// Tokens of a prompt that is split.
const N_LONG: usize = 640;

/// An executor for which computing takes longer than a transfer, and that can be held.
struct Slow {
    paper: PaperExecutor,
    is_held: Arc<AtomicBool>,
}

impl Executor for Slow {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        self.paper.block_layout()
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        self.paper.export_blocks(blocks)
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        self.paper.import_blocks(exported, to)
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.paper.export_state(slot, part)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        self.paper.import_state(slot, part, bytes)
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.paper.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        while self.is_held.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5 + batch.n_tokens() as u64));
        self.paper.collect(batch, output)
    }
}

fn capacity() -> ExecutorCapacity {
    Setup::default().capacity
}

async fn worker(role: Role, capacity: ExecutorCapacity, is_held: &Arc<AtomicBool>) -> RunningWorker {
    let is_held = is_held.clone();
    let make = move |capacity| {
        Box::new(Slow { paper: PaperExecutor::new(capacity), is_held: is_held.clone() }) as Box<dyn Executor>
    };
    let describe = |description: &mut throng_wire::Description| {
        (description.max_model_len, description.role) = (MAX_LEN, role);
    };
    RunningWorker::start_exchanging(make, capacity, describe).await
}

/// A prompt that begins unlike those of other numbers.
fn prompt(number: usize, n_tokens: usize) -> Vec<TokenId> {
    (0..n_tokens).map(|i| ((i * 7 + number * 31) % END as usize) as TokenId).collect()
}

/// A gateway over workers with these capacities, of which the one for answers decodes a stream.
struct Fleet {
    prefill: RunningWorker,
    decode: RunningWorker,
    _following: throng_gateway::Fleet,
    client: Client,
    _stream: Client,
}

impl Fleet {
    async fn start(capacities: [ExecutorCapacity; 2], is_held: &Arc<AtomicBool>) -> Self {
        let prefill = worker(Role::Prefill, capacities[0], is_held).await;
        let decode = worker(Role::Decode, capacities[1], &Arc::default()).await;
        let (_following, address) = gateway(&[&prefill, &decode]).await;
        let mut client = Client::connect(address).await;
        until(&mut client, |workers| workers.len() == 2 && all_ready(workers)).await;
        let mut stream = Client::connect(address).await;
        let endless = json!({"prompt": prompt(0, 100), "max_tokens": MAX_LEN - 100, "ignore_eos": true, "n": 4,
                             "stream": true});
        stream.send(post_bytes("/v1/completions", &completion(endless).to_string(), &[])).await;
        stream.read_until("data: ").await;
        assert_eq!(prefill.engine.stats().scheduler.running, 0, "answers go to the other one");
        Self { prefill, decode, _following, client, _stream: stream }
    }

    /// The answer without what differs between two requests, and how it came about.
    async fn ask(&mut self, fields: Value) -> (Value, Value) {
        ask(&mut self.client, fields).await
    }

    /// Sum of a metric over the series with this part in their labels.
    async fn metric(&mut self, name: &str, label: &str) -> f64 {
        let text = self.client.get("/metrics").await.text().to_owned();
        let lines =
            text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a value")).sum()
    }

    async fn fallbacks(&mut self) -> Vec<(&'static str, f64)> {
        let mut all = Vec::new();
        for reason in ["refused", "failed", "late", "not_pulled"] {
            let n = self.metric("throng_split_fallbacks_total", &format!("reason=\"{reason}\"")).await;
            all.extend((n > 0.0).then_some((reason, n)));
        }
        all
    }
}

async fn ask(client: &mut Client, fields: Value) -> (Value, Value) {
    let reply = client.post("/v1/completions", &completion(fields)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let id = reply.header("x-request-id").expect("an id").to_owned();
    let body = reply.json();
    let explaining = async {
        loop {
            let told = client.get(&format!("/explain/{id}")).await;
            if told.status == 200 {
                return told.json();
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, explaining).await.expect("it is explained");
    (json!([body["choices"], body["usage"]]), told)
}

fn long(number: usize) -> Value {
    json!({"prompt": prompt(number, N_LONG), "max_tokens": 8, "ignore_eos": true, "temperature": 0})
}

fn seeded(number: usize) -> Value {
    json!({"prompt": prompt(number, N_LONG), "max_tokens": 8, "ignore_eos": true, "temperature": 1, "seed": 7,
           "n": 2, "logprobs": 2})
}

/// The answers of one worker without a role.
async fn alone(requests: &[Value]) -> Vec<Value> {
    let worker = worker(Role::Both, capacity(), &Arc::default()).await;
    let (_fleet, address) = gateway(&[&worker]).await;
    let mut client = Client::connect(address).await;
    let told = until(&mut client, all_ready).await;
    assert_eq!(told[0]["role"], "both");
    let mut answers = Vec::new();
    for request in requests {
        let (answer, told) = ask(&mut client, request.clone()).await;
        assert!(told.get("split").is_none(), "{told}");
        answers.push(answer);
    }
    let metrics = client.get("/metrics").await.text().to_owned();
    assert!(!metrics.contains("throng_role") && !metrics.contains("throng_split"), "a fleet without roles");
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_prompt_is_computed_elsewhere_and_counts_once() {
    let expected = alone(&[long(1), seeded(2)]).await;
    let mut fleet = Fleet::start([capacity(); 2], &Arc::default()).await;
    let n_before = fleet.prefill.engine.stats().scheduler.counters.prompt_tokens;
    for (request, expected) in [long(1), seeded(2)].into_iter().zip(&expected) {
        let (answer, told) = fleet.ask(request).await;
        assert_eq!(&answer, expected, "text, log-probabilities and usage");
        let split = &told["split"][0];
        let facts = (&split["is_split"], &split["why"], &split["tokens"], split.get("fallback"));
        assert_eq!(facts, (&json!(true), &json!("pays"), &json!(N_LONG), None), "{told}");
        assert_eq!(split["prefill"], fleet.prefill.address.to_string(), "{told}");
        let (pulled, from) = (&told["pulled"][0], format!("throng://{}", fleet.prefill.address));
        let n_early = split["early_tokens"].as_u64();
        // Blocks that were on their way when the prompt was computed are in neither.
        let n_pulled = pulled["tokens"].as_u64().unwrap_or(0) + n_early.unwrap_or(0);
        assert!((1..=N_LONG as u64 - 16).contains(&n_pulled), "{told}");
        assert!(n_early.is_some() || pulled["from"] == from.as_str(), "{told}");
        let total = told["total_ms"].as_f64().expect("a time");
        assert!(told["ttft_ms"].as_f64() <= Some(total) && split["ms"].as_f64() <= Some(total), "{told}");
    }
    let n_computed = fleet.prefill.engine.stats().scheduler.counters.prompt_tokens - n_before;
    assert_eq!(n_computed, 2 * N_LONG as u64);
    assert!(fleet.decode.engine.stats().scheduler.counters.prompt_tokens < N_LONG as u64);
    assert_eq!(
        (fleet.metric("throng_split_requests_total", "role=\"decode\"").await, fleet.fallbacks().await),
        (2.0, vec![])
    );
    let is_counted = async {
        // The load of a worker comes with its heartbeats.
        while fleet.metric("throng_role_prompt_tokens_total", "role=\"prefill\"").await < n_computed as f64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_counted).await.expect("it is counted by role");
    // Three choices have ended, and two requests beside the stream are counted.
    assert_eq!(fleet.metric("vllm:request_success_total", "length").await, 3.0);
    assert_eq!(fleet.metric("vllm:request_prompt_tokens_count", "").await, 2.0 + 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_and_cached_prompts_stay_where_they_are_answered() {
    let mut fleet = Fleet::start([capacity(); 2], &Arc::default()).await;
    let short = json!({"prompt": prompt(3, 200), "max_tokens": 4, "ignore_eos": true});
    for (request, is_split, why) in
        [(short, false, "few_tokens"), (long(4), true, "pays"), (long(4), false, "few_tokens")]
    {
        let (_, told) = fleet.ask(request).await;
        let split = &told["split"][0];
        assert_eq!((&split["is_split"], &split["why"]), (&json!(is_split), &json!(why)), "{told}");
        // The gateway learns of the blocks with the next heartbeat.
        let n_own = fleet.decode.engine.stats().scheduler.cached_blocks as u64;
        let address = fleet.decode.address.to_string();
        let is_known = |workers: &[Value]| {
            let own = workers.iter().find(|worker| worker["name"] == address.as_str());
            own.is_some_and(|own| own["known_blocks"].as_u64() >= Some(n_own))
        };
        until(&mut fleet.client, is_known).await;
    }
    let mut workers = until(&mut fleet.client, all_ready).await;
    workers.sort_by_key(|worker| worker["role"].as_str().map(str::to_owned));
    assert_eq!([&workers[0]["role"], &workers[1]["role"]], ["decode", "prefill"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_for_prompts_that_dies_at_one_changes_no_answer() {
    let expected = alone(&[long(5), seeded(6)]).await;
    let is_held = Arc::new(AtomicBool::new(false));
    let mut fleet = Fleet::start([capacity(); 2], &is_held).await;
    is_held.store(true, Ordering::Release);
    let engine = fleet.prefill.engine.clone();
    let (mut client, request) = (fleet.client, long(5));
    let asking = tokio::spawn(async move {
        let told = ask(&mut client, request).await;
        (client, told)
    });
    let has_it = async {
        while engine.stats().scheduler.running + engine.stats().scheduler.queued_requests == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, has_it).await.expect("it computes the prompt");
    fleet.prefill.leave().await;
    let (client, (answer, told)) = asking.await.expect("it is answered");
    is_held.store(false, Ordering::Release);
    assert_eq!((&answer, &told["split"][0]["fallback"]), (&expected[0], &json!("failed")), "{told}");
    fleet.client = client;
    fleet.prefill = worker(Role::Both, capacity(), &Arc::default()).await;
    assert_eq!(fleet.fallbacks().await, [("failed", 1.0)]);
    // Without the worker for prompts nothing is split.
    let (answer, told) = fleet.ask(seeded(6)).await;
    assert_eq!((&answer, &told["split"][0]["is_split"]), (&expected[1], &json!(false)), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_refused_is_computed_where_it_is_answered() {
    let expected = alone(&[long(7)]).await;
    let small = ExecutorCapacity { max_sequence_tokens: 300, ..capacity() };
    let mut fleet = Fleet::start([small, capacity()], &Arc::default()).await;
    let (answer, told) = fleet.ask(long(7)).await;
    assert_eq!((&answer, &told["split"][0]["fallback"]), (&expected[0], &json!("refused")), "{told}");
    assert_eq!(fleet.fallbacks().await, [("refused", 1.0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_taken_over_while_the_rest_of_the_prompt_is_computed() {
    let numbers: Vec<usize> = (10..20).collect();
    let expected = alone(&numbers.iter().map(|&number| long(number)).collect::<Vec<_>>()).await;
    // Many steps a prompt, so that a heartbeat falls between two of them.
    let in_steps = ExecutorCapacity { max_batch_tokens: 16, ..capacity() };
    let mut fleet = Fleet::start([in_steps, capacity()], &Arc::default()).await;
    let mut n_early = 0;
    for (number, expected) in numbers.into_iter().zip(&expected) {
        let (answer, told) = fleet.ask(long(number)).await;
        assert_eq!((&answer, &told["split"][0]["why"]), (expected, &json!("pays")), "{told}");
        assert!(told["split"][0].get("fallback").is_none(), "{told}");
        n_early += told["split"][0]["early_tokens"].as_u64().unwrap_or(0);
    }
    assert!(n_early > 0, "no blocks came before a prompt was computed");
    let counted = fleet.metric("throng_split_early_tokens_total", "role=\"decode\"").await;
    assert_eq!(counted, n_early as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_are_taken_over_with_their_blocks() {
    let expected = alone(&[long(8)]).await;
    let with_states = ExecutorCapacity { n_state_slots: 128, ..capacity() };
    let mut fleet = Fleet::start([with_states; 2], &Arc::default()).await;
    let (answer, told) = fleet.ask(long(8)).await;
    assert_eq!((&answer, &told["split"][0]["why"]), (&expected[0], &json!("pays")), "{told}");
    assert_eq!(told["pulled"][0]["tokens"], N_LONG - 16, "{told}");
    assert_eq!(fleet.fallbacks().await, []);
}
