//! A worker ends while many requests wait for their first token there, before its gateway has seen a request answered: others answer
//! them all.

mod harness;
mod running_worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Client, PATIENCE, completion};
use running_worker::{RunningWorker, all_ready, gateway, until};
use serde_json::json;
use throng_core::batch::{ScheduledBatch, StepOutput};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_testkit::paper_executor::PaperExecutor;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_that_wait_at_a_fresh_worker_outlive_it() {
    const N: usize = 128;
    let is_held = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for _ in 0..2 {
        let is_held = is_held.clone();
        let make = move |capacity| {
            let paper = PaperExecutor::new(capacity);
            Box::new(Held { paper, is_held: is_held.clone() }) as Box<dyn Executor>
        };
        workers.push(RunningWorker::start_over(make, 512, "paper", |_| {}).await);
    }
    let (_fleet, address) = gateway(&workers.iter().collect::<Vec<_>>()).await;
    until(&mut Client::connect(address).await, |workers| workers.len() == 2 && all_ready(workers)).await;
    is_held.store(true, Ordering::Release);
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..N {
        asking.spawn(async move {
            let body =
                json!({"prompt": [number, 1, 2], "max_tokens": 4, "ignore_eos": true, "stream": number % 2 == 0});
            let reply = Client::connect(address).await.post("/v1/completions", &completion(body)).await;
            (reply.status, reply.text().to_owned())
        });
    }
    let n_at = |worker: &RunningWorker| {
        let stats = worker.engine.stats().scheduler;
        stats.running + stats.waiting.max(stats.queued_requests)
    };
    let all_wait = async {
        while workers.iter().map(n_at).sum::<usize>() < N {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("all of them wait");
    let n_lost = n_at(&workers[0]);
    println!("{n_lost} requests wait at the worker that ends");
    assert!(n_lost > 32, "more than the retry budget has in reserve");
    let lost = workers.remove(0);
    lost.leave().await;
    is_held.store(false, Ordering::Release);
    let answered = tokio::time::timeout(PATIENCE, asking.join_all()).await.expect("all are answered");
    for (status, text) in answered {
        assert!(status == 200 && !text.contains("error"), "{status}: {text}");
    }
}
