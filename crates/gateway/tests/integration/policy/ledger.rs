//! The ledger over real sockets: it equals what the engine has counted whatever becomes of requests, clients
//! and databases; usage is shown to whom it belongs; budgets hold exactly, across restarts too.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::{Client, Reply, Server, Setup, completion};
use serde_json::{Value, json};
use throng_gateway::{Ledger, ModelPrice, Secret, StoredKeys};
use throng_store::{
    CreatedKey, Journal, KeyChange, LimitKind, LimitScope, NewKey, Store, UsageGroup, UsageQuery, UsageRow,
    open,
};
use throng_testkit::postgres::Postgres;
use throng_testkit::small_disk::SmallDisk;

/// A server with a ledger, and a key of one project.
struct Place {
    server: Server,
    store: Arc<dyn Store>,
    keys: StoredKeys,
    ledger: Arc<Ledger>,
    key: CreatedKey,
}

async fn start(url: &str, folder: &Path, project: &str, setup: Setup) -> Place {
    start_over(url, Journal::open(&folder.join("journal")).expect("a journal"), project, setup).await
}

async fn start_over(url: &str, journal: Journal, project: &str, mut setup: Setup) -> Place {
    setup.config.access.database = Some(url.to_owned());
    setup.config.access.admin_key = Some(Secret::new("operator"));
    setup.config.prices = vec![ModelPrice {
        model: "org/paper".to_owned(),
        prompt: "2".to_owned(),
        cached: Some("0.5".to_owned()),
        generated: "10.000001".to_owned(),
    }];
    let (server, loading, mut model) = Server::without_model(setup).await;
    // Prices are found by any name of the model.
    model.names.reverse();
    loading.finish(vec![model]).expect("a valid model");
    let store = open(url).await.expect("a database");
    let new = NewKey { organisation: "o".to_owned(), project: project.to_owned(), ..NewKey::default() };
    let key = store.create_key(new).await.expect("made");
    let (keys, ledger) = (loading.stored_keys().expect("a database"), loading.ledger().expect("a database"));
    keys.refresh(&*store).await.expect("read");
    ledger.open(journal, store.clone()).await.expect("opened");
    Place { server, store, keys, ledger, key }
}

fn sqlite(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("throng.db").display())
}

impl Place {
    fn request(&self, fields: Value) -> Vec<u8> {
        let authorization = format!("authorization: Bearer {}", self.key.secret());
        crate::harness::post_bytes("/v1/completions", &completion(fields).to_string(), &[&authorization])
    }

    async fn ask(&self, client: &mut Client, fields: Value) -> Reply {
        client.send(self.request(fields)).await;
        client.reply().await.expect("an answer")
    }

    async fn get(&self, path: &str) -> Reply {
        let key = if path == "/metrics" { "operator" } else { self.key.secret() };
        let authorization = format!("authorization: Bearer {key}");
        let mut client = self.server.connect().await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n\r\n")).await;
        client.reply().await.expect("an answer")
    }

    /// What the ledger has in all, once nothing runs and everything is written.
    async fn total(&self) -> UsageRow {
        self.server.idle().await;
        // A request is over for the engine a moment before its tokens have been counted.
        let made = self.server.engine.stats().scheduler.counters.output_tokens;
        let begun = Instant::now();
        loop {
            self.ledger.write().await.expect("written");
            let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
            let rows = self.store.usage(&all).await.expect("read");
            let row = rows.into_iter().next().unwrap_or_default();
            if row.generated_tokens == made || begun.elapsed() > crate::harness::PATIENCE {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Requests of all kinds at once: whole ones, streams, several answers, stop strings, clients that go
    /// away at all times.
    async fn turmoil(self: &Arc<Self>, seed: u64, n: usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        let tasks: Vec<_> = (0..n)
            .map(|number| {
                let (place, kind, delay) = (self.clone(), number % 4, random.u64(0..30));
                let (max_tokens, n) = (random.u64(1..60), random.u64(1..4));
                tokio::spawn(async move {
                    let mut client = place.server.connect().await;
                    let fields = match kind {
                        0 => json!({"max_tokens": max_tokens}),
                        1 => json!({"max_tokens": max_tokens, "n": n, "stream": true}),
                        2 => json!({"max_tokens": max_tokens, "n": n, "stop": ["e"], "user": "someone"}),
                        _ => {
                            json!({"max_tokens": 2000, "n": n, "ignore_eos": true, "stream": number % 8 == 3})
                        }
                    };
                    client.send(place.request(fields)).await;
                    if kind == 3 {
                        tokio::time::sleep(Duration::from_millis(delay)).await;
                        return;
                    }
                    let reply = client.reply().await.expect("an answer");
                    assert_eq!(reply.status, 200, "{}", reply.text());
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    }

    /// Ends the server.
    async fn stop(self) {
        let Self { mut server, .. } = self;
        server.begin_stop();
        server.stopped().await;
    }

    /// How many entries were lost, by the metrics.
    async fn ledger_lost(&self) -> u64 {
        let metrics = self.get("/metrics").await;
        let line = metrics.text().lines().find(|line| line.starts_with("throng_ledger_lost_entries_total"));
        line.and_then(|line| line.split(' ').next_back()?.parse().ok()).expect("a number")
    }

    fn made(&self) -> u64 {
        self.server.engine.stats().scheduler.counters.output_tokens
    }
}

fn paced() -> Setup {
    Setup { step_time: Duration::from_millis(1), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_equals_what_the_engine_has_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Arc::new(start(&sqlite(folder.path()), folder.path(), "p", paced()).await);
    for seed in 0..3 {
        place.turmoil(seed, 100).await;
        let total = place.total().await;
        assert_eq!(total.generated_tokens, place.made(), "seed {seed}");
    }
    let mut client = place.server.connect().await;
    let before = place.total().await;
    let reply = place.ask(&mut client, json!({"max_tokens": 7, "ignore_eos": true})).await;
    let usage = reply.json()["usage"].clone();
    let after = place.total().await;
    let number = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(after.n_requests, before.n_requests + 1);
    assert_eq!(after.prompt_tokens, before.prompt_tokens + number("prompt_tokens"));
    assert_eq!(after.generated_tokens, before.generated_tokens + 7);
    let cached = after.cached_tokens - before.cached_tokens;
    let cost = (number("prompt_tokens") - cached) * 2_000_000 + cached * 500_000 + 7 * 10_000_001;
    assert_eq!(after.cost.0 - before.cost.0, u128::from(cost));
    place.store.check().await.expect("days and entries agree");
    let metrics = place.get("/metrics").await;
    assert!(metrics.text().contains("throng_ledger_lost_entries_total 0"), "{}", metrics.text());
    let generated =
        format!("vllm:generation_tokens_total{{model_name=\"org/paper\",engine=\"0\"}} {}", place.made());
    assert!(metrics.text().contains(&generated), "{generated}: {}", metrics.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_and_costs_are_shown_to_their_project_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = start(&sqlite(folder.path()), folder.path(), "p", Setup::default()).await;
    let mut client = place.server.connect().await;
    for user in ["one", "two", "=two"] {
        let reply = place.ask(&mut client, json!({"max_tokens": 5, "ignore_eos": true, "user": user})).await;
        assert_eq!(reply.status, 200);
    }
    place.total().await;
    let path = "/v1/organization/usage/completions?start_time=1700000000&limit=31&group_by=user_id";
    let page = place.get(&format!("{path}&end_time=1700200000")).await.json();
    assert_eq!((page["data"].as_array().map(Vec::len), &page["has_more"]), (Some(4), &json!(false)));
    assert_eq!(page["data"][0]["results"], json!([]));
    let today = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() / 86_400 * 86_400;
    let path = format!("/v1/organization/usage/completions?start_time={today}");
    let page = place.get(&format!("{path}&group_by=user_id&group_by=model")).await.json();
    let bucket = &page["data"][0];
    assert_eq!((bucket["start_time"].as_u64(), bucket["object"].as_str()), (Some(today), Some("bucket")));
    let results = bucket["results"].as_array().expect("a list");
    assert_eq!(results.len(), 3);
    assert_eq!(results[0]["output_tokens"], 5);
    assert_eq!((&results[0]["model"], &results[0]["project_id"]), (&json!("org/paper"), &Value::Null));
    let csv = place.get(&format!("{path}&group_by=user_id&format=csv")).await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(csv.text().lines().count(), 4);
    assert!(csv.text().contains("\"'=two\",1,"), "{}", csv.text());
    let costs = place.get(&format!("/v1/organization/costs?start_time={today}&group_by=line_item")).await;
    // Three times 5 generated tokens and a prompt of 5 tokens, nothing of it long enough for the cache.
    assert!(costs.text().contains("\"value\":0.000180000015,\"currency\":\"usd\""), "{}", costs.text());
    let pages = place.get(&format!("{path}&end_time={}&limit=1", today + 2 * 86_400)).await.json();
    assert_eq!(pages["next_page"], format!("page_{}", today + 86_400));

    // Another project sees nothing of it, also if it asks for it by name.
    let new = NewKey { organisation: "o".to_owned(), project: "q".to_owned(), ..NewKey::default() };
    let other = place.store.create_key(new).await.expect("made");
    place.keys.refresh(&*place.store).await.expect("read");
    for query in [String::new(), format!("&project_ids={}", place.key.key.project_id)] {
        let request = format!(
            "GET {path}{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
            other.secret()
        );
        client.send(request).await;
        let page = client.reply().await.expect("an answer").json();
        assert_eq!(page["data"][0]["results"], json!([]), "{query}");
    }
    let refused = place.get("/v1/organization/costs").await;
    assert_eq!((refused.status, refused.error().2), (400, json!("start_time")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_hold_exactly_and_across_restarts() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = sqlite(folder.path());
    let place = Arc::new(start(&url, folder.path(), "p", Setup::default()).await);
    let project = LimitScope::Project { organisation: "o".to_owned(), project: "p".to_owned() };
    place.store.limit(&project, vec![(LimitKind::TokensPerDay, Some(1000))]).await.expect("limited");
    place.keys.refresh(&*place.store).await.expect("read");
    // Prompts have 5 tokens; each request may use 25 and uses fewer.
    let ask_all = |place: Arc<Place>| async move {
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let place = place.clone();
                tokio::spawn(async move {
                    let mut client = place.server.connect().await;
                    let mut used = 0;
                    loop {
                        let reply = place
                            .ask(
                                &mut client,
                                json!({"max_tokens": 20, "stop_token_ids": (0..60).collect::<Vec<u32>>()}),
                            )
                            .await;
                        match reply.status {
                            200 => used += reply.json()["usage"]["total_tokens"].as_u64().expect("a number"),
                            _ => {
                                assert_eq!(
                                    (reply.error().0, reply.error().3.as_str()),
                                    (429, "insufficient_quota")
                                );
                                assert_eq!(reply.header("x-should-retry"), Some("false"));
                                return used;
                            }
                        }
                    }
                })
            })
            .collect();
        let mut used = 0;
        for client in clients {
            used += client.await.expect("no panic");
        }
        used
    };
    let mut used = ask_all(place.clone()).await;
    used += ask_all(place.clone()).await;
    assert!((976..=1000).contains(&used), "{used} of 1000 tokens could be used");
    let total = place.total().await;
    assert_eq!(total.prompt_tokens + total.generated_tokens, used);
    drop(place);

    // A second server knows what the first one wrote, and a key of the same project has what is left: nothing.
    let place = Arc::new(start(&url, folder.path(), "p", Setup::default()).await);
    assert_eq!(ask_all(place.clone()).await, 0);
    let change = vec![(LimitKind::TokensPerDay, Some(1100)), (LimitKind::CostPerMonth, Some(1))];
    place.store.limit(&project, change).await.expect("limited");
    place.keys.refresh(&*place.store).await.expect("read");
    let mut client = place.server.connect().await;
    assert_eq!(place.ask(&mut client, json!({"max_tokens": 1})).await.error().0, 429, "the money is spent");
    place.store.limit(&project, vec![(LimitKind::CostPerMonth, None)]).await.expect("limited");
    place.keys.refresh(&*place.store).await.expect("read");
    assert_eq!(place.ask(&mut client, json!({"max_tokens": 1})).await.status, 200);
    let change = KeyChange { limits: vec![(LimitKind::TokensPerMonth, Some(10))], ..KeyChange::default() };
    place.store.change_key(&place.key.key.id, change).await.expect("changed");
    place.keys.refresh(&*place.store).await.expect("read");
    assert_eq!(place.ask(&mut client, json!({"max_tokens": 6})).await.error().0, 429);
}

/// The journal of a server that has ended, once so many of its entries wait there.
async fn left_journal(folder: &Path, n_waiting: usize) -> Journal {
    let waiting = async {
        loop {
            let journal = Journal::open(&folder.join("journal")).expect("a journal");
            if journal.n_waiting() == n_waiting {
                return journal;
            }
            drop(journal);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, waiting).await.expect("they are left")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_the_database_refuses_stops_nobody_and_no_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = sqlite(folder.path());
    let place = start(&url, folder.path(), "p", Setup::default()).await;
    let file = format!("sqlite://{}", folder.path().join("throng.db").display());
    let raw = sqlx::SqlitePool::connect(&file).await.expect("a connection");
    let rule = "CREATE TRIGGER refuses BEFORE INSERT ON ledger WHEN NEW.user_name = 'bad'
        BEGIN SELECT RAISE(ABORT, 'a bad user'); END";
    sqlx::query(rule).execute(&raw).await.expect("a rule");
    let mut client = place.server.connect().await;
    for user in ["bad", "one", "two", "bad", "a\0b", "\u{1}\u{1}"] {
        let reply = place.ask(&mut client, json!({"max_tokens": 1, "ignore_eos": true, "user": user})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let n_written = async |place: &Place| {
        place.ledger.write().await.expect("nobody else waits");
        let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
        place.store.usage(&all).await.expect("read").first().map_or(0, |row| row.n_requests)
    };
    let written = async {
        while n_written(&place).await < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, written).await.expect("the others are written");
    let metrics = place.get("/metrics").await;
    for line in ["throng_ledger_refused_entries_total 2", "throng_ledger_waiting_entries 0"] {
        assert!(metrics.text().contains(line), "{line}: {}", metrics.text());
    }
    drop(client);
    place.stop().await;

    // The next start tries them again, and is no worse for it.
    let place = start_over(&url, left_journal(folder.path(), 2).await, "p", Setup::default()).await;
    assert_eq!(n_written(&place).await, 4);
    assert!(place.get("/metrics").await.text().contains("throng_ledger_refused_entries_total 2"));
    place.stop().await;
    sqlx::query("DROP TRIGGER refuses").execute(&raw).await.expect("no rule");
    let place = start_over(&url, left_journal(folder.path(), 2).await, "p", Setup::default()).await;
    assert_eq!(n_written(&place).await, 6, "nothing was lost");
    place.store.check().await.expect("days and entries agree");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_no_entry_that_has_room_and_refuses_budgets_without() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(folder.path(), 4 << 10) else { return };
    let place = start(&sqlite(folder.path()), folder.path(), "p", Setup::default()).await;
    let project = LimitScope::Project { organisation: "o".to_owned(), project: "p".to_owned() };
    place.store.limit(&project, vec![(LimitKind::TokensPerDay, Some(1 << 40))]).await.expect("limited");
    let new = NewKey { organisation: "o".to_owned(), project: "free".to_owned(), ..NewKey::default() };
    let free = place.store.create_key(new).await.expect("made");
    place.keys.refresh(&*place.store).await.expect("read");
    disk.fill();
    let mut client = place.server.connect().await;
    let asked = json!({"max_tokens": 1, "ignore_eos": true});
    let authorization = format!("authorization: Bearer {}", free.secret());
    let without_budget = crate::harness::post_bytes(
        "/v1/completions",
        &completion(asked.clone()).to_string(),
        &[&authorization],
    );
    let mut n_answered = 0;
    // Until neither the journal's reserved room nor the disk has any.
    let refused = loop {
        let reply = place.ask(&mut client, asked.clone()).await;
        if reply.status != 200 {
            break reply;
        }
        n_answered += 1;
        assert!(n_answered < 20_000, "the journal is larger than the disk");
        for _ in 0..9 {
            client.send(&without_budget).await;
            assert_eq!(client.reply().await.expect("an answer").status, 200);
            n_answered += 1;
        }
    };
    assert_eq!((refused.error().0, refused.error().3.as_str()), (503, "ledger_unavailable"));
    assert!(refused.header("retry-after").is_some());
    assert!(n_answered >= 100, "{n_answered} have room");
    place.ledger.write().await.expect_err("the disk is full");
    let health = place.get("/health").await;
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("degraded")), "{}", health.text());
    // Who has no budget is answered, and what is lost is counted.
    client.send(&without_budget).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    n_answered += 1;
    let lost = async {
        while place.ledger_lost().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, lost).await.expect("it is counted");
    disk.free();
    let n_lost = place.ledger_lost().await;
    assert!((1..=10).contains(&n_lost), "{n_lost} lost of {n_answered}");
    let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
    let written = async {
        loop {
            place.ledger.write().await.expect("written");
            let n_written =
                place.store.usage(&all).await.expect("read").first().map_or(0, |row| row.n_requests);
            if n_written + n_lost == n_answered {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, written).await.expect("all others are written");
    let health = place.get("/health").await;
    assert_eq!((health.status, health.text()), (200, ""));
    assert_eq!(place.ask(&mut client, asked).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_postgres_refuses_is_billed_like_everybody() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, journal) = (folder.path().join("postgres"), folder.path().join("gateway"));
    std::fs::create_dir_all(&data).and_then(|()| std::fs::create_dir_all(&journal)).expect("folders");
    let Some(postgres) = Postgres::start(&data) else { return };
    let url = postgres.new_database("throng");
    let place = start(&url, &journal, "p", Setup::default()).await;
    let mut client = place.server.connect().await;
    let long = "\0".repeat(512);
    for user in ["a\0b", &long, "one", "\u{1}\"\\", "two"] {
        let reply = place.ask(&mut client, json!({"max_tokens": 2, "ignore_eos": true, "user": user})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let total = place.total().await;
    assert_eq!((total.n_requests, total.generated_tokens), (5, 10));
    let today = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() / 86_400 * 86_400;
    let path = format!("/v1/organization/usage/completions?start_time={today}&user_ids=a%00b");
    let page = place.get(&path).await;
    assert_eq!(page.json()["data"][0]["results"][0]["num_model_requests"], 1, "{}", page.text());
    place.store.check().await.expect("totals and entries agree");
}

/// How often the database is killed; more by `THRONG_KILLS`.
fn n_kills() -> usize {
    std::env::var("THRONG_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_frozen_databases_hold_no_request_up_and_the_ledger_stays_exact() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, journal) = (folder.path().join("postgres"), folder.path().join("gateway"));
    std::fs::create_dir_all(&data).and_then(|()| std::fs::create_dir_all(&journal)).expect("folders");
    let Some(mut postgres) = Postgres::start(&data) else { return };
    let place = Arc::new(start(&postgres.new_database("throng"), &journal, "p", paced()).await);
    tokio::spawn(place.ledger.clone().follow());
    for kill in 0..n_kills() {
        let requests = {
            let place = place.clone();
            tokio::spawn(async move { place.turmoil(kill as u64, 40).await })
        };
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
        tokio::task::block_in_place(|| postgres.kill_and_restart());
        requests.await.expect("no panic");
    }
    // While nothing is answered, requests are, and questions about usage are refused soon.
    postgres.freeze();
    place.turmoil(1000, 40).await;
    let begun = Instant::now();
    let refused = place.get("/v1/organization/costs?start_time=1").await;
    assert_eq!((refused.status, refused.error().3.as_str()), (503, "overloaded"));
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for a frozen database");
    postgres.thaw();
    let written = async {
        while place.ledger.write().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, written).await.expect("the database answers again");
    let total = place.total().await;
    assert_eq!(total.generated_tokens, place.made());
    place.store.check().await.expect("days and entries agree");
    let by_key =
        UsageQuery { end_unix_s: u64::MAX >> 1, group_by: vec![UsageGroup::Key], ..UsageQuery::default() };
    assert_eq!(place.store.usage(&by_key).await.expect("read").len(), 1);
}
