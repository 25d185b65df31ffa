//! The rows of the API's table of errors that are about the service and not about a body (79 to 91, and those
//! of the model's limits): each over a real socket, streamed and not, and followed by a good request on the
//! same connection.

use std::sync::Arc;
use std::time::Duration;

use crate::faulty_engine::{Fault, FaultKind};
use crate::harness::{Client, EMBEDDER, Reply, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_gateway::Ledger;
use throng_store::{Journal, LimitKind, Limits, NewKey, Store, open};

const CHAT: &str = "/v1/chat/completions";

/// A request that must be refused.
struct Row<'a> {
    number: u32,
    path: &'a str,
    body: Value,
    fields: &'a [&'a str],
    /// Status, type, param and code.
    expected: (u16, &'a str, Option<&'a str>, &'a str),
}

async fn ask(client: &mut Client, path: &str, body: &Value, fields: &[&str]) -> Reply {
    client.send(post_bytes(path, &body.to_string(), fields)).await;
    client.reply().await.expect("an answer")
}

impl Row<'_> {
    /// Asks for it and, where the endpoint streams, for a stream too; in between a good request on the same
    /// connection.
    async fn check(&self, server: &Server, good_fields: &[&str]) -> Vec<Reply> {
        let mut client = server.connect().await;
        let streams = matches!(self.path, CHAT | "/v1/completions");
        let mut replies = Vec::new();
        for stream in [false, true].into_iter().take(if streams { 2 } else { 1 }) {
            let mut body = self.body.clone();
            if stream {
                body["stream"] = json!(true);
            }
            let reply = ask(&mut client, self.path, &body, self.fields).await;
            let (status, kind, param, code) = reply.error();
            let found = (status, kind.as_str(), param.as_str(), code.as_str());
            assert_eq!(found, self.expected, "row {} {body:.200}", self.number);
            let good = ask(&mut client, CHAT, &chat(json!({"max_tokens": 2})), good_fields).await;
            assert_eq!(good.status, 200, "after row {}: {}", self.number, good.text());
            replies.push(reply);
        }
        replies
    }
}

const INVALID: &str = "invalid_request_error";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_the_model() {
    let mut setup = Setup { has_embedder: true, ..Setup::default() };
    setup.capacity.n_blocks = 16;
    let server = Server::start(setup).await;
    let say = |content: &str| chat(json!({"messages": [{"role": "user", "content": content}]}));
    let embed = |fields: Value| {
        let mut body = json!({"model": EMBEDDER});
        fields.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let many: Vec<String> = (0..2_049).map(|i| i.to_string()).collect();
    let refused = |param, code| (400, INVALID, Some(param), code);
    let messages = |code| refused("messages", code);
    let vectors = "/v1/embeddings";
    for (number, path, body, expected) in [
        (37, CHAT, say(&"x".repeat(5000)), messages("context_length_exceeded")),
        (38, CHAT, chat(json!({"max_tokens": 5000})), refused("max_tokens", "context_length_exceeded")),
        (40, CHAT, say(&"x".repeat(2000)), messages("prompt_exceeds_capacity")),
        (79, CHAT, say("refuse me"), messages("template_error")),
        (80, vectors, embed(json!({"input": []})), refused("input", "empty_array")),
        (80, vectors, embed(json!({"input": many})), refused("input", "array_above_max_length")),
        (80, vectors, embed(json!({"input": "x".repeat(5000)})), refused("input", "context_length_exceeded")),
        (
            80,
            vectors,
            embed(json!({"input": "x", "dimensions": 0})),
            refused("dimensions", "integer_below_min_value"),
        ),
        (
            80,
            vectors,
            embed(json!({"input": "x", "dimensions": 27})),
            refused("dimensions", "integer_above_max_value"),
        ),
    ] {
        Row { number, path, body, fields: &[], expected }.check(&server, &[]).await;
    }
}

/// A server with a database, and the secret of a key in it.
struct Place {
    server: Server,
    secret: String,
    _folder: tempfile::TempDir,
}

async fn with_key(mut setup: Setup, limits: Limits) -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    setup.config.access.database = Some(url.clone());
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    let (store, ledger): (Arc<dyn Store>, Arc<Ledger>) =
        (open(&url).await.expect("a database"), loading.ledger().expect("a database"));
    let journal = Journal::open(&folder.path().join("journal")).expect("a journal");
    ledger.open(journal, store.clone()).await.expect("opened");
    let new = NewKey { organisation: "o".into(), project: "p".into(), limits, ..NewKey::default() };
    let key = store.create_key(new).await.expect("made");
    let rich = NewKey { organisation: "o".into(), project: "q".into(), ..NewKey::default() };
    let rich = store.create_key(rich).await.expect("made");
    loading.stored_keys().expect("a database").refresh(&*store).await.expect("read");
    let secret = format!("{}\n{}", key.secret(), rich.secret());
    Place { server, secret, _folder: folder }
}

impl Place {
    /// The fields of the key with limits, and of one without.
    fn keys(&self) -> [String; 2] {
        let (limited, other) = self.secret.split_once('\n').expect("two");
        [limited, other].map(|secret| format!("authorization: Bearer {secret}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_key_may_not_use_now() {
    let too_often = (429, "rate_limit_error", None, "rate_limit_exceeded");
    let spent = (429, "insufficient_quota", None, "insufficient_quota");
    for (number, kind, expected) in [
        (83, LimitKind::RequestsPerMinute, too_often),
        (83, LimitKind::TokensPerMinute, too_often),
        (85, LimitKind::TokensPerDay, spent),
    ] {
        let most = if kind == LimitKind::RequestsPerMinute { 1 } else { 60 };
        let place = with_key(Setup::default(), Limits::of([(kind, most)])).await;
        let [limited, other] = place.keys();
        let fields = [limited.as_str()];
        let body = chat(json!({"max_tokens": 20, "ignore_eos": true}));
        let mut client = place.server.connect().await;
        assert_eq!(ask(&mut client, CHAT, &body, &fields).await.status, 200, "{kind:?}");
        let row = Row { number, path: CHAT, body, fields: &fields, expected };
        for reply in row.check(&place.server, &[other.as_str()]).await {
            match number {
                83 => assert!(reply.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok())),
                _ => assert_eq!(reply.header("x-should-retry"), Some("false")),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_under_a_taken_idempotency_key() {
    let setup = Setup { step_time: Duration::from_millis(5), ..Setup::default() };
    let place = with_key(setup, Limits::default()).await;
    let [_, key] = place.keys();
    let good = [key.as_str()];
    let fields = [key.as_str(), "idempotency-key: one"];
    let mut client = place.server.connect().await;
    let first = chat(json!({"max_tokens": 3}));
    assert_eq!(ask(&mut client, CHAT, &first, &fields).await.status, 200);
    let body = chat(json!({"max_tokens": 4}));
    let expected = (400, INVALID, Some("Idempotency-Key"), "idempotency_mismatch");
    Row { number: 82, path: CHAT, body, fields: &fields, expected }.check(&place.server, &good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_has_no_room_for() {
    let mut setup = Setup { step_time: Duration::from_millis(2), ..Setup::default() };
    setup.engine.scheduler.max_batch_sequences = 1;
    setup.engine.scheduler.max_queued_requests = 1;
    let server = Server::start(setup).await;
    let mut others = Vec::new();
    let long = completion(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true}));
    for n_busy in 1..=2 {
        let mut other = server.connect().await;
        other.send(post_bytes("/v1/completions", &long.to_string(), &[])).await;
        others.push(other);
        let busy = async {
            loop {
                let stats = server.engine.stats().scheduler;
                if stats.running + stats.queued_requests >= n_busy && stats.running == 1 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(crate::harness::PATIENCE, busy).await.expect("it is taken in");
    }
    let mut client = server.connect().await;
    for stream in [false, true] {
        let body = chat(json!({"max_tokens": 2, "stream": stream}));
        let reply = ask(&mut client, CHAT, &body, &[]).await;
        let (status, kind, param, code) = reply.error();
        assert_eq!(
            (status, kind.as_str(), param, code.as_str()),
            (503, "server_error", Value::Null, "overloaded")
        );
        assert!(reply.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s > 0)));
    }
    drop(others);
    server.idle().await;
    let good = ask(&mut client, CHAT, &chat(json!({"max_tokens": 2})), &[]).await;
    assert_eq!(good.status, 200, "the connection is as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_inside_the_server() {
    let setup = Setup::default();
    let fault = Fault { at_step: 1, kind: FaultKind::StepPanics };
    let engine = crate::faulty_engine::start(setup.capacity, setup.engine.clone(), Some(fault));
    let server = Server::over(engine, setup).await;
    let mut client = server.connect().await;
    let reply = ask(&mut client, CHAT, &chat(json!({"max_tokens": 2})), &[]).await;
    let (status, kind, param, code) = reply.error();
    assert_eq!(
        (status, kind.as_str(), param, code.as_str()),
        (500, "server_error", Value::Null, "internal_error")
    );
    let id = reply.header("x-request-id").expect("an id").to_owned();
    assert!(reply.text().contains(&id) && !reply.text().contains("panic"), "{}", reply.text());
    let good = ask(&mut client, CHAT, &chat(json!({"max_tokens": 2})), &[]).await;
    assert_eq!(good.status, 200, "{}", good.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_too_long() {
    let mut setup = Setup { step_time: Duration::from_millis(20), ..Setup::default() };
    setup.config.overload.total_timeout_ms = 300;
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let long = chat(json!({"max_tokens": 1000, "ignore_eos": true}));
    let (status, kind, _, code) = ask(&mut client, CHAT, &long, &[]).await.error();
    assert_eq!((status, kind.as_str(), code.as_str()), (504, "server_error", "generation_timeout"));
    let good = ask(&mut client, CHAT, &chat(json!({"max_tokens": 2})), &[]).await;
    assert_eq!(good.status, 200, "{}", good.text());
    let mut streamed = long;
    streamed["stream"] = json!(true);
    let events = ask(&mut client, CHAT, &streamed, &[]).await.events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
    assert_eq!(last["error"]["code"], "generation_timeout");
}
