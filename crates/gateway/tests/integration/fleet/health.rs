//! The health checks report an engine whose thread has died.

use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig};
use throng_testkit::paper_executor::PaperExecutor;

/// The first executor fails at a step of two sequences; the second one ends the engine thread.
struct Fatal {
    paper: PaperExecutor,
    is_first: bool,
}

impl Executor for Fatal {
    fn capacity(&self) -> ExecutorCapacity {
        assert!(self.is_first, "as the test wants it");
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if batch.sequences().len() > 1 {
            return Err(ExecutorError::Device("as the test wants it".into()));
        }
        std::thread::sleep(Duration::from_millis(1));
        self.paper.execute(batch, output)
    }
}

#[tokio::test]
async fn a_dead_engine_is_neither_ready_nor_live_and_its_streams_end() {
    let setup = Setup::default();
    let (capacity, mut n_made) = (setup.capacity, 0);
    let make = move || {
        n_made += 1;
        Ok(Box::new(Fatal { paper: PaperExecutor::new(capacity), is_first: n_made == 1 }) as _)
    };
    let engine = Engine::start(EngineConfig::default(), make).expect("it starts");
    let server = Server::over(engine, setup).await;
    for path in ["/health", "/health/ready", "/health/live"] {
        assert_eq!(server.connect().await.get(path).await.status, 200, "{path}");
    }
    let mut reader = server.connect().await;
    let stream = completion(json!({"stream": true, "ignore_eos": true, "max_tokens": 4000}));
    reader.send(post_bytes("/v1/completions", &stream.to_string(), &[])).await;
    reader.read_until("\"text\":").await;
    // The second request makes a step of two sequences, which fails and ends the engine.
    let second = server.connect().await.post("/v1/chat/completions", &chat(json!({}))).await;
    assert!(second.status >= 500, "{second:?}");
    let events = reader.reply().await.expect("the stream ends").events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
    assert!(last["error"]["code"].is_string(), "{last}");
    let told = async {
        for path in ["/health", "/health/ready", "/health/live"] {
            while server.connect().await.get(path).await.status != 503 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let begun = Instant::now();
    tokio::time::timeout(PATIENCE, told).await.expect("health tells the truth");
    println!("told after {:?}", begun.elapsed());
    let refused = server.connect().await.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
}
