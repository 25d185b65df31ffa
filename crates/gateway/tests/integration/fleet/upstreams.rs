//! Engines of other makers as they really are: at addresses as people write them, dead, without the right
//! key, with errors in any form, with other endpoints than chat. Over real sockets, with engines that answer
//! by script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Reply, chat, completion};
use serde_json::{Value, json};
use throng_gateway::{Fleet, Gateway, GatewayConfig, Ledger, ReplicaConfig, Secret};
use throng_store::{Journal, Limits, NewKey, Store, UsageQuery, open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// An engine that answers each request by its path and its body; what was asked is kept.
pub(super) struct Engine {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, String)>>>,
    pub accepting: tokio::task::AbortHandle,
}

impl Engine {
    pub async fn start(answer: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let kept = asked.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, kept) = (answer.clone(), kept.clone());
                tokio::spawn(async move {
                    let request = read_request(&mut stream).await;
                    let (head, body) = request.split_once("\r\n\r\n").unwrap_or_default();
                    let path = head.split(' ').nth(1).unwrap_or_default();
                    kept.lock().expect("no panic").push((path.to_owned(), body.to_owned()));
                    let _ = stream.write_all(answer(path, body).as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, asked, accepting: accepting.abort_handle() }
    }

    fn bodies(&self, path: &str) -> Vec<Value> {
        let asked = self.asked.lock().expect("no panic");
        asked
            .iter()
            .filter(|(at, _)| at == path)
            .map(|(_, body)| serde_json::from_str(body).expect("JSON"))
            .collect()
    }
}

async fn read_request(stream: &mut tokio::net::TcpStream) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut chunk).await.unwrap_or(0);
        bytes.extend_from_slice(&chunk[..n]);
        let text = String::from_utf8_lossy(&bytes);
        let length = text.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split('\r').next()?.parse().ok()).unwrap_or(0_usize);
        if n == 0 || text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() >= length) {
            return text.into_owned();
        }
    }
}

fn whole(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn stream(events: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{events}")
}

fn message_of(reply: &Reply) -> String {
    reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

fn not_found() -> String {
    whole(404, r#"{"detail":"Not Found"}"#)
}

pub(super) fn models(names: &[&str]) -> String {
    let data: Vec<Value> = names.iter().map(|name| json!({"id": name, "object": "model"})).collect();
    whole(200, &json!({"object": "list", "data": data}).to_string())
}

pub(super) fn answer(text: &str) -> String {
    let choice =
        json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4});
    whole(
        200,
        &json!({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).to_string(),
    )
}

/// A gateway over these engines.
pub(super) struct Place {
    pub address: SocketAddr,
    key: Option<String>,
    ledger: Option<(Arc<Ledger>, Arc<dyn Store>)>,
    _fleet: Fleet,
    _folder: tempfile::TempDir,
}

impl Place {
    pub async fn over(replicas: &[ReplicaConfig], has_ledger: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("throng.db").display());
        let mut config = GatewayConfig::default();
        config.access.database = has_ledger.then(|| url.clone());
        let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
        let (mut key, mut ledger) = (None, None);
        if has_ledger {
            let store = open(&url).await.expect("a database");
            let new = NewKey {
                organisation: "o".into(),
                project: "p".into(),
                limits: Limits::default(),
                ..NewKey::default()
            };
            key = Some(store.create_key(new).await.expect("made").secret().to_owned());
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

    async fn of(url: &str) -> Self {
        Self::over(&[ReplicaConfig::of_url(url)], false).await
    }

    pub async fn ask(&self, path: &str, body: &Value) -> Reply {
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {key}"));
        let fields: Vec<&str> = key.as_deref().into_iter().collect();
        let mut client = Client::connect(self.address).await;
        client.send(crate::harness::post_bytes(path, &body.to_string(), &fields)).await;
        client.reply().await.expect("an answer")
    }

    pub async fn fleet(&self) -> Vec<Value> {
        let told = Client::connect(self.address).await.get("/fleet").await.json();
        told["workers"].as_array().cloned().unwrap_or_default()
    }

    /// The only row of the fleet, once it is so.
    pub async fn row(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let waiting = async {
            loop {
                if let [row] = &self.fleet().await[..]
                    && is_so(row)
                {
                    return row.clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so")
    }

    async fn ready(&self) -> Value {
        self.row(|row| row["state"] == "ready").await
    }
}

/// An engine with one model, which answers its probe, and all other chats as `other` says.
pub(super) async fn engine_that_says(
    other: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (Engine, Place) {
    let engine = Engine::start(move |path, body| match path {
        "/v1/models" => models(&["m"]),
        _ if body.contains(r#""content":".""#) => answer("ok"),
        _ => other(body),
    })
    .await;
    let place = Place::of(&format!("http://{}", engine.address)).await;
    place.ready().await;
    (engine, place)
}

#[tokio::test]
async fn the_address_of_a_server_is_enough() {
    for (prefix, written) in
        [("/v1", ""), ("/v1", "/"), ("/v1", "/v1/chat/completions"), ("/api/v1", "/api"), ("", "")]
    {
        let engine = Engine::start(move |path, _| match path.strip_prefix(prefix) {
            Some("/models") => models(&["m"]),
            Some("/chat/completions") => answer("here"),
            _ => not_found(),
        })
        .await;
        let url = format!("http://{}{written}", engine.address);
        // Once asked for its models, once with a named one, which engines need not list.
        for model in [None, Some("m".to_owned())] {
            let place = Place::over(&[ReplicaConfig { model, ..ReplicaConfig::of_url(&url) }], false).await;
            let row = place.ready().await;
            assert_eq!(row["models"], json!(["m"]), "{url}");
            let reply = place.ask("/v1/chat/completions", &chat(json!({"model": "m"}))).await;
            assert_eq!(reply.json()["choices"][0]["message"]["content"], "here", "{url}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_engine_is_told_from_the_beginning() {
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("a bound socket")
    };
    let locked =
        Engine::start(|_, _| whole(401, r#"{"error":{"message":"Incorrect API key provided."}}"#)).await;
    let page = Engine::start(|_, _| whole(200, "<html>it works</html>")).await;
    let other = Engine::start(|_, _| not_found()).await;
    let empty = Engine::start(|_, _| whole(200, r#"{"object":"list","data":null}"#)).await;
    for (address, words) in [
        (dead, "refused"),
        (locked.address, "Incorrect API key provided): its key (api_key) is missing or wrong"),
        (page.address, "is it a server with OpenAI's API?"),
        (other.address, "404"),
        (empty.address, "it lists no models"),
    ] {
        let url = format!("http://{address}/v1");
        let place = Place::of(&url).await;
        let row = place.row(|row| row["state"] == "down").await;
        assert!(row["reason"].as_str().expect("a reason").contains(words), "{row}");
        assert_eq!((&row["url"], &row["name"]), (&json!(url), &json!(address.to_string())));
        let reply = place.ask("/v1/chat/completions", &chat(json!({"model": "m"}))).await;
        let ((status, _, _, code), message) = (reply.error(), message_of(&reply));
        assert_eq!((status, code.as_str()), (503, "no_healthy_worker"), "{message}");
        assert!(message.contains("1 engine cannot be used") && !message.contains("load"), "{message}");
        assert!(reply.header("retry-after").is_some());
        let health = Client::connect(place.address).await.get("/health").await;
        assert_eq!((health.status, &health.json()["status"]), (503, &json!("waiting")));
    }
    // A model of another engine is none of theirs, but may be of one that has not answered.
    let good =
        Engine::start(|path, _| if path == "/v1/models" { models(&["m"]) } else { answer("ok") }).await;
    let [good, dead] = [good.address, dead].map(|address| ReplicaConfig::of_url(format!("http://{address}")));
    let place = Place::over(&[good, dead], false).await;
    let waiting = async {
        while !place.fleet().await.iter().any(|row| row["state"] == "ready") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("one of them answers");
    assert_eq!(place.ask("/v1/chat/completions", &chat(json!({"model": "m"}))).await.status, 200);
    let reply = place.ask("/v1/chat/completions", &chat(json!({"model": "n"}))).await;
    assert!(reply.status == 503 && message_of(&reply).contains("'n'"), "{}", reply.text());
}

#[tokio::test]
async fn errors_in_an_answer_are_errors() {
    for (told, status, words) in [
        (r#"{"error":{"message":"the provider is down","code":502}}"#, 502, "upstream_error"),
        (r#"{"error":{"message":"slow down","code":429}}"#, 503, "overloaded"),
        (r#"{"error":{"message":"top_p is wrong","code":"400"}}"#, 400, "top_p is wrong"),
        (r#"{"error":{"message":"too hot","type":"invalid_request_error"}}"#, 400, "too hot"),
        (
            r#"{"object":"error","message":"maximum context length is 4 tokens"}"#,
            400,
            "context_length_exceeded",
        ),
        (r#"{"detail":"it is broken"}"#, 502, "upstream_error"),
        (
            r#"{"choices":[{"error":{"message":"no","code":503},"finish_reason":"error","message":{"content":""}}]}"#,
            503,
            "overloaded",
        ),
    ] {
        let (_engine, place) = engine_that_says(move |body| match body.contains(r#""stream":true"#) {
            false => whole(200, told),
            true if told.contains("choices") || told.contains("detail") => whole(200, told),
            true if body.contains("in place") => whole(200, told),
            true => stream(&format!(": hello\n\ndata: {told}\n\n")),
        })
        .await;
        for (prompt, is_streaming) in [("a", false), ("a", true), ("in place", true)] {
            let messages = json!([{"role": "user", "content": prompt}]);
            let body = json!({"model": "m", "messages": messages, "stream": is_streaming});
            let reply = place.ask("/v1/chat/completions", &body).await;
            assert_eq!(reply.status, status, "{told}, {prompt}: {}", reply.text());
            assert!(reply.text().contains(words), "{told}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn reasons_are_passed_on_in_whatever_form_they_come() {
    for (status, told, got, code, words) in [
        (
            400,
            r#"{"object":"error","message":"maximum context length is 10 tokens","type":"BadRequestError","code":400}"#,
            400,
            "context_length_exceeded",
            "10 tokens",
        ),
        (
            422,
            r#"{"error":"Input validation error: `inputs` must have less than 9 tokens. Given: 12","error_type":"validation"}"#,
            400,
            "context_length_exceeded",
            "Given: 12",
        ),
        (
            500,
            r#"{"error":{"message":"prompt too long; exceeded max context length by 9 tokens","type":"api_error"}}"#,
            400,
            "context_length_exceeded",
            "by 9 tokens",
        ),
        (
            413,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#,
            400,
            "context_length_exceeded",
            "9 tokens > 8",
        ),
        (
            400,
            r#"{"object":"error","message":"top_p must be in (0, 1]","type":"BadRequestError","code":400}"#,
            400,
            "null",
            "top_p",
        ),
        (422, r#"{"detail":[{"loc":["body","n"],"msg":"too many"}]}"#, 422, "null", "n: too many"),
        (400, "no such tool", 400, "null", "no such tool"),
        (400, "<html>", 400, "upstream_rejected", "rejects"),
        (500, r#"{"error":"a secret path"}"#, 502, "upstream_error", "failed"),
    ] {
        let (_engine, place) = engine_that_says(move |_| whole(status, told)).await;
        let reply = place.ask("/v1/chat/completions", &chat(json!({"model": "m"}))).await;
        let error = &reply.json()["error"];
        let shown = error["code"].as_str().unwrap_or("null");
        assert_eq!((reply.status, shown), (got, code), "{told}: {}", reply.text());
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(words)),
            "{told}: {}",
            reply.text()
        );
        assert!(!reply.text().contains("secret"));
    }
}

#[tokio::test]
async fn the_last_event_needs_no_empty_line() {
    let part = r#"data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}"#;
    let end = r#"data: {"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}"#;
    for (events, n_chunks) in [
        (format!("{part}\n\n{end}\n\ndata: [DONE]"), 2),
        (format!("{part}\n\n{end}\n\ndata: [DONE]\n"), 2),
        (format!("{part}\n\n{end}"), 2),
        (format!("{part}\n\n{end}\r\n"), 2),
        (end.to_owned(), 1),
    ] {
        let (_engine, place) = engine_that_says(move |_| stream(&events)).await;
        let reply = place.ask("/v1/completions", &completion(json!({"model": "m", "stream": true}))).await;
        assert_eq!(reply.chunks().len(), n_chunks, "{}", reply.text());
    }
    let (_engine, place) = engine_that_says(move |_| stream(&format!("{part}\n\n{}", &end[..40]))).await;
    let reply = place.ask("/v1/completions", &completion(json!({"model": "m", "stream": true}))).await;
    let events = reply.events();
    assert!(events.last().is_some_and(|event| event.contains("upstream_error")), "{events:?}");
}

#[tokio::test]
async fn other_endpoints_pass_through_and_are_charged() {
    let engine = Engine::start(|path, body| match path {
        "/v1/models" => models(&["vectors"]),
        "/v1/embeddings" => whole(200, r#"{"object":"list","data":[{"embedding":[1.5],"index":0}],"usage":{"prompt_tokens":7,"total_tokens":7}}"#),
        "/v1/rerank" => whole(200, r#"{"results":[{"index":0,"relevance_score":0.5}],"usage":{"total_tokens":11}}"#),
        "/score" => whole(200, r#"{"data":[{"index":0,"score":0.25}]}"#),
        "/classify" => whole(400, r#"{"object":"error","message":"no labels","type":"BadRequestError","code":400}"#),
        "/tokenize" => whole(200, &format!(r#"{{"count":1,"tokens":[{}]}}"#, body.len())),
        "/v1/chat/completions" | "/v1/completions" => whole(400, r#"{"error":{"message":"no chat"}}"#),
        _ => not_found(),
    })
    .await;
    let replica = ReplicaConfig {
        model: Some("vectors".into()),
        names: vec!["v".into()],
        ..ReplicaConfig::of_url(format!("http://{}", engine.address))
    };
    let place = Place::over(&[replica], true).await;
    let embedding = json!({"model": "v", "input": "a text", "unknown": {"kept": 1.50}});
    let waiting = async {
        while place.ask("/v1/embeddings", &embedding).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it answers a probe");
    let pair = json!({"model": "v", "text_1": "a", "text_2": "b"});
    for (path, body, words) in [
        ("/v1/rerank", json!({"model": "v", "query": "q", "documents": ["a"]}), "0.5"),
        ("/rerank", json!({"model": "v", "query": "q", "documents": ["a"]}), "0.5"),
        ("/score", pair.clone(), "0.25"),
        ("/v1/score", pair, "0.25"),
        ("/tokenize", json!({"prompt": "a text"}), "tokens"),
    ] {
        let reply = place.ask(path, &body).await;
        assert!(reply.status == 200 && reply.text().contains(words), "{path}: {}", reply.text());
    }
    let reply = place.ask("/v1/classify", &json!({"model": "v", "input": "a"})).await;
    assert_eq!((reply.status, message_of(&reply).as_str()), (400, "no labels"));
    let sent = engine.bodies("/v1/embeddings").pop().expect("it was asked");
    assert_eq!(sent, json!({"model": "vectors", "input": "a text", "unknown": {"kept": 1.5}}));
    let unknown = json!({"model": "nobody", "input": "a"});
    assert_eq!(place.ask("/v1/embeddings", &unknown).await.error().3, "model_not_found");
    let (ledger, store) = place.ledger.as_ref().expect("opened");
    let counting = async {
        loop {
            ledger.write().await.expect("written");
            let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
            let row = store.usage(&all).await.expect("read").into_iter().next().unwrap_or_default();
            // What the engine says, and for scores a guess by bytes.
            if row.prompt_tokens > 7 + 2 * 11 && row.generated_tokens == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counting).await.expect("all requests are counted");
}

#[tokio::test]
async fn keys_that_engines_refuse_are_no_secret_of_theirs() {
    let locked = Engine::start(|_, _| whole(403, "{}")).await;
    let replica = ReplicaConfig {
        api_key: Some(Secret::new("the-canary")),
        ..ReplicaConfig::of_url(format!("http://{}/v1", locked.address))
    };
    let place = Place::over(&[replica], false).await;
    let row = place.row(|row| row["state"] == "down").await;
    assert!(row.to_string().contains("403") && !row.to_string().contains("canary"), "{row}");
}
