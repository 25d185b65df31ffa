//! Workers end while many requests wait for their first token there, before their gateway has seen a request
//! answered: others answer them all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Client, PATIENCE, completion, post_bytes};
use crate::running_worker::{RunningWorker, all_ready, gateway, gateway_at, gateway_with, until};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_http::Shutdown;
use throng_testkit::paper_executor::PaperExecutor;
use tokio::task::JoinSet;

/// Computes nothing while it is held, and takes `step` for each step.
struct Held {
    paper: PaperExecutor,
    is_held: Arc<AtomicBool>,
    step: Duration,
}

impl Executor for Held {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        while self.is_held.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(self.step);
        self.paper.execute(batch, output)
    }
}

/// A worker that computes nothing while it is held, at an address of its own or at this one.
async fn start(is_held: &Arc<AtomicBool>, address: Option<SocketAddr>) -> RunningWorker {
    start_with(is_held, Duration::ZERO, address).await
}

async fn start_with(is_held: &Arc<AtomicBool>, step: Duration, address: Option<SocketAddr>) -> RunningWorker {
    let is_held = is_held.clone();
    let make = move |capacity| {
        let paper = PaperExecutor::new(capacity);
        Box::new(Held { paper, is_held: is_held.clone(), step }) as Box<dyn Executor>
    };
    let address = address.unwrap_or(([127, 0, 0, 1], 0).into());
    RunningWorker::start_at(address, make, 512, "paper", |_| {}).await
}

/// Sends `n` requests, each for a prompt of its own.
fn ask(address: SocketAddr, n: usize) -> JoinSet<(u16, String)> {
    let mut asking = JoinSet::new();
    for number in 0..n {
        let is_streaming = number % 2 == 0;
        let body =
            json!({"prompt": [number, 1, 2], "max_tokens": 4, "ignore_eos": true, "stream": is_streaming});
        asking.spawn(async move {
            let reply = Client::connect(address).await.post("/v1/completions", &completion(body)).await;
            (reply.status, reply.text().to_owned())
        });
    }
    asking
}

fn n_at(worker: &RunningWorker) -> usize {
    let stats = worker.engine.stats().scheduler;
    stats.running + stats.waiting.max(stats.queued_requests)
}

/// Waits until these workers together have so many requests.
async fn until_waiting(workers: &[&RunningWorker], n: usize) {
    let all_wait = async {
        while workers.iter().map(|worker| n_at(worker)).sum::<usize>() < n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("all of them wait");
}

async fn all_are_answered(asking: JoinSet<(u16, String)>) {
    for (status, text) in tokio::time::timeout(PATIENCE, asking.join_all()).await.expect("all are answered") {
        assert!(status == 200 && !text.contains("error"), "{status}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_that_wait_at_a_fresh_worker_outlive_it() {
    const N: usize = 128;
    let is_held = Arc::new(AtomicBool::new(false));
    let (first, second) = (start(&is_held, None).await, start(&is_held, None).await);
    let (_fleet, address) = gateway(&[&first, &second]).await;
    until(&mut Client::connect(address).await, |workers| workers.len() == 2 && all_ready(workers)).await;
    is_held.store(true, Ordering::Release);
    let asking = ask(address, N);
    until_waiting(&[&first, &second], N).await;
    println!("{} requests wait at the worker that ends", n_at(&first));
    assert!(n_at(&first) > 32, "more than the retry budget has in reserve");
    first.leave().await;
    is_held.store(false, Ordering::Release);
    all_are_answered(asking).await;
}

/// The two workers of a model end one after the other, and the first one is back by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_back_answers_what_its_predecessor_lost() {
    const N: usize = 64;
    let is_held = Arc::new(AtomicBool::new(false));
    let (first, second) = (start(&is_held, None).await, start(&is_held, None).await);
    let (_fleet, address) = gateway(&[&first, &second]).await;
    let mut client = Client::connect(address).await;
    until(&mut client, |workers| workers.len() == 2 && all_ready(workers)).await;
    is_held.store(true, Ordering::Release);
    let asking = ask(address, N);
    until_waiting(&[&first, &second], N).await;
    let before = first.leave().await;
    until_waiting(&[&second], N).await;
    let _first = start(&Arc::default(), Some(before)).await;
    until(&mut client, |workers| workers[0]["state"] == "ready").await;
    second.leave().await;
    is_held.store(false, Ordering::Release);
    all_are_answered(asking).await;
}

/// A worker that takes its time for each step, at an address of its own or at this one.
async fn start_slow(address: Option<SocketAddr>) -> RunningWorker {
    start_with(&Arc::default(), Duration::from_millis(2), address).await
}

const N_STREAMS: usize = 8;

/// Streams that have begun.
async fn begin_streams(address: SocketAddr) -> Vec<Client> {
    let mut streams = Vec::new();
    for number in 0..N_STREAMS {
        let body = json!({"prompt": [number, 1, 2], "max_tokens": 400, "ignore_eos": true, "stream": true,
                          "seed": 7});
        let mut client = Client::connect(address).await;
        client.send(post_bytes("/v1/completions", &completion(body).to_string(), &[])).await;
        client.read_until("data: ").await;
        streams.push(client);
    }
    streams
}

/// The texts of streams at their ends, and how often they say that they wait.
async fn ends(streams: Vec<Client>) -> (Vec<String>, usize) {
    let (mut texts, mut n_waits) = (Vec::new(), 0);
    for mut client in streams {
        let reply = tokio::time::timeout(PATIENCE, client.reply()).await.expect("it ends");
        let reply = reply.expect("an answer");
        n_waits += reply.text().matches(": waiting for a worker\n\n").count();
        let mut events: Vec<&str> =
            reply.text().lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", reply.text());
        let text = |event: &&str| {
            let chunk: Value = serde_json::from_str(event).expect("JSON");
            chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
        };
        texts.push(events.iter().map(text).collect());
    }
    (texts, n_waits)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_wait_for_the_only_worker_to_come_back() {
    for pause in [0, 2_000].map(Duration::from_millis) {
        let worker = start_slow(None).await;
        let (_fleet, address) = gateway(&[&worker]).await;
        let mut client = Client::connect(address).await;
        until(&mut client, |workers| workers.len() == 1 && all_ready(workers)).await;
        let (expected, n_waits) = ends(begin_streams(address).await).await;
        assert_eq!(n_waits, 0);
        let streams = begin_streams(address).await;
        let before = worker.leave().await;
        tokio::time::sleep(pause).await;
        // A new request waits too, whether its worker was found lost before or by it.
        client
            .send(post_bytes("/v1/completions", &completion(json!({"prompt": [1]})).to_string(), &[]))
            .await;
        let _back = start_slow(Some(before)).await;
        let (texts, n_waits) = ends(streams).await;
        assert_eq!(texts, expected);
        assert!(pause.is_zero() || n_waits >= N_STREAMS, "{n_waits} comments");
        assert_eq!(client.reply().await.expect("an answer").status, 200);
    }
}

/// A worker that is told to end takes no further requests, and what it runs is answered by it: no stream
/// waits for another worker, of which there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_worker_finishes_its_streams_before_it_ends() {
    // After a handover, connections are closed to requests two seconds later.
    for (how, step_ms) in [(Shutdown::Drain, 2), (Shutdown::HandOver, 8)] {
        let worker = start_with(&Arc::default(), Duration::from_millis(step_ms), None).await;
        let (_fleet, address) = gateway(&[&worker]).await;
        until(&mut Client::connect(address).await, |workers| workers.len() == 1 && all_ready(workers)).await;
        let usual = ends(begin_streams(address).await).await;
        let streams = begin_streams(address).await;
        worker.end(how);
        assert_eq!((ends(streams).await, usual.1), (usual, 0), "{how:?}");
    }
}

/// A worker that ends while it computes is shown as such until its last stream has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_ends_is_draining_and_not_down() {
    let is_held = Arc::new(AtomicBool::new(false));
    let worker = start(&is_held, None).await;
    let (_fleet, address) = gateway(&[&worker]).await;
    let mut client = Client::connect(address).await;
    until(&mut client, |workers| workers.len() == 1 && all_ready(workers)).await;
    is_held.store(true, Ordering::Release);
    let asking = ask(address, N_STREAMS);
    until_waiting(&[&worker], N_STREAMS).await;
    worker.end(Shutdown::Drain);
    let is_draining = |workers: &[Value]| workers[0]["state"] == "draining" && workers[0]["running"] != 0;
    until(&mut client, is_draining).await;
    // Time for several attempts to connect again.
    for _ in 0..20 {
        let workers = until(&mut client, |_| true).await;
        assert!(is_draining(&workers), "{workers:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_held.store(false, Ordering::Release);
    all_are_answered(asking).await;
    until(&mut client, |workers| workers[0]["state"] == "down").await;
}

/// The wait is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_workers_never_come_back_ends_with_an_error() {
    let mut config = throng_gateway::GatewayConfig::default();
    config.routing.replica_wait_s = Some(1);
    let is_held = Arc::new(AtomicBool::new(false));
    let worker = start_with(&is_held, Duration::from_millis(2), None).await;
    let (_fleet, address) = gateway_with(config, &[&worker]).await;
    until(&mut Client::connect(address).await, |workers| workers.len() == 1 && all_ready(workers)).await;
    let streams = begin_streams(address).await;
    is_held.store(true, Ordering::Release);
    worker.leave().await;
    is_held.store(false, Ordering::Release);
    for mut client in streams {
        let reply =
            tokio::time::timeout(PATIENCE, client.reply()).await.expect("it ends").expect("an answer");
        assert!(reply.text().contains("\"error\"") && !reply.text().contains("[DONE]"), "{}", reply.text());
    }
    let late = completion(json!({"prompt": [1]}));
    let refused = Client::connect(address).await.post("/v1/completions", &late).await;
    assert_eq!((refused.status, refused.error().3.as_str()), (503, "no_healthy_worker"));
}

/// A gateway of which nothing runs for a while, as after SIGSTOP: its timers have expired and its sockets are
/// full when it goes on.
#[test]
fn a_gateway_that_did_not_run_loses_no_worker() {
    let others = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let others = others.expect("a runtime");
    let workers = others.block_on(async { [start_slow(None).await, start_slow(None).await] });
    let addresses = workers.each_ref().map(|worker| worker.address);
    let (tell_address, address) = std::sync::mpsc::channel();
    let (freeze, frozen) = std::sync::mpsc::channel::<Duration>();
    let gateway = std::thread::spawn(move || {
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        own.block_on(async move {
            let (_fleet, address) = gateway_at(Default::default(), &addresses).await;
            tell_address.send(address).expect("the test waits");
            loop {
                match frozen.try_recv() {
                    // Nothing else of this runtime runs meanwhile.
                    Ok(duration) => std::thread::sleep(duration),
                    Err(std::sync::mpsc::TryRecvError::Empty) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
        });
    });
    let address = address.recv().expect("it serves");
    let connected_s = |workers: &[serde_json::Value]| -> Vec<u64> {
        workers.iter().map(|worker| worker["seconds"].as_u64().expect("a number")).collect()
    };
    others.block_on(async {
        let mut client = Client::connect(address).await;
        let is_long = |workers: &[serde_json::Value]| {
            workers.len() == 2 && all_ready(workers) && connected_s(workers).iter().all(|for_s| *for_s >= 1)
        };
        let before = connected_s(&until(&mut client, is_long).await);
        let (expected, _) = ends(begin_streams(address).await).await;
        for round in 0..3 {
            let streams = begin_streams(address).await;
            freeze.send(Duration::from_millis(2_000 + 150 * round)).expect("it runs");
            assert_eq!(ends(streams).await, (expected.clone(), 0), "round {round}");
        }
        let after = connected_s(&until(&mut client, all_ready).await);
        let stayed = before.iter().zip(&after).all(|(before, after)| *after >= before + 6);
        assert!(stayed, "connected for {before:?} s, and {after:?} s after three pauses");
    });
    drop(freeze);
    gateway.join().expect("no panic");
}
