//! Requests that are sent again under one `Idempotency-Key`: generated once whichever gateway they reach,
//! answered with the same bytes, and taken over from gateways that have died.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, chat, completion};
use serde_json::{Value, json};
use throng_gateway::{Ledger, StoredKeys};
use throng_store::{AnswerClaim, Claimed, CreatedKey, Journal, NewKey, Store, UsageQuery, open};
use throng_testkit::postgres::Postgres;

struct Gateway {
    server: Server,
    keys: StoredKeys,
    ledger: Arc<Ledger>,
}

/// Two gateways with one database.
struct Place {
    gateways: [Gateway; 2],
    store: Arc<dyn Store>,
    key: CreatedKey,
}

async fn gateway(url: &str, folder: &Path, name: &str, step_time: Duration) -> Gateway {
    let mut setup = Setup { step_time, ..Setup::default() };
    setup.config.access.database = Some(url.to_owned());
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    let (keys, ledger) = (loading.stored_keys().expect("a database"), loading.ledger().expect("a database"));
    let journal = Journal::open(&folder.join(name)).expect("a journal");
    ledger.open(journal, open(url).await.expect("a database")).await.expect("opened");
    Gateway { server, keys, ledger }
}

async fn start(url: &str, folder: &Path, step_time: Duration) -> Place {
    let store = open(url).await.expect("a database");
    let gateways =
        [gateway(url, folder, "first", step_time).await, gateway(url, folder, "second", step_time).await];
    let mut place = Place { gateways, key: new_key(&*store, "p").await, store };
    place.refresh().await;
    place
}

async fn new_key(store: &dyn Store, project: &str) -> CreatedKey {
    let new = NewKey { organisation: "o".into(), project: project.into(), ..NewKey::default() };
    store.create_key(new).await.expect("made")
}

impl Place {
    async fn refresh(&mut self) {
        for gateway in &self.gateways {
            gateway.keys.refresh(&*self.store).await.expect("read");
        }
    }

    async fn client(&self, i: usize) -> Client {
        self.gateways[i].server.connect().await
    }

    fn request(&self, path: &str, name: &str, body: &Value) -> Vec<u8> {
        let authorization = format!("authorization: Bearer {}", self.key.secret());
        crate::harness::post_bytes(
            path,
            &body.to_string(),
            &[&authorization, &format!("idempotency-key: {name}")],
        )
    }

    async fn ask(&self, i: usize, name: &str, body: &Value) -> Reply {
        let path = if body.get("messages").is_some() { "/v1/chat/completions" } else { "/v1/completions" };
        let mut client = self.client(i).await;
        client.send(self.request(path, name, body)).await;
        tokio::time::timeout(PATIENCE, client.reply()).await.expect("nothing hangs").expect("an answer")
    }

    fn made(&self) -> u64 {
        self.gateways
            .iter()
            .map(|gateway| gateway.server.engine.stats().scheduler.counters.output_tokens)
            .sum()
    }

    /// Requests and generated tokens in the ledger, once it has all that was made.
    async fn counted(&self) -> (u64, u64) {
        let counting = async {
            loop {
                for gateway in &self.gateways {
                    gateway.ledger.write().await.expect("written");
                }
                let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
                let row = self.store.usage(&all).await.expect("read").into_iter().next().unwrap_or_default();
                if row.generated_tokens == self.made() {
                    return (row.n_requests, row.generated_tokens);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, counting).await.expect("the ledger has what the engines made")
    }
}

async fn sent_again_is_answered_alike(url: &str, folder: &Path) {
    let place = start(url, folder, Duration::ZERO).await;
    let whole = chat(json!({"max_tokens": 20, "ignore_eos": true, "temperature": 1.0}));
    let stream = completion(json!({"max_tokens": 30, "ignore_eos": true, "stream": true}));
    for (name, body, n) in [("whole", &whole, 20), ("stream", &stream, 30)] {
        let before = place.made();
        let first = place.ask(0, name, body).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{}", first.text());
        for i in [0, 1, 1] {
            let again = place.ask(i, name, body).await;
            assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
            assert_eq!(again.header("content-type"), first.header("content-type"));
            assert_eq!(again.text(), first.text());
        }
        assert_eq!(place.made() - before, n, "{name} is generated once");
    }
    assert_eq!(place.counted().await, (2, 50));

    // Another request under the key, the same one elsewhere, and what is no key.
    let other = chat(json!({"max_tokens": 21, "ignore_eos": true}));
    let (status, _, param, code) = place.ask(1, "whole", &other).await.error();
    assert_eq!((status, param, code.as_str()), (400, json!("Idempotency-Key"), "idempotency_mismatch"));
    assert_eq!(place.ask(1, &"x".repeat(256), &whole).await.error().3, "invalid_value");
    // What is refused is not kept.
    let bad = chat(json!({"max_tokens": 0}));
    assert_eq!(place.ask(0, "bad", &bad).await.status, 400);
    assert_eq!(place.ask(0, "bad", &whole).await.status, 200);
}

#[tokio::test]
async fn a_request_that_is_sent_again_is_generated_once_and_answered_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    sent_again_is_answered_alike(&url, folder.path()).await;
}

#[tokio::test]
async fn so_it_is_with_postgresql() {
    let (data, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let Some(server) = Postgres::start(data.path()) else { return };
    sent_again_is_answered_alike(&server.new_database("answers"), folder.path()).await;
}

#[tokio::test]
async fn tenants_have_keys_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let mut place = start(&url, folder.path(), Duration::ZERO).await;
    let body = completion(json!({"max_tokens": 8, "ignore_eos": true}));
    let first = place.ask(0, "name", &body).await;
    place.key = new_key(&*place.store, "another").await;
    place.refresh().await;
    let other = place.ask(0, "name", &body).await;
    assert_eq!((other.status, other.header("idempotent-replayed")), (200, None));
    assert_ne!(first.json()["id"], other.json()["id"]);
}

#[tokio::test]
async fn a_kept_answer_is_only_for_keys_that_permit_its_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let mut place = start(&url, folder.path(), Duration::ZERO).await;
    let body = completion(json!({"max_tokens": 8, "ignore_eos": true}));
    let first = place.ask(0, "name", &body).await;
    let restricted = |models: &[&str]| NewKey {
        organisation: "o".into(),
        project: "p".into(),
        models: Some(models.iter().map(|&name| name.to_owned()).collect()),
        ..NewKey::default()
    };
    for (models, status) in [(&["other"][..], 403), (&[], 403), (&["org/paper", "other"], 200)] {
        place.key = place.store.create_key(restricted(models)).await.expect("made");
        place.refresh().await;
        for i in [0, 1] {
            let again = place.ask(i, "name", &body).await;
            assert_eq!(again.status, status, "{models:?}: {}", again.text());
            let is_kept = again.header("idempotent-replayed") == Some("true");
            assert_eq!((is_kept, again.text() == first.text()), (status == 200, status == 200), "{models:?}");
            if status == 403 {
                assert_eq!(again.error().3, "permission_denied");
            }
        }
    }
}

#[tokio::test]
async fn whoever_sends_it_again_waits_and_an_answer_is_made_though_its_client_has_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let place = start(&url, folder.path(), Duration::from_millis(5)).await;
    let body = completion(json!({"max_tokens": 100, "ignore_eos": true, "stream": true}));
    let mut first = place.client(0).await;
    first.send(place.request("/v1/completions", "name", &body)).await;
    first.read_until("data: ").await;
    drop(first);
    let again = place.ask(1, "name", &body).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{}", again.text());
    assert!(again.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(place.counted().await, (1, 100));
}

#[tokio::test]
async fn a_claim_of_a_dead_gateway_is_taken_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let place = start(&url, folder.path(), Duration::ZERO).await;
    let body = completion(json!({"max_tokens": 8, "ignore_eos": true}));
    let first = place.ask(0, "seen", &body).await;
    assert_eq!(first.status, 200);
    // A gateway that claimed the request and died, as the database shows it.
    let bytes = body.to_string();
    let digest = {
        use sha2::{Digest, Sha256};
        let digest = Sha256::new().chain_update("/v1/completions").chain_update([0]).chain_update(bytes);
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let claim = AnswerClaim {
        tenant: place.key.key.project_id.clone(),
        key: "orphan".to_owned(),
        request: digest,
        owner: "a dead gateway".to_owned(),
        expires_unix_s: u64::MAX >> 1,
    };
    assert_eq!(place.store.claim_answer(&claim, 0, None).await.expect("claimed"), Claimed::Granted);
    let answers = [place.ask(0, "orphan", &body), place.ask(1, "orphan", &body)];
    let answers = futures_util::future::join_all(answers).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(answers[0].text(), answers[1].text());
    assert_eq!(place.counted().await, (2, 16));
    assert!(!place.store.beat_answer(&claim).await.expect("refused"), "the dead one owns nothing");
}
