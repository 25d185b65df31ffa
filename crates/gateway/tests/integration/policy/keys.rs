//! Keys of a database over real sockets: what each state of a key is answered with, and that changes are seen
//! without a restart.

use crate::harness::{Client, Server, Setup, chat};
use serde_json::json;
use std::sync::Arc;
use throng_store::{CreatedKey, KeyChange, NewKey, Store, open};

struct Place {
    server: Server,
    store: Arc<dyn Store>,
    _folder: tempfile::TempDir,
}

/// A server that follows a database which has no key yet.
async fn start() -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("throng.db");
    let url = format!("sqlite:{}", path.display());
    let mut setup = Setup::default();
    setup.config.access.database = Some(url.clone());
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    // The server and the commands have connections of their own.
    let (served, store) = (open(&url).await.expect("a database"), open(&url).await.expect("a database"));
    tokio::spawn(loading.stored_keys().expect("a database").follow(served));
    Place { server, store, _folder: folder }
}

async fn create(store: &dyn Store, new: NewKey) -> CreatedKey {
    let name = "acme".to_owned();
    store.create_key(NewKey { organisation: name.clone(), project: name, ..new }).await.expect("made")
}

/// Status and code of an answer to a chat with the model `model`.
async fn ask(client: &mut Client, key: &str, model: &str) -> (u16, String) {
    let body = chat(json!({"model": model, "max_tokens": 1})).to_string();
    let authorization = format!("authorization: Bearer {key}");
    client.send(crate::harness::post_bytes("/v1/chat/completions", &body, &[&authorization])).await;
    let reply = client.reply().await.expect("an answer");
    let code = reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
    (reply.status, code)
}

/// Asks until the answer is this one; the test's own limit of time ends it.
async fn eventually(client: &mut Client, key: &str, model: &str, wanted: (u16, &str)) {
    loop {
        let (status, code) = ask(client, key, model).await;
        if (status, code.as_str()) == wanted {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn keys_are_accepted_revoked_and_restricted_without_a_restart() {
    let Place { server, store, _folder } = start().await;
    let mut client = server.connect().await;
    assert_eq!(ask(&mut client, "sk-unknown", "paper").await, (401, "invalid_api_key".to_owned()));
    let reply = client.get("/v1/models").await;
    assert_eq!(reply.error().0, 401, "an empty database does not open the server");

    let key = create(&*store, NewKey::default()).await;
    eventually(&mut client, key.secret(), "paper", (200, "")).await;
    let (prefix, change) = (key.key.prefix.as_str(), KeyChange::default());
    assert_eq!(ask(&mut client, prefix, "paper").await, (401, "invalid_api_key".to_owned()));

    let only_other = KeyChange { models: Some(Some(vec!["other".to_owned()])), ..change.clone() };
    store.change_key(&key.key.id, only_other).await.expect("changed");
    eventually(&mut client, key.secret(), "paper", (403, "permission_denied")).await;
    assert_eq!(ask(&mut client, key.secret(), "no-model").await, (403, "permission_denied".to_owned()));
    assert_eq!(ask(&mut client, key.secret(), "other").await, (404, "model_not_found".to_owned()));
    let alias = KeyChange { models: Some(Some(vec!["org/paper".to_owned()])), ..change.clone() };
    store.change_key(&key.key.id, alias).await.expect("changed");
    eventually(&mut client, key.secret(), "paper", (200, "")).await;

    let expired = KeyChange { expires_unix_s: Some(Some(1)), ..change.clone() };
    store.change_key(&key.key.id, expired).await.expect("changed");
    eventually(&mut client, key.secret(), "paper", (401, "api_key_revoked")).await;
    store.change_key(&key.key.id, KeyChange { expires_unix_s: Some(None), ..change }).await.expect("changed");
    eventually(&mut client, key.secret(), "paper", (200, "")).await;
    let other = create(&*store, NewKey::default()).await;
    store.revoke_key(prefix).await.expect("revoked");
    eventually(&mut client, key.secret(), "paper", (401, "api_key_revoked")).await;
    assert_eq!(ask(&mut client, other.secret(), "paper").await.0, 200, "the key that replaces it");
}
