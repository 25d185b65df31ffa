//! Limits over three gateways and a real Redis: never exceeded by a token, all of it usable, also when Redis
//! is killed, frozen, emptied and restarted while clients ask.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, completion};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use throng_gateway::{Secret, SharedLimits, StoredKeys};
use throng_store::{CreatedKey, LimitKind, Limits, NewKey, Store, open};
use throng_testkit::redis::RedisServer;

const N_GATEWAYS: usize = 3;
/// Clients that ask at a time.
const N_CLIENTS: usize = 1_000;
const LIMIT: u64 = 30_000;
const MINUTE: Duration = Duration::from_secs(60);

struct Fleet {
    gateways: Vec<(Server, StoredKeys)>,
    _limits: Vec<SharedLimits>,
    store: Arc<dyn Store>,
    _folder: tempfile::TempDir,
}

/// Three gateways with one database.
async fn start(redis: &RedisServer) -> Fleet {
    start_with(&redis.url(), None).await
}

/// The same over a Redis of this URL, whose certificate comes from `ca`.
async fn start_with(redis: &str, ca: Option<&Path>) -> Fleet {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let store = open(&url).await.expect("a database");
    let (mut gateways, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..N_GATEWAYS {
        let mut setup = Setup::default();
        setup.config.access.database = Some(url.clone());
        setup.config.access.redis = Some(Secret::new(redis));
        setup.config.access.admin_key = Some(Secret::new("the-operator"));
        setup.config.access.redis_ca = ca.map(Path::to_owned);
        setup.config.access.redis_gateways = Some(N_GATEWAYS as u32);
        setup.config.api.max_queued_tokenizations = 1_000;
        let (server, loading, model) = Server::without_model(setup).await;
        loading.finish(vec![model]).expect("a valid model");
        let shared = loading.share_limits().expect("a URL");
        limits.push(shared.expect("a Redis"));
        gateways.push((server, loading.stored_keys().expect("a database")));
    }
    Fleet { gateways, _limits: limits, store, _folder: folder }
}

impl Fleet {
    async fn new_key(&self, limits: Limits) -> CreatedKey {
        let new = NewKey { organisation: "o".into(), project: "p".into(), limits, ..NewKey::default() };
        let key = self.store.create_key(new).await.expect("made");
        for (_, keys) in &self.gateways {
            keys.refresh(&*self.store).await.expect("read");
        }
        key
    }

    fn caller(self: &Arc<Self>, i: usize, key: &CreatedKey) -> Caller {
        Caller { fleet: self.clone(), i: i % N_GATEWAYS, secret: key.secret().to_owned(), used: Vec::new() }
    }
}

fn tokens(limit: u64) -> Limits {
    Limits::of([(LimitKind::TokensPerMinute, limit)])
}

/// Tokens of an answer, and the times between which they were charged.
type Used = (Instant, Instant, u64);

/// A client of one gateway.
struct Caller {
    fleet: Arc<Fleet>,
    i: usize,
    secret: String,
    used: Vec<Used>,
}

impl Caller {
    async fn ask(&self, client: &mut Client, fields: Value) -> Reply {
        let authorization = format!("authorization: Bearer {}", self.secret);
        let body = completion(fields).to_string();
        client.send(crate::harness::post_bytes("/v1/completions", &body, &[&authorization])).await;
        tokio::time::timeout(PATIENCE, client.reply()).await.expect("no request hangs").expect("an answer")
    }

    /// Asks until it is refused, or so often. Most of what each request reserves is given back.
    async fn use_up(mut self, most: usize) -> Vec<Used> {
        let mut client = self.fleet.gateways[self.i].0.connect().await;
        let stop: Vec<u32> = (0..26).collect();
        for _ in 0..most {
            let sent = Instant::now();
            let fields = json!({"max_tokens": 40, "stop_token_ids": stop.clone()});
            let reply = self.ask(&mut client, fields).await;
            match reply.status {
                200 => {
                    let total = reply.json()["usage"]["total_tokens"].as_u64().expect("a number");
                    self.used.push((sent, Instant::now(), total));
                }
                429 => {
                    assert_eq!(reply.error().3, "rate_limit_exceeded");
                    assert!(reply.header("retry-after").is_some(), "{reply:?}");
                    break;
                }
                status => panic!("{status}: {}", reply.text()),
            }
        }
        self.used
    }
}

/// Many clients of all gateways ask, each so often at most.
async fn ask_all(fleet: &Arc<Fleet>, key: &CreatedKey, n_clients: usize, most: usize) -> Vec<Used> {
    let clients: Vec<_> = (0..n_clients).map(|i| tokio::spawn(fleet.caller(i, key).use_up(most))).collect();
    let mut used = Vec::new();
    for client in clients {
        used.extend(client.await.expect("no panic"));
    }
    used
}

/// All tokens of the answers; those of any minute are within the limit.
fn total(used: &[Used], limit: u64) -> u64 {
    for (from, ..) in used {
        let within = used.iter().filter(|(sent, answered, _)| sent >= from && *answered < *from + MINUTE);
        let n_tokens: u64 = within.map(|(_, _, n_tokens)| n_tokens).sum();
        assert!(n_tokens <= limit, "{n_tokens} of {limit} tokens in a minute");
    }
    used.iter().map(|(_, _, n_tokens)| n_tokens).sum()
}

/// Waits until all gateways have found each other, seen by a request that only fits if they share what they
/// lease.
async fn wait_until_shared(fleet: &Arc<Fleet>) {
    let begun = Instant::now();
    loop {
        let key = fleet.new_key(Limits::of([(LimitKind::RequestsPerMinute, 6)])).await;
        let mut n = 0;
        for _ in 0..6 {
            n += fleet.caller(0, &key).use_up(1).await.len();
        }
        let others =
            fleet.caller(1, &key).use_up(1).await.len() + fleet.caller(2, &key).use_up(1).await.len();
        if (n, others) == (6, 0) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the gateways do not share limits: {n} and {others}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_three_gateways_never_exceed_a_token_limit_and_can_use_all_of_it() {
    let Some(redis) = RedisServer::start() else { return };
    let fleet = Arc::new(start(&redis).await);
    wait_until_shared(&fleet).await;
    let key = fleet.new_key(tokens(LIMIT)).await;
    let mut used = ask_all(&fleet, &key, N_CLIENTS, usize::MAX).await;
    // Clients end while others hold reservations; the last ones find all that these gave back.
    for i in 0..N_GATEWAYS {
        used.extend(fleet.caller(i, &key).use_up(usize::MAX).await);
    }
    let n_tokens = total(&used, LIMIT);
    assert!(n_tokens >= LIMIT * 99 / 100, "{n_tokens} of {LIMIT} tokens could be used");

    // All of a limit can be used through one gateway, and then nothing through the others.
    let key = fleet.new_key(tokens(LIMIT)).await;
    let mut used = fleet.caller(0, &key).use_up(3).await;
    used.extend(fleet.caller(1, &key).use_up(3).await);
    used.extend(fleet.caller(2, &key).use_up(usize::MAX).await);
    let n_tokens = total(&used, LIMIT);
    assert!(n_tokens >= LIMIT * 99 / 100, "{n_tokens} of {LIMIT} tokens could be used through one gateway");
    assert!(total(&fleet.caller(1, &key).use_up(usize::MAX).await, LIMIT) <= LIMIT - n_tokens);
}

/// Uses a part of a key's tokens on all gateways, lets something happen to Redis, uses the rest.
async fn through(fleet: &Arc<Fleet>, event: impl FnOnce()) -> (Vec<Used>, CreatedKey) {
    let key = fleet.new_key(tokens(LIMIT)).await;
    let mut used = ask_all(fleet, &key, 12, 20).await;
    assert_eq!(used.len(), 12 * 20, "a part of the limit can be used");
    let rest = tokio::spawn({
        let (fleet, key) = (fleet.clone(), key.clone());
        async move { ask_all(&fleet, &key, 60, usize::MAX).await }
    });
    event();
    used.extend(rest.await.expect("no panic"));
    (used, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_while_redis_is_killed_frozen_emptied_and_restarted() {
    let Some(mut redis) = RedisServer::start() else { return };
    let fleet = Arc::new(start(&redis).await);
    wait_until_shared(&fleet).await;

    // Each gateway has leased an equal part before, and all of these can be used.
    let (mut used, key) = through(&fleet, || redis.freeze()).await;
    for i in 0..N_GATEWAYS {
        used.extend(fleet.caller(i, &key).use_up(usize::MAX).await);
    }
    let n_tokens = total(&used, LIMIT);
    assert!(n_tokens >= LIMIT * 95 / 100, "frozen: {n_tokens} of {LIMIT} tokens could be used");
    redis.thaw();
    wait_until_shared(&fleet).await;

    let (used, _) = through(&fleet, || redis.flush()).await;
    let n_tokens = total(&used, LIMIT);
    assert!(n_tokens >= LIMIT * 80 / 100, "emptied: {n_tokens} of {LIMIT} tokens could be used");
    wait_until_shared(&fleet).await;

    let (used, key) = through(&fleet, || redis.stop()).await;
    let n_tokens = total(&used, LIMIT);
    assert!(n_tokens >= LIMIT * 80 / 100, "killed: {n_tokens} of {LIMIT} tokens could be used");
    // A key that nobody has used before is not refused while Redis is away, nor open.
    let new = fleet.new_key(tokens(LIMIT)).await;
    let n_tokens = total(&ask_all(&fleet, &new, 12, usize::MAX).await, LIMIT);
    assert!(n_tokens >= LIMIT * 80 / 100, "away: {n_tokens} of {LIMIT} tokens could be used");

    redis.restart();
    wait_until_shared(&fleet).await;
    let mut used = used;
    used.extend(ask_all(&fleet, &key, 12, usize::MAX).await);
    total(&used, LIMIT);
    let (used, _) = through(&fleet, || {}).await;
    total(&used, LIMIT);
}

/// A Redis that only speaks TLS, and is killed when dropped.
struct TlsRedis(Child);

impl Drop for TlsRedis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one on a port of its own, with a certificate that is written to the folder.
fn tls_redis(folder: &Path) -> (TlsRedis, u16) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), cert.pem()).expect("written");
    std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).expect("written");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let tls_port = port.to_string();
    let settings = ["--port", "0", "--tls-port", &tls_port, "--save", "", "--tls-auth-clients", "no"];
    let files = ["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"];
    let started = Command::new("/usr/bin/redis-server")
        .args(settings)
        .args(files)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn();
    (TlsRedis(started.expect("redis-server starts")), port)
}

/// The value of a metric of the first gateway.
async fn metric(fleet: &Fleet, name: &str) -> f64 {
    let mut client = fleet.gateways[0].0.connect().await;
    client.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\nx-api-key: the-operator\r\n\r\n").await;
    let scraped = client.reply().await.expect("an answer");
    let text = scraped.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_shared_over_tls_and_the_metrics_say_how_redis_fares() {
    // Where there is no Redis, the other tests have said so.
    if RedisServer::start().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (redis, port) = tls_redis(folder.path());
    let ca = folder.path().join("cert.pem");
    let fleet = Arc::new(start_with(&format!("rediss://localhost:{port}"), Some(&ca)).await);
    wait_until_shared(&fleet).await;
    assert_eq!(metric(&fleet, "throng_redis_connected").await, 1.0);
    assert_eq!(metric(&fleet, "throng_limit_gateways").await, 3.0);
    assert!(metric(&fleet, "throng_limit_leases").await >= 1.0);
    assert!(metric(&fleet, "throng_redis_last_answer_timestamp_seconds").await > 1e9);
    drop(redis);
    let begun = Instant::now();
    while metric(&fleet, "throng_redis_connected").await != 0.0 {
        assert!(begun.elapsed() < PATIENCE, "Redis is gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(metric(&fleet, "throng_redis_failures_total").await >= 1.0);
}
