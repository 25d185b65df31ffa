//! Limits of keys over real sockets: never exceeded under concurrency, what is not used is usable again,
//! streams and clients that go away included, and changes hold without a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, chat, completion};
use serde_json::{Value, json};
use throng_gateway::{Secret, StoredKeys};
use throng_store::{CreatedKey, KeyChange, LimitKind, LimitScope, Limits, NewKey, Store, open};

const MINUTE: Duration = Duration::from_secs(60);

struct Place {
    server: Server,
    store: Arc<dyn Store>,
    keys: StoredKeys,
    key: CreatedKey,
    _folder: tempfile::TempDir,
}

/// A server with one key.
async fn start(mut setup: Setup, limits: Limits) -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    setup.config.access.database = Some(url.clone());
    setup.config.access.admin_key = Some(Secret::new("operator"));
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    let store = open(&url).await.expect("a database");
    let new = NewKey { organisation: "o".to_owned(), project: "p".to_owned(), limits, ..NewKey::default() };
    let key = store.create_key(new).await.expect("made");
    let keys = loading.stored_keys().expect("a database");
    keys.refresh(&*store).await.expect("read");
    Place { server, store, keys, key, _folder: folder }
}

impl Place {
    fn request(&self, path: &str, body: &Value) -> Vec<u8> {
        let authorization = format!("authorization: Bearer {}", self.key.secret());
        crate::harness::post_bytes(path, &body.to_string(), &[&authorization])
    }

    async fn ask(&self, client: &mut Client, fields: Value) -> Reply {
        client.send(self.request("/v1/completions", &completion(fields))).await;
        client.reply().await.expect("an answer")
    }

    async fn limit(&self, limits: &[(LimitKind, Option<u64>)]) {
        let change = KeyChange { limits: limits.to_vec(), ..KeyChange::default() };
        self.store.change_key(&self.key.key.id, change).await.expect("changed");
        self.keys.refresh(&*self.store).await.expect("read");
    }
}

fn tokens(limit: u32) -> Limits {
    Limits::of([(LimitKind::TokensPerMinute, u64::from(limit))])
}

fn number(reply: &Reply, name: &str) -> u64 {
    let value = reply.header(name).unwrap_or_else(|| panic!("no {name}: {reply:?}"));
    value.parse().expect("a number")
}

/// Tokens of an answer, and the times between which they were charged.
type Used = (Instant, Instant, u64);

const LIMIT: u32 = 10_000;
const N_CLIENTS: usize = 1_000;

/// Asks until the key's tokens are used up. Most of what each request reserves is given back.
async fn use_up(place: Arc<Place>) -> Vec<Used> {
    let mut client = place.server.connect().await;
    let mut used = Vec::new();
    let stop_token_ids: Vec<u32> = (0..26).collect();
    loop {
        let sent = Instant::now();
        let reply =
            place.ask(&mut client, json!({"max_tokens": 40, "stop_token_ids": stop_token_ids.clone()})).await;
        match reply.status {
            200 => {
                let total = reply.json()["usage"]["total_tokens"].as_u64().expect("a number");
                used.push((sent, Instant::now(), total));
            }
            429 => {
                assert_eq!(reply.error().3, "rate_limit_exceeded");
                assert!((1..=61).contains(&number(&reply, "retry-after")), "{reply:?}");
                assert_eq!(number(&reply, "x-ratelimit-limit-tokens"), u64::from(LIMIT));
                return used;
            }
            status => panic!("{status}: {}", reply.text()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_never_exceed_a_token_limit_and_can_use_all_of_it() {
    let mut setup = Setup::default();
    setup.config.api.max_queued_tokenizations = N_CLIENTS;
    let place = Arc::new(start(setup, tokens(LIMIT)).await);
    let clients: Vec<_> = (0..N_CLIENTS).map(|_| tokio::spawn(use_up(place.clone()))).collect();
    let mut used = Vec::new();
    for client in clients {
        used.extend(client.await.expect("no panic"));
    }
    // Clients end while others hold reservations; the last one finds all that these gave back.
    used.extend(use_up(place).await);
    let total: u64 = used.iter().map(|(_, _, n_tokens)| n_tokens).sum();
    assert!(total >= u64::from(LIMIT) * 99 / 100, "{total} of {LIMIT} tokens could be used");
    // Whatever was charged for certain within a minute is within the limit.
    for (from, ..) in &used {
        let within = used.iter().filter(|(sent, answered, _)| sent >= from && *answered < *from + MINUTE);
        let n_tokens: u64 = within.map(|(_, _, n_tokens)| n_tokens).sum();
        assert!(n_tokens <= u64::from(LIMIT), "{n_tokens} of {LIMIT} tokens in a minute");
    }
}

#[tokio::test]
async fn a_stream_whose_reader_goes_away_is_charged_with_what_the_engine_made() {
    let setup = Setup { step_time: Duration::from_millis(1), ..Setup::default() };
    let begun = Instant::now();
    let place = start(setup, tokens(LIMIT)).await;
    let mut reader = place.server.connect().await;
    let fields = json!({"stream": true, "max_tokens": 4000, "n": 2, "ignore_eos": true});
    reader.send(place.request("/v1/completions", &completion(fields))).await;
    let head = reader.read_until("data: ").await;
    assert!(head.contains("x-ratelimit-remaining-tokens: 1995"), "{head}");
    place.server.has_made(20).await;
    drop(reader);
    place.server.idle().await;
    let n_made = place.server.engine.stats().scheduler.counters.output_tokens;
    assert!((20..8000).contains(&n_made), "{n_made}");
    let mut client = place.server.connect().await;
    let mut left = u64::from(LIMIT) - 5 - n_made;
    loop {
        let reply = place.ask(&mut client, json!({"max_tokens": 1, "ignore_eos": true})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        left -= 6;
        let remaining = number(&reply, "x-ratelimit-remaining-tokens");
        if remaining >= left {
            assert!(remaining == left || begun.elapsed() > MINUTE, "{remaining} remain, not {left}");
            return;
        }
    }
}

#[tokio::test]
async fn requests_at_a_time_are_limited_and_an_ended_one_makes_room() {
    let setup = Setup { step_time: Duration::from_millis(1), ..Setup::default() };
    let limits = Limits::of([(LimitKind::ConcurrentRequests, 1)]);
    let place = start(setup, limits).await;
    let mut reader = place.server.connect().await;
    let fields = json!({"stream": true, "max_tokens": 4000, "ignore_eos": true});
    reader.send(place.request("/v1/chat/completions", &chat(fields))).await;
    reader.read_until("data: ").await;
    let mut client = place.server.connect().await;
    let reply = place.ask(&mut client, json!({"max_tokens": 1})).await;
    let (status, error_type, _, code) = reply.error();
    assert_eq!(
        (status, error_type.as_str(), code.as_str()),
        (429, "rate_limit_error", "rate_limit_exceeded")
    );
    assert!(reply.text().contains("1 concurrent requests") && number(&reply, "retry-after") > 0);
    drop(reader);
    let accepted = async {
        while place.ask(&mut client, json!({"max_tokens": 1})).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, accepted).await.expect("the ended request makes room");
}

#[tokio::test]
async fn requests_are_limited_and_a_changed_limit_holds_at_once() {
    let limits = Limits::of([(LimitKind::RequestsPerMinute, 2)]);
    let place = start(Setup::default(), limits).await;
    let mut client = place.server.connect().await;
    let bad = place.ask(&mut client, json!({"max_tokens": 0})).await;
    assert_eq!((bad.status, bad.header("x-ratelimit-limit-requests")), (400, None), "is not charged");
    for left in [1, 0] {
        let reply = place.ask(&mut client, json!({"max_tokens": 1})).await;
        assert_eq!((reply.status, number(&reply, "x-ratelimit-remaining-requests")), (200, left));
        assert_eq!(number(&reply, "x-ratelimit-limit-requests"), 2);
        assert!(reply.header("x-ratelimit-reset-requests").is_some_and(|reset| reset.ends_with('s')));
        assert_eq!(reply.header("x-ratelimit-limit-tokens"), None, "tokens are not limited");
    }
    let reply = place.ask(&mut client, json!({"max_tokens": 1})).await;
    assert_eq!((reply.error().0, number(&reply, "x-ratelimit-remaining-requests")), (429, 0));
    place.limit(&[(LimitKind::RequestsPerMinute, Some(5))]).await;
    let reply = place.ask(&mut client, json!({"max_tokens": 1})).await;
    assert_eq!((reply.status, number(&reply, "x-ratelimit-remaining-requests")), (200, 2));

    place.limit(&[(LimitKind::TokensPerMinute, Some(50))]).await;
    let reply = place.ask(&mut client, json!({"max_tokens": 46})).await;
    assert_eq!((reply.error().0, reply.error().3.as_str()), (400, "request_exceeds_rate_limit"));
    assert!(reply.text().contains("50 tokens per minute") && reply.text().contains("51"), "{}", reply.text());
    assert_eq!(reply.header("retry-after"), None, "waiting does not help");
    place.limit(&[(LimitKind::RequestsPerMinute, None), (LimitKind::TokensPerMinute, None)]).await;
    let reply = place.ask(&mut client, json!({"max_tokens": 46})).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-limit-requests")), (200, None));

    let authorization = "authorization: Bearer operator";
    client.send(format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n\r\n")).await;
    let metrics = client.reply().await.expect("an answer");
    for reason in ["requests_per_minute", "tokens_per_minute"] {
        let counted = metrics.text().lines().any(|line| {
            line.starts_with("vllm:admission_rejections_total")
                && line.contains(reason)
                && line.ends_with(" 1")
        });
        assert!(counted, "{reason}: {}", metrics.text());
    }
}

#[tokio::test]
async fn a_project_an_organisation_and_each_user_are_limited_beside_the_key() {
    let place = start(Setup::default(), Limits::default()).await;
    let (organisation, project) = ("o".to_owned(), "p".to_owned());
    let scopes = [
        LimitScope::Organisation(organisation.clone()),
        LimitScope::Project { organisation: organisation.clone(), project: project.clone() },
        LimitScope::EachUser { organisation, project },
    ];
    let mut client = place.server.connect().await;
    for (i, scope) in scopes.iter().enumerate() {
        let limit = async |limit| {
            let change = vec![(LimitKind::ConcurrentRequests, None), (LimitKind::TokensPerMinute, limit)];
            place.store.limit(scope, change).await.expect("limited");
            place.keys.refresh(&*place.store).await.expect("read");
        };
        limit(Some(i as u64 + 1)).await;
        let reply = place.ask(&mut client, json!({"max_tokens": 46, "user": "one"})).await;
        assert_eq!(
            (reply.error().0, reply.error().3.as_str()),
            (400, "request_exceeds_rate_limit"),
            "{scope:?}"
        );
        limit(None).await;
    }
    // Each user has a limit of their own; who names none has none.
    place.store.limit(&scopes[2], vec![(LimitKind::RequestsPerMinute, Some(1))]).await.expect("limited");
    place.keys.refresh(&*place.store).await.expect("read");
    for (user, statuses) in [("one", [200, 429]), ("two", [200, 429])] {
        for status in statuses {
            let reply = place.ask(&mut client, json!({"max_tokens": 1, "user": user})).await;
            assert_eq!(reply.status, status, "{user}");
        }
    }
    assert_eq!(place.ask(&mut client, json!({"max_tokens": 1})).await.status, 200);
}
