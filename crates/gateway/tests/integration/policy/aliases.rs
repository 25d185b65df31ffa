//! Model aliases, over real sockets with workers: when a model fails before its first token the next one
//! answers, copies of requests go to a shadow model and are charged to nobody, and roll-outs advance or are
//! rolled back by the results of the new version.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Reply};
use crate::running_worker::{RunningWorker, gateway_with_operator};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_gateway::{Fleet, GatewayConfig, ModelAlias, Secret, ShadowConfig, WeightedModel};
use throng_testkit::paper_executor::PaperExecutor;

const N_CLIENTS: u64 = 4;

/// The paper executor with slow steps, or with steps of which none succeeds.
struct Ill {
    paper: PaperExecutor,
    step_ms: u64,
    fails: bool,
}

impl Executor for Ill {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        std::thread::sleep(Duration::from_millis(self.step_ms));
        if self.fails {
            return Err(ExecutorError::Device("an injected fault".into()));
        }
        self.paper.execute(batch, output)
    }
}

async fn worker(name: &str, step_ms: u64, fails: bool) -> RunningWorker {
    let make = move |capacity| {
        Box::new(Ill { paper: PaperExecutor::new(capacity), step_ms, fails }) as Box<dyn Executor>
    };
    RunningWorker::start_over(make, 512, name, |_| {}).await
}

/// A gateway whose alias `chat` stands for the model `old`.
struct Place {
    address: SocketAddr,
    operator: SocketAddr,
    old: RunningWorker,
    new: RunningWorker,
    n_asked: AtomicU64,
    _fleet: Fleet,
}

const OPERATOR_KEY: &str = "the-operators-key";

impl Place {
    async fn start(new: RunningWorker, change: impl FnOnce(&mut ModelAlias)) -> Self {
        let old = worker("old", 1, false).await;
        let mut config = GatewayConfig::default();
        config.access.admin_key = Some(Secret::new(OPERATOR_KEY));
        config.access.admin_listen = Some("127.0.0.1:0".to_owned());
        let targets = vec![WeightedModel { model: "old".to_owned(), weight: 1 }];
        let mut alias = ModelAlias { name: "chat".to_owned(), targets, fallback: Vec::new(), shadow: None };
        change(&mut alias);
        config.routing.aliases = vec![alias];
        let (fleet, address, operator) = gateway_with_operator(config, &[old.address, new.address]).await;
        let n_asked = AtomicU64::new(0);
        let place = Self { address, operator, old, new, n_asked, _fleet: fleet };
        let is_known = |workers: &[Value]| {
            workers.len() == 2 && workers.iter().all(|worker| worker["models"][0].is_string())
        };
        // The states of workers that fail are none of `ready`, but they are connected.
        let waiting = async {
            while !is_known(
                &place.operate("GET", "/fleet", Value::Null).await.json()["workers"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default(),
            ) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("both answer");
        place
    }

    /// A request of the operator.
    async fn operate(&self, method: &str, path: &str, body: Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPERATOR_KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = Client::connect(self.operator).await;
        client.send((head + &body).as_bytes()).await;
        client.reply().await.expect("an answer")
    }

    /// A prompt that nobody has asked before.
    fn request(&self, model: &str, is_streaming: bool) -> Value {
        let number = self.n_asked.fetch_add(1, Ordering::Relaxed);
        let prompt: Vec<u64> = (0..20).map(|idx| (number >> (idx % 8)) % 250).collect();
        let sampling = json!({"max_tokens": 4, "ignore_eos": true, "temperature": 0});
        let mut body = json!({"model": model, "prompt": prompt, "stream": is_streaming});
        body.as_object_mut().expect("an object").extend(sampling.as_object().expect("an object").clone());
        body
    }

    /// Many clients ask `n` requests in all; each must be answered.
    async fn load(&self, n: u64) {
        let of_client = |client: u64| async move {
            let mut connection = Client::connect(self.address).await;
            for number in (client..n).step_by(N_CLIENTS as usize) {
                let body = self.request("chat", number % 2 == 0);
                let reply = connection.post("/v1/completions", &body).await;
                let text = reply.text();
                assert!(reply.status == 200 && !text.contains("\"error\""), "request {number}: {text}");
            }
        };
        futures_util::future::join_all((0..N_CLIENTS).map(of_client)).await;
    }

    /// The value of a metric whose line begins so.
    async fn metric(&self, beginning: &str) -> u64 {
        let reply = self.operate("GET", "/metrics", Value::Null).await;
        let text = reply.text();
        let line = text.lines().find_map(|line| line.strip_prefix(beginning));
        line.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    async fn rollout(&self) -> Value {
        self.operate("GET", "/admin/rollouts", Value::Null).await.json()["data"][0].clone()
    }

    async fn begin_rollout(&self, fields: Value) -> Reply {
        let mut body = json!({"alias": "chat", "model": "new", "min_outcomes": 10});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        self.operate("POST", "/admin/rollouts", body).await
    }

    /// Asks until the roll-out has ended; how it ended, and how many requests the new version got first.
    async fn end_rollout(&self) -> (Value, u64) {
        for _ in 0..100 {
            self.load(40).await;
            let rollout = self.rollout().await;
            if rollout["state"] != "running" {
                let n_new =
                    self.metric(r#"throng_alias_requests_total{alias="chat",model_name="new"}"#).await;
                return (rollout, n_new);
            }
        }
        panic!("it never ends: {}", self.rollout().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_model_answers_when_one_fails_before_its_first_token() {
    let place = Place::start(worker("new", 1, true).await, |alias| {
        alias.targets[0].model = "new".to_owned();
        alias.fallback = vec!["nowhere".to_owned(), "old".to_owned()];
    })
    .await;
    let mut client = Client::connect(place.address).await;
    for is_streaming in [false, true] {
        let mut body = place.request("chat", is_streaming);
        let reply = client.post("/v1/completions", &body).await;
        body["model"] = json!("old");
        let expected = client.post("/v1/completions", &body).await;
        let texts = |reply: &Reply| match is_streaming {
            true => reply.chunks().iter().map(|chunk| chunk["choices"].clone()).collect::<Vec<_>>(),
            false => vec![reply.json()["choices"].clone(), reply.json()["model"].clone()],
        };
        assert_eq!((reply.status, texts(&reply)), (200, texts(&expected)));
        let failed = client.post("/v1/completions", &place.request("new", is_streaming)).await;
        assert!(failed.status == 500 || failed.text().contains("\"error\""), "{}", failed.text());
    }
    assert_eq!(place.metric(r#"throng_alias_fallbacks_total{alias="chat",model_name="new"}"#).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_go_to_a_shadow_and_nobody_waits_for_them() {
    let place = Place::start(worker("new", 40, false).await, |alias| {
        alias.shadow = Some(ShadowConfig { model: "new".to_owned(), percent: 100, max_in_flight: 2 });
    })
    .await;
    let n = 60;
    place.load(n).await;
    let outcome = |outcome: &str| {
        format!(r#"throng_shadow_requests_total{{alias="chat",model_name="new",outcome="{outcome}"}}"#)
    };
    let counted = async {
        loop {
            let (answered, dropped) = (outcome("answered"), outcome("dropped"));
            let (answered, dropped) = (place.metric(&answered).await, place.metric(&dropped).await);
            if answered + dropped == n {
                return (answered, dropped);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (answered, dropped) = tokio::time::timeout(PATIENCE, counted).await.expect("all copies end");
    assert!(answered > 0 && dropped > 0, "{answered} {dropped}");
    let made = |worker: &RunningWorker| worker.engine.stats().scheduler.counters.output_tokens;
    // Each copy makes as many tokens as its original; what the gateway asks to learn of health is one token each.
    assert!(made(&place.new) >= 4 * answered && made(&place.old) >= 4 * n, "{}", made(&place.new));
    // Copies belong to no client.
    let explained = Client::connect(place.address).await.get("/explain").await;
    assert!(!explained.text().contains("\"new\""), "{}", explained.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_version_takes_over_by_stages() {
    let place = Place::start(worker("new", 1, false).await, |_| {}).await;
    let stages = json!([{"percent": 20, "seconds": 0}, {"percent": 60, "seconds": 0}]);
    let golden = |ids: Value| json!([{"prompt": [1, 2, 3], "max_tokens": 8, "token_ids": ids}]);
    // Wrong golden answers: not a single request is touched.
    assert_eq!(
        place.begin_rollout(json!({"stages": stages, "golden": golden(json!([0]))})).await.status,
        201
    );
    let ended = async {
        while place.rollout().await["state"] == "running" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it is rolled back");
    assert_eq!(place.rollout().await["cause"], "golden mismatch");
    place.load(40).await;
    let n_new = r#"throng_alias_requests_total{alias="chat",model_name="new"}"#;
    assert_eq!(place.metric(n_new).await, 0);
    // Right ones, and it takes over.
    let body = json!({"model": "old", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "return_token_ids": true});
    let answer = Client::connect(place.address).await.post("/v1/completions", &body).await.json();
    let ids = answer["choices"][0]["token_ids"].clone();
    assert!(ids.is_array(), "{answer}");
    assert_eq!(place.begin_rollout(json!({"stages": stages, "golden": golden(ids)})).await.status, 201);
    assert_eq!(place.begin_rollout(json!({"stages": stages})).await.status, 400, "one at a time");
    let (rollout, _) = place.end_rollout().await;
    assert_eq!((&rollout["state"], &rollout["percent"]), (&json!("completed"), &json!(100)));
    let before = place.metric(n_new).await;
    place.load(20).await;
    assert_eq!(place.metric(n_new).await, before + 20);
    assert_eq!(
        place.metric(r#"throng_rollouts_total{alias="chat",model_name="new",outcome="completed"}"#).await,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_fails_is_sent_back_and_no_client_notices() {
    let place = Place::start(worker("new", 1, true).await, |_| {}).await;
    assert_eq!(place.begin_rollout(json!({"stages": [{"percent": 10, "seconds": 60}]})).await.status, 201);
    let (rollout, n_new) = place.end_rollout().await;
    println!("rolled back after {n_new} requests of {}", place.n_asked.load(Ordering::Relaxed));
    assert_eq!((&rollout["state"], &rollout["cause"]), (&json!("rolled back"), &json!("failures")));
    // Three failures decide; others may have been sent meanwhile.
    assert!(n_new <= 3 + N_CLIENTS, "{n_new}");
    place.load(20).await;
    assert_eq!(place.metric(r#"throng_alias_requests_total{alias="chat",model_name="new"}"#).await, n_new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_slow_is_sent_back() {
    let place = Place::start(worker("new", 120, false).await, |_| {}).await;
    assert_eq!(place.begin_rollout(json!({"stages": [{"percent": 50, "seconds": 60}]})).await.status, 201);
    let (rollout, _) = place.end_rollout().await;
    assert_eq!((&rollout["state"], &rollout["cause"]), (&json!("rolled back"), &json!("slow first tokens")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roll_outs_are_checked_and_taken_back() {
    let place = Place::start(worker("new", 1, false).await, |_| {}).await;
    let stages = json!([{"percent": 50, "seconds": 60}]);
    for (fields, status) in [
        (json!({"stages": []}), 400),
        (json!({"stages": [{"percent": 0, "seconds": 1}]}), 400),
        (json!({"stages": [{"percent": 50, "seconds": 1}, {"percent": 20, "seconds": 1}]}), 400),
        (json!({"stages": stages, "model": "nowhere"}), 400),
        (json!({"stages": stages, "alias": "nobody"}), 404),
        (json!({"stages": stages, "golden": [{"prompt": "a", "text": "b", "max_tokens": 0}]}), 400),
        (json!({"stages": stages, "unknown": 1}), 400),
    ] {
        assert_eq!(place.begin_rollout(fields.clone()).await.status, status, "{fields}");
    }
    let path = "/admin/rollouts/chat/rollback";
    assert_eq!(place.operate("POST", path, Value::Null).await.status, 404);
    assert_eq!(place.begin_rollout(json!({"stages": stages})).await.status, 201);
    assert_eq!(place.rollout().await["percent"], 50);
    let taken_back = place.operate("POST", path, Value::Null).await.json();
    assert_eq!((&taken_back["cause"], &taken_back["percent"]), (&json!("operator"), &json!(0)));
}
