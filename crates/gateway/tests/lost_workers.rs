//! Workers end while many requests wait for their first token there, before their gateway has seen a request answered: others answer
//! them all.

mod harness;
mod running_worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Client, PATIENCE, completion};
use running_worker::{RunningWorker, all_ready, gateway, until};
use serde_json::json;
use throng_core::batch::{ScheduledBatch, StepOutput};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_testkit::paper_executor::PaperExecutor;
use tokio::task::JoinSet;

/// Computes nothing while it is held.
struct Held {
    paper: PaperExecutor,
    is_held: Arc<AtomicBool>,
}

impl Executor for Held {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        while self.is_held.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.paper.execute(batch, output)
    }
}

/// A worker that computes nothing while it is held, at an address of its own or at this one.
async fn start(is_held: &Arc<AtomicBool>, address: Option<SocketAddr>) -> RunningWorker {
    let is_held = is_held.clone();
    let make = move |capacity| {
        let paper = PaperExecutor::new(capacity);
        Box::new(Held { paper, is_held: is_held.clone() }) as Box<dyn Executor>
    };
    let address = address.unwrap_or(([127, 0, 0, 1], 0).into());
    RunningWorker::start_at(address, make, 512, "paper", |_| {}).await
}

/// So many requests, each for a prompt of its own.
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
