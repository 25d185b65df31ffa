//! Foreign engines behind a gateway, over real sockets: a Throng server is the engine where any will do, and
//! one that answers by script where it must misbehave. What they say reaches clients as it was, and what they
//! use is counted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_gateway::{Fleet, Gateway, GatewayConfig, Ledger, ReplicaConfig, Secret};
use throng_store::{CreatedKey, Journal, LimitKind, Limits, NewKey, Store, UsageQuery, open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A gateway over upstream engines.
pub(super) struct Place {
    address: SocketAddr,
    key: Option<CreatedKey>,
    pub ledger: Option<(Arc<Ledger>, Arc<dyn Store>)>,
    _fleet: Fleet,
    _folder: tempfile::TempDir,
}

impl Place {
    pub async fn start(replicas: &[ReplicaConfig]) -> Self {
        Self::with_limits(replicas, None).await
    }

    /// With a key that has these limits, where there are some.
    pub async fn with_limits(replicas: &[ReplicaConfig], limits: Option<Limits>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("throng.db").display());
        let mut config = GatewayConfig::default();
        config.access.database = limits.is_some().then(|| url.clone());
        let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
        let (mut key, mut ledger) = (None, None);
        if let Some(limits) = limits {
            let store = open(&url).await.expect("a database");
            let new = NewKey { organisation: "o".into(), project: "p".into(), limits, ..NewKey::default() };
            key = Some(store.create_key(new).await.expect("made"));
            loading.stored_keys().expect("a database").refresh(&*store).await.expect("read");
            let opened = loading.ledger().expect("a database");
            let journal = Journal::open(&folder.path().join("journal")).expect("a journal");
            opened.open(journal, store.clone()).await.expect("opened");
            ledger = Some((opened, store));
        }
        let fleet = loading.start_fleet(replicas, None).expect("valid addresses");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        tokio::spawn(gateway.serve(listener, std::future::pending::<()>()));
        Self { address, key, ledger, _fleet: fleet, _folder: folder }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    pub fn request(&self, path: &str, body: &Value, fields: &[&str]) -> Vec<u8> {
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {}", key.secret()));
        let fields: Vec<&str> = fields.iter().copied().chain(key.as_deref()).collect();
        post_bytes(path, &body.to_string(), &fields)
    }

    pub async fn ask(&self, path: &str, body: &Value) -> crate::harness::Reply {
        let mut client = self.client().await;
        client.send(self.request(path, body, &[])).await;
        client.reply().await.expect("an answer")
    }

    /// Waits until so many engines are in this state.
    pub async fn until(&self, n: usize, state: &str) -> Value {
        let mut client = self.client().await;
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {}\r\n", key.secret()));
        let request = format!("GET /fleet HTTP/1.1\r\nhost: localhost\r\n{}\r\n", key.unwrap_or_default());
        let waiting = async {
            loop {
                client.send(&request).await;
                let told = client.reply().await.expect("an answer").json();
                let engines = told["workers"].as_array().cloned().unwrap_or_default();
                if engines.iter().filter(|engine| engine["state"] == state).count() == n {
                    return told;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so")
    }

    /// Asks until an engine has answered a probe.
    async fn until_served(&self, body: &Value) {
        let waiting = async {
            while self.ask("/v1/completions", body).await.status == 503 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so");
    }
}

/// An engine that is known as `there` and that clients call `paper`.
pub(super) fn replica(address: SocketAddr, there: &str) -> ReplicaConfig {
    ReplicaConfig {
        model: Some(there.to_owned()),
        names: vec!["paper".to_owned(), "alias".to_owned()],
        ..ReplicaConfig::of_url(format!("http://{address}/v1"))
    }
}

/// An engine that answers its first probe, and requests as its script says.
pub(super) struct Scripted {
    pub address: SocketAddr,
    n_asked: Arc<AtomicUsize>,
    pub last: Arc<Mutex<String>>,
}

impl Scripted {
    /// `answer` gets the number of the request.
    pub async fn start(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (n_asked, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(String::new())));
        let (counted, noted, answer) = (n_asked.clone(), last.clone(), Arc::new(answer));
        let n_probes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counted, noted, answer) = (counted.clone(), noted.clone(), answer.clone());
                let probes = n_probes.clone();
                tokio::spawn(async move {
                    let request = read_request(&mut stream).await;
                    let is_probe = request.contains(r#""content":".""#);
                    let told = if is_probe {
                        let is_first = probes.fetch_add(1, Ordering::Relaxed) == 0;
                        whole(if is_first { 200 } else { 500 }, "{}")
                    } else {
                        *noted.lock().expect("no panic") = request;
                        answer(counted.fetch_add(1, Ordering::Relaxed))
                    };
                    let _ = stream.write_all(told.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, n_asked, last }
    }

    pub fn n_asked(&self) -> usize {
        self.n_asked.load(Ordering::Relaxed)
    }
}

pub(super) async fn read_request(stream: &mut tokio::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = stream.read(&mut chunk).await.unwrap_or(0);
        bytes.extend_from_slice(&chunk[..n]);
        let text = String::from_utf8_lossy(&bytes);
        let length =
            text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.len());
        if n == 0 || body.is_some_and(|n_read| n_read >= length.unwrap_or(0_usize)) {
            return text.into_owned();
        }
    }
}

pub(super) fn whole(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

pub(super) fn stream(events: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{events}")
}

#[tokio::test]
async fn what_an_engine_answers_reaches_the_client_as_it_was() {
    let engine = Server::start(Setup::default()).await;
    let place = Place::start(&[replica(engine.address, "org/paper")]).await;
    place.until(1, "ready").await;
    let mut direct = engine.connect().await;
    let body = chat(json!({"max_tokens": 9, "n": 2, "ignore_eos": true, "temperature": 0}));
    // The prompt is cached from now on, for whoever asks.
    direct.post("/v1/chat/completions", &body).await;
    let reply = place.ask("/v1/chat/completions", &body).await;
    let (told, expected) = (reply.json(), direct.post("/v1/chat/completions", &body).await.json());
    assert_eq!((&told["choices"], &told["usage"]), (&expected["choices"], &expected["usage"]));
    assert_eq!((reply.status, &told["model"]), (200, &json!("org/paper")));
    for options in
        [json!({"stream": true}), json!({"stream": true, "stream_options": {"include_usage": true}})]
    {
        let mut body =
            completion(json!({"max_tokens": 7, "ignore_eos": true, "temperature": 0, "logprobs": 2}));
        options.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
        body["model"] = json!("alias");
        let told = place.ask("/v1/completions", &body).await.chunks();
        body["model"] = json!("org/paper");
        let expected = direct.post("/v1/completions", &body).await.chunks();
        let shown = |chunks: &[Value]| {
            chunks.iter().map(|chunk| (chunk["choices"].clone(), chunk["usage"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(shown(&told), shown(&expected));
        assert!(told.iter().all(|chunk| chunk["model"] == "org/paper"), "{told:?}");
    }
    let models = place.client().await.get("/v1/models").await.json();
    let ids: Vec<_> =
        models["data"].as_array().expect("a list").iter().map(|card| card["id"].clone()).collect();
    assert_eq!(ids, ["paper", "alias"]);
    assert_eq!(place.client().await.get("/v1/models/alias").await.json()["parent"], "paper");
    assert_eq!(place.client().await.get("/health").await.status, 200);
    let metrics = place.client().await.get("/metrics").await;
    let labels = format!(r#"model_name="paper",replica="{}""#, engine.address);
    for line in [
        format!(r#"throng_replica_state{{{labels},state="ready"}} 1"#),
        format!(r#"throng_replica_state{{{labels},state="ejected"}} 0"#),
        format!("throng_replica_num_requests_running{{{labels}}} "),
    ] {
        assert!(metrics.text().contains(&line), "{line}");
    }
}

#[tokio::test]
async fn models_are_asked_for_where_none_is_named() {
    let engine = Server::start(Setup::default()).await;
    let place = Place::start(&[ReplicaConfig::of_url(format!("http://{}/v1", engine.address))]).await;
    let told = place.until(2, "ready").await;
    let of = |idx: usize| told["workers"][idx]["models"][0].clone();
    assert_eq!((of(0), of(1)), (json!("paper"), json!("org/paper")));
    assert_eq!(place.ask("/v1/completions", &completion(json!({"max_tokens": 2}))).await.status, 200);
}

#[tokio::test]
async fn errors_of_the_request_are_the_clients_and_errors_of_the_engine_are_not() {
    let engine = Server::start(Setup::default()).await;
    let place = Place::start(&[replica(engine.address, "org/paper")]).await;
    place.until(1, "ready").await;
    let (status, _, param, code) =
        place.ask("/v1/completions", &completion(json!({"temperature": 99}))).await.error();
    assert_eq!((status, param, code.as_str()), (400, json!("temperature"), "decimal_above_max_value"));
    let mut client = place.client().await;
    client.send(post_bytes("/v1/completions", r#"{"model":"paper","model":"x","prompt":"a"}"#, &[])).await;
    assert_eq!(client.reply().await.expect("an answer").error().3, "duplicate_key");
    let unknown = completion(json!({"model": "nobody"}));
    assert_eq!(place.ask("/v1/completions", &unknown).await.error().3, "model_not_found");
    for (answer, status, code) in [
        (whole(500, r#"{"secret": "a path"}"#), 502, "upstream_error"),
        (whole(401, "{}"), 502, "upstream_error"),
        (whole(429, "{}"), 503, "overloaded"),
        (whole(400, "<html>"), 400, "upstream_rejected"),
        (whole(200, "<html>"), 502, "upstream_error"),
        (stream("data: {}\n\n"), 502, "upstream_error"),
        (String::new(), 503, "no_healthy_worker"),
    ] {
        let engine = Scripted::start(move |_| answer.clone()).await;
        let place = Place::start(&[replica(engine.address, "x")]).await;
        place.until(1, "ready").await;
        let reply = place.ask("/v1/completions", &completion(json!({}))).await;
        let (got, _, _, told) = reply.error();
        assert_eq!((got, told.as_str()), (status, code), "{}", reply.text());
        assert!(!reply.text().contains("secret"));
        let shown = engine.last.lock().expect("no panic").clone();
        assert!(shown.starts_with("POST /v1/completions HTTP/1.1\r\n"), "{shown}");
    }
}

#[tokio::test]
async fn a_request_moves_to_another_engine_before_its_first_token_and_never_after() {
    let bad = Scripted::start(|_| stream(": nothing\n\n")).await;
    let good = Server::start(Setup::default()).await;
    let place = Place::start(&[replica(bad.address, "x"), replica(good.address, "org/paper")]).await;
    place.until(2, "ready").await;
    let body = completion(json!({"max_tokens": 3, "stream": true, "ignore_eos": true}));
    for _ in 0..20 {
        let chunks = place.ask("/v1/completions", &body).await.chunks();
        assert!(!chunks.is_empty());
    }
    // Five failures in a row, or the failure rate: then it is left alone until a probe succeeds.
    assert!((1..=6).contains(&bad.n_asked()), "{}", bad.n_asked());

    let half = r#"data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}"#;
    let breaking = Scripted::start(move |_| stream(&format!("{half}\n\n"))).await;
    let place = Place::start(&[replica(breaking.address, "x")]).await;
    place.until(1, "ready").await;
    let events = place.ask("/v1/completions", &body).await.events();
    assert_eq!((events.len(), events[0].as_str(), breaking.n_asked()), (2, &half[6..], 1), "{events:?}");
    assert!(events[1].contains(r#""code":"upstream_error""#), "{events:?}");
    let ended = half.replace("null", "\"stop\"");
    let silent_end = Scripted::start(move |_| stream(&format!("{ended}\n\n"))).await;
    let place = Place::start(&[replica(silent_end.address, "x")]).await;
    place.until(1, "ready").await;
    assert_eq!(place.ask("/v1/completions", &body).await.chunks().len(), 1);
}

#[tokio::test]
async fn retries_stay_within_a_tenth_of_the_requests() {
    // Each engine may break off five requests in a row before it is ejected: these go on without being counted.
    for (answer, status, n_lost) in [(whole(500, "{}"), 502, 0), (String::new(), 503, 3 * 5)] {
        let mut engines = Vec::new();
        for _ in 0..3 {
            let answer = answer.clone();
            engines.push(Scripted::start(move |_| answer.clone()).await);
        }
        let replicas: Vec<_> = engines.iter().map(|engine| replica(engine.address, "x")).collect();
        let place = Place::start(&replicas).await;
        place.until(3, "ready").await;
        for _ in 0..200 {
            assert_eq!(place.ask("/v1/completions", &completion(json!({}))).await.status, status);
        }
        let n_asked: usize = engines.iter().map(Scripted::n_asked).sum();
        assert!((200..=200 + 20 + 10 + n_lost).contains(&n_asked), "{n_asked} attempts");
    }
}

/// An engine that answers probes at once, and requests when it is told to. Dropping it ends it as a process
/// that is killed.
struct Holding {
    address: SocketAddr,
    n_asked: Arc<AtomicUsize>,
    released: tokio::sync::watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Holding {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let n_asked = Arc::new(AtomicUsize::new(0));
        let (released, holding) = tokio::sync::watch::channel(false);
        let counted = n_asked.clone();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counted, mut holding) = (counted.clone(), holding.clone());
                connections.spawn(async move {
                    if !read_request(&mut stream).await.contains(r#""content":".""#) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        let _ = holding.wait_for(|released| *released).await;
                    }
                    let _ = stream.write_all(whole(200, "{}").as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, n_asked, released, serving }
    }

    fn n_asked(&self) -> usize {
        self.n_asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn what_an_engine_loses_before_its_first_token_is_answered_by_another_one() {
    const N: usize = 192;
    let mut engines = [Holding::start().await, Holding::start().await, Holding::start().await];
    let replicas: Vec<_> = engines.iter().map(|engine| replica(engine.address, "x")).collect();
    let place = Arc::new(Place::start(&replicas).await);
    place.until(3, "ready").await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..N {
        let place = place.clone();
        asking.spawn(async move {
            let prompt = format!("request {number}");
            place.ask("/v1/completions", &completion(json!({"prompt": prompt}))).await.status
        });
    }
    let all_wait = async {
        while engines.iter().map(Holding::n_asked).sum::<usize>() < N {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("all of them wait");
    let n_before: Vec<usize> = engines.iter().map(Holding::n_asked).collect();
    println!("{n_before:?} requests wait at the engines");
    assert!(n_before.iter().all(|&n| n > 20), "more than the retry budget has in reserve: {n_before:?}");
    let [first, second, last] = &mut engines;
    first.serving.abort();
    second.serving.abort();
    last.released.send_replace(true);
    let statuses = tokio::time::timeout(PATIENCE, asking.join_all()).await.expect("all are answered");
    assert!(statuses.iter().all(|&status| status == 200), "{statuses:?}");
    // Most engines are gone, which the one that is left does not make up for by luck.
    for _ in 0..60 {
        assert_eq!(place.ask("/v1/completions", &completion(json!({}))).await.status, 200);
    }
    assert_eq!(last.n_asked(), N + 60, "each request was computed once");
}

#[tokio::test]
async fn a_client_that_goes_ends_the_request_at_the_engine() {
    let engine = Server::start(Setup::default()).await;
    let place = Place::start(&[replica(engine.address, "org/paper")]).await;
    place.until(1, "ready").await;
    let body = completion(json!({"ignore_eos": true, "max_tokens": 4000, "stream": true}));
    let mut gone = place.client().await;
    gone.send(place.request("/v1/completions", &body, &[])).await;
    gone.read_until("data: ").await;
    drop(gone);
    engine.idle().await;
    assert!(engine.engine.stats().scheduler.counters.output_tokens < 4000);
}

#[tokio::test]
async fn a_header_names_the_engine_and_conversations_stay_where_they_began() {
    let (first, second) = (Server::start(Setup::default()).await, Server::start(Setup::default()).await);
    let named =
        |address, name: &str| ReplicaConfig { name: Some(name.to_owned()), ..replica(address, "org/paper") };
    let place = Place::start(&[named(first.address, "one"), named(second.address, "two")]).await;
    place.until(2, "ready").await;
    let made = || [&first, &second].map(|server| server.engine.stats().scheduler.counters.prompt_tokens);
    // An engine's counters follow its answers.
    let went_to_first = async |before: [u64; 2]| {
        let counted = async {
            while made() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect("one of them has computed the prompt");
        made()[0] > before[0]
    };
    first.has_made(1).await;
    second.has_made(1).await;
    let mut client = place.client().await;
    for _ in 0..3 {
        let (before, body) = (made(), completion(json!({"max_tokens": 1})));
        client.send(place.request("/v1/completions", &body, &["x-throng-replica: two"])).await;
        assert_eq!(client.reply().await.expect("an answer").status, 200);
        assert!(!went_to_first(before).await);
    }
    client.send(place.request("/v1/completions", &completion(json!({})), &["x-throng-replica: three"])).await;
    let refused = client.reply().await.expect("an answer");
    assert_eq!(refused.error().3, "no_healthy_worker");
    assert!(refused.text().contains("'x-throng-replica' names"), "{}", refused.text());
    // Each turn repeats the conversation so far: its prefix decides, against taking turns.
    let mut where_turns_went = Vec::new();
    for conversation in 0..4 {
        let mut messages = vec![json!({"role": "user", "content": format!("{conversation} ").repeat(100)})];
        for turn in 0..4 {
            let (before, body) = (made(), json!({"model": "paper", "messages": messages, "max_tokens": 1}));
            assert_eq!(place.ask("/v1/chat/completions", &body).await.status, 200);
            where_turns_went.push((conversation, went_to_first(before).await));
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": "and then?"}));
        }
    }
    for turns in where_turns_went.chunks(4) {
        assert!(turns.iter().all(|turn| *turn == turns[0]), "{where_turns_went:?}");
    }
    assert!(where_turns_went.iter().any(|turn| turn.1) && where_turns_went.iter().any(|turn| !turn.1));
}

#[tokio::test]
async fn keys_limits_and_the_ledger_count_what_an_engine_says() {
    let engine = Server::start(Setup::default()).await;
    let limits = Limits::of([(LimitKind::TokensPerMinute, 1_000)]);
    let place = Place::with_limits(&[replica(engine.address, "org/paper")], Some(limits)).await;
    let body = completion(json!({"max_tokens": 20, "ignore_eos": true}));
    place.until_served(&body).await;
    let reply = place
        .ask("/v1/completions", &completion(json!({"max_tokens": 20, "ignore_eos": true, "stream": true})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let left =
        reply.header("x-ratelimit-remaining-tokens").expect("a limit").parse::<u64>().expect("a number");
    // The first request has used 25; the second is charged with half of the prompt's 7 bytes, 64 for the template, and 20.
    assert_eq!(left, 1_000 - 25 - (4 + 64 + 20));
    // A prompt with more tokens than its bytes suggest is charged in full at its end, with what no reservation has.
    let long = completion(json!({"prompt": "b".repeat(300), "max_tokens": 1, "ignore_eos": true}));
    let used = place.ask("/v1/completions", &long).await.json()["usage"]["total_tokens"].as_u64();
    let used = used.expect("a number");
    assert!(used > 302_u64.div_ceil(2) + 64 + 1, "{used} tokens are no more than were reserved");
    let reply = place.ask("/v1/completions", &body).await;
    let left = reply.header("x-ratelimit-remaining-tokens").and_then(|left| left.parse::<u64>().ok());
    assert_eq!(left, Some(1_000 - 25 - 25 - used - (4 + 64 + 20)));
    let refused = place.ask("/v1/completions", &completion(json!({"max_tokens": 5_000}))).await;
    assert_eq!(refused.error().3, "request_exceeds_rate_limit");
    let without_key = {
        let mut client = place.client().await;
        client.post("/v1/completions", &body).await
    };
    assert_eq!(without_key.error().3, "missing_api_key");
    let (ledger, store) = place.ledger.as_ref().expect("opened");
    let counting = async {
        loop {
            ledger.write().await.expect("written");
            let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
            let row = store.usage(&all).await.expect("read").into_iter().next().unwrap_or_default();
            if (row.prompt_tokens, row.generated_tokens) == (15 + used - 1, 61) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counting).await.expect("all requests are counted");
}

/// Usage that the scripted engine reports, and the prompt and output tokens that are charged for it.
const REPORTS: [(&str, u64, u64); 9] = [
    (r#"{"prompt_tokens":11,"completion_tokens":7}"#, 11, 7),
    (r#"{"prompt_tokens":9007199254740992,"completion_tokens":9007199254740992}"#, 2, 3),
    (r#"{"prompt_tokens":18446744073709551615,"completion_tokens":7}"#, 2, 7),
    (r#"{"prompt_tokens":99999999999999999999999,"completion_tokens":-7}"#, 2, 3),
    (r#"{"prompt_tokens":"11","completion_tokens":7.5}"#, 2, 3),
    (r#"{"prompt_tokens":0,"completion_tokens":0}"#, 2, 3),
    ("{}", 2, 3),
    ("[]", 2, 3),
    ("null", 2, 3),
];

#[tokio::test]
async fn usage_that_cannot_be_or_is_not_said_is_estimated_from_the_text() {
    let engine = Scripted::start(|number| {
        // The first request waits until the engine is ready.
        let number = number.saturating_sub(1);
        let (usage, _, _) = REPORTS[number / 2];
        // Ten bytes of text, or three parts.
        if number % 2 == 0 {
            return whole(
                200,
                &format!(r#"{{"choices":[{{"text":"ten bytes.","finish_reason":"stop"}}],"usage":{usage}}}"#),
            );
        }
        let part = |text: &str, reason: &str| {
            format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"finish_reason\":{reason}}}]}}\n\n")
        };
        let parts = [part("ten", "null"), part(" bytes", "null"), part(".", "\"stop\"")].concat();
        stream(&format!("{parts}data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"))
    })
    .await;
    let none = Limits::of([(LimitKind::RequestsPerMinute, 1_000)]);
    let place = Place::with_limits(&[replica(engine.address, "x")], Some(none)).await;
    place.until_served(&json!({"model": "paper", "prompt": "hello"})).await;
    let (ledger, store) = place.ledger.as_ref().expect("opened");
    let (mut n_requests, mut expected) = (1, [REPORTS[0].1, REPORTS[0].2]);
    for (usage, prompt, output) in REPORTS {
        for is_streaming in [false, true] {
            let body = json!({"model": "paper", "prompt": "hello", "stream": is_streaming});
            let reply = place.ask("/v1/completions", &body).await;
            assert_eq!(reply.status, 200, "{usage}: {}", reply.text());
            n_requests += 1;
            expected = [expected[0] + prompt, expected[1] + output];
            let counted = async {
                loop {
                    ledger.write().await.expect("written");
                    let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
                    let row = store.usage(&all).await.expect("read").into_iter().next().unwrap_or_default();
                    if row.n_requests == n_requests {
                        return [row.prompt_tokens, row.generated_tokens];
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let counted = tokio::time::timeout(PATIENCE, counted).await.expect("it is written");
            assert_eq!(counted, expected, "{usage}, streaming: {is_streaming}");
        }
    }
    store.check().await.expect("days and entries agree");
}

#[tokio::test]
async fn what_cannot_be_used_is_told_at_the_start() {
    let (_, loading) = Gateway::loading(GatewayConfig::default(), Default::default()).expect("valid");
    let start = |config: ReplicaConfig| {
        loading.start_fleet(&[config], None).map(drop).map_err(|error| error.to_string())
    };
    for (config, words) in [
        (ReplicaConfig::of_url("http://user:password@a/v1"), "without a name, a password"),
        (
            ReplicaConfig { api_key: Some(Secret::new("a\nb")), ..ReplicaConfig::of_url("http://a/v1") },
            "API key",
        ),
        (ReplicaConfig { timeout_s: Some(0), ..ReplicaConfig::of_url("http://a/v1") }, "timeout_s"),
        (ReplicaConfig { ca: Some("/nowhere".into()), ..ReplicaConfig::of_url("http://a/v1") }, "https"),
        (ReplicaConfig { ca: Some("/nowhere".into()), ..ReplicaConfig::of_url("https://a/v1") }, "/nowhere"),
        (ReplicaConfig { model: Some("m".into()), ..ReplicaConfig::of_url("throng://a:1") }, "for engines"),
    ] {
        let error = start(config).expect_err(words);
        assert!(error.contains(words) && !error.contains("password@") && !error.contains("a\nb"), "{error}");
    }
}
