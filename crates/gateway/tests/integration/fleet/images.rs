//! Images of a request whose worker ends: another worker goes on with the same pixels, before its first token
//! and in the middle of its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_testkit::paper_executor::PaperExecutor;
use throng_wire::ArtifactKind;

use crate::api::images::{GRADIENT, MARKERS, SQUARE, TEMPLATE, asking, data_url, image, processor, text};
use crate::harness::{Client, PATIENCE, Setup, VOCABULARY, byte_tokenizer_json, post_bytes};
use crate::running_worker::{RunningWorker, all_ready, gateway, until};

/// Makes so many steps with images, and waits then until it may make more. The gateway's own requests, which
/// find out whether a worker answers, have none.
struct Counted {
    paper: PaperExecutor,
    n_left: Arc<AtomicU64>,
}

impl Executor for Counted {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let less = |n: u64| n.checked_sub(1);
        let has_images = batch.sequences().iter().any(|scheduled| scheduled.media.is_some());
        while has_images && self.n_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.paper.execute(batch, output)
    }
}

/// A worker whose model takes images and makes `n_left` steps.
async fn worker(n_left: &Arc<AtomicU64>) -> RunningWorker {
    let capacity = ExecutorCapacity {
        vocabulary_size: VOCABULARY + MARKERS.len() as u32,
        takes_media: true,
        ..Setup::default().capacity
    };
    let n_left = n_left.clone();
    let make = move |capacity| {
        let (paper, n_left) = (PaperExecutor::new(capacity), n_left.clone());
        Box::new(Counted { paper, n_left }) as Box<dyn Executor>
    };
    let json = |value: Value| value.to_string().into_bytes();
    let artifacts = vec![
        (ArtifactKind::ChatTemplates, json(json!([["default", TEMPLATE]]))),
        (ArtifactKind::TokenizerJson, byte_tokenizer_json(MARKERS).into_bytes()),
        (ArtifactKind::ImageProcessor, json(json!(processor()))),
    ];
    RunningWorker::start_model(([127, 0, 0, 1], 0).into(), make, capacity, artifacts, |_| {}).await
}

/// A streamed request with two images.
fn request(second: &[u8]) -> Value {
    let mut body = asking(&[image(&data_url(SQUARE)), text("and"), image(&data_url(second)), text("?")]);
    let more = json!({"stream": true, "seed": 5, "temperature": 1, "max_tokens": 40, "ignore_eos": true,
                      "return_token_ids": true, "stream_options": {"include_usage": true}});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// The tokens of an answer, and those of its prompt that stand for images.
fn tokens(chunks: &[Value]) -> (Vec<Value>, Value) {
    let of_chunk = |chunk: &Value| chunk["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
    let usage = &chunks.last().expect("chunks")["usage"];
    (chunks.iter().flat_map(of_chunk).collect(), usage["prompt_tokens_details"]["image_tokens"].clone())
}

async fn undisturbed(second: &[u8]) -> (Vec<Value>, Value) {
    let worker = worker(&Arc::new(AtomicU64::new(u64::MAX))).await;
    let (_fleet, address) = gateway(&[&worker]).await;
    let mut client = Client::connect(address).await;
    until(&mut client, all_ready).await;
    tokens(&client.post("/v1/chat/completions", &request(second)).await.chunks())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_goes_on_with_a_request_with_images() {
    let expected = undisturbed(GRADIENT).await;
    assert_eq!((expected.0.len(), &expected.1), (40, &json!(32)));
    assert_ne!(undisturbed(SQUARE).await.0, expected.0, "the answer depends on the pixels");
    for n_steps in [0, 7] {
        let steps = [(); 2].map(|()| Arc::new(AtomicU64::new(n_steps)));
        let mut workers = vec![worker(&steps[0]).await, worker(&steps[1]).await];
        let (_fleet, address) = gateway(&[&workers[0], &workers[1]]).await;
        let mut client = Client::connect(address).await;
        until(&mut client, |workers| workers.len() == 2 && all_ready(workers)).await;
        client.send(post_bytes("/v1/chat/completions", &request(GRADIENT).to_string(), &[])).await;
        // The worker that has the request, once it has made all its steps.
        let serving = async {
            loop {
                let is_serving = |worker: &RunningWorker| {
                    let stats = worker.engine.stats().scheduler;
                    stats.running + stats.waiting.max(stats.queued_requests) > 0
                };
                let idx = workers.iter().position(is_serving);
                if let Some(idx) = idx.filter(|&idx| steps[idx].load(Ordering::Acquire) == 0) {
                    return idx;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let idx = tokio::time::timeout(PATIENCE, serving).await.expect("a worker has it");
        workers.remove(idx).leave().await;
        steps.iter().for_each(|n_left| n_left.store(u64::MAX, Ordering::Release));
        let reply = client.reply().await.expect("an answer");
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(tokens(&reply.chunks()), expected, "after {n_steps} steps");
        assert!(workers[0].engine.stats().scheduler.counters.output_tokens > 0, "the other one went on");
    }
}
