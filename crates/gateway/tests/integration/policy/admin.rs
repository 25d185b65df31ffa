//! The operator's API on a listener of its own: keys made, changed, revoked and listed, limits, usage of all,
//! the end of the server.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::harness::{Client, Reply, Server, Setup, completion};
use serde_json::{Value, json};
use throng_gateway::Secret;
use throng_store::{Journal, open};

struct Place {
    server: Server,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

async fn start() -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("throng.db").display());
    let mut setup = Setup::default();
    setup.config.access.database = Some(url.clone());
    setup.config.access.admin_key = Some(Secret::new("operator"));
    setup.config.access.admin_listen = Some("127.0.0.1:0".to_owned());
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    let store = open(&url).await.expect("a database");
    loading.stored_keys().expect("a database").refresh(&*store).await.expect("read");
    let journal = Journal::open(&folder.path().join("journal")).expect("a journal");
    let ledger = loading.ledger().expect("a database");
    ledger.open(journal, store).await.expect("opened");
    tokio::spawn(Arc::clone(&ledger).follow());
    let admin = server.admin_address.expect("an admin listener");
    Place { server, admin, _folder: folder }
}

impl Place {
    async fn operate(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        send(self.admin, method, path, "operator", body).await
    }

    async fn ask(&self, key: &str, fields: Value) -> Reply {
        send(self.server.address, "POST", "/v1/completions", key, Some(completion(fields))).await
    }
}

async fn send(address: SocketAddr, method: &str, path: &str, key: &str, body: Option<Value>) -> Reply {
    let mut client = Client::connect(address).await;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
    let bytes = match body {
        Some(body) => {
            let body = body.to_string();
            format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
        None if method == "POST" => format!("{head}content-length: 0\r\n\r\n"),
        None => format!("{head}\r\n"),
    };
    client.send(bytes).await;
    client.reply().await.expect("an answer")
}

#[tokio::test]
async fn keys_are_made_limited_listed_and_revoked() {
    let place = start().await;
    let wanted = json!({"organisation": "acme", "project": "search", "name": "first", "expires_in_s": 3600,
                        "limits": {"requests_per_minute": 5, "cost_per_month": "2.50"}});
    let made = place.operate("POST", "/admin/keys", Some(wanted)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    let (secret, id) =
        (made["key"].as_str().expect("a key").to_owned(), made["id"].as_str().expect("an id").to_owned());
    assert_eq!(made["limits"], json!({"requests_per_minute": 5, "cost_per_month": "2.5"}));
    assert_eq!(place.ask(&secret, json!({"max_tokens": 1})).await.status, 200, "holds at once");

    let changed = json!({"models": ["other"], "limits": {"requests_per_minute": null}});
    let changed = place.operate("POST", &format!("/admin/keys/{id}"), Some(changed)).await.json();
    assert_eq!(
        (&changed["limits"], &changed["models"]),
        (&json!({"cost_per_month": "2.5"}), &json!(["other"]))
    );
    assert!(changed["expires_at"].is_u64(), "what is not named stays");
    assert_eq!(place.ask(&secret, json!({"max_tokens": 1})).await.status, 403);
    let anything = place.operate("POST", &format!("/admin/keys/{id}"), Some(json!({"models": null}))).await;
    assert_eq!(anything.json()["models"], Value::Null);

    let limits = json!({"organisation": "acme", "project": "search", "limits": {"tokens_per_day": 20}});
    let limited = place.operate("POST", "/admin/limits", Some(limits)).await;
    assert_eq!(limited.json(), json!({"limits": {"tokens_per_day": 20}}));
    let refused = place.ask(&secret, json!({"max_tokens": 30})).await;
    assert_eq!((refused.error().0, refused.error().3.as_str()), (429, "insufficient_quota"));
    let said = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
    let begin =
        "The budget of this API key's project does not allow this request: 20 tokens a day, of which ";
    assert!(said.starts_with(begin) && said.contains(" tokens are used and 0 tokens reserved"), "{said}");
    assert!(said.contains("may use up to ") && said.ends_with(" at 00:00 UTC."), "{said}");
    let organisations = place.operate("GET", "/admin/organisations", None).await.json();
    assert_eq!(organisations["data"][0]["name"], "acme");
    assert_eq!(organisations["data"][0]["projects"][0]["limits"], json!({"tokens_per_day": 20}));

    let revoked = place.operate("POST", &format!("/admin/keys/{id}/revoke"), None).await.json();
    assert!(revoked["revoked_at"].is_u64());
    assert_eq!(place.ask(&secret, json!({})).await.error().3, "api_key_revoked");
    let listed = place.operate("GET", "/admin/keys", None).await;
    assert_eq!(listed.json()["data"].as_array().map(Vec::len), Some(1));
    assert!(!listed.text().contains(&secret), "secrets are not listed");
}

#[tokio::test]
async fn wrong_bodies_are_refused_and_say_why() {
    let place = start().await;
    for (path, body, status, param) in [
        ("/admin/keys", json!([]), 400, Value::Null),
        ("/admin/keys", json!({"colour": 1}), 400, Value::Null),
        ("/admin/keys", json!({"expires_in_s": 0}), 400, json!("expires_in_s")),
        ("/admin/keys", json!({"limits": {"colour": 1}}), 400, json!("limits.colour")),
        ("/admin/keys", json!({"limits": {"cost_per_day": 1}}), 400, json!("limits.cost_per_day")),
        ("/admin/keys", json!({"limits": {"tokens_per_day": 0}}), 400, json!("limits.tokens_per_day")),
        ("/admin/keys", json!({"name": "a\nb"}), 400, Value::Null),
        ("/admin/keys/key_0", json!({}), 404, Value::Null),
        ("/admin/limits", json!({"organisation": "none", "limits": {}}), 404, Value::Null),
        (
            "/admin/limits",
            json!({"organisation": "o", "each_user": true, "limits": {}}),
            400,
            json!("project"),
        ),
    ] {
        let reply = place.operate("POST", path, Some(body.clone())).await;
        assert_eq!((reply.error().0, reply.error().2), (status, param), "{path} {body}: {}", reply.text());
    }
}

#[tokio::test]
async fn the_operator_sees_all_usage_and_ends_the_server() {
    let place = start().await;
    let yesterday = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() - 86_400;
    for project in ["p", "q"] {
        let made = place.operate("POST", "/admin/keys", Some(json!({"project": project}))).await.json();
        let secret = made["key"].as_str().expect("a key");
        assert_eq!(place.ask(secret, json!({"max_tokens": 3, "ignore_eos": true})).await.status, 200);
        let elsewhere = send(place.server.address, "GET", "/metrics", secret, None).await;
        assert_eq!(elsewhere.status, 403, "metrics are the operator's");
        let on_both = send(place.server.address, "GET", "/metrics", "operator", None).await;
        assert_eq!(on_both.status, 200, "also on the listener for clients");
        assert_eq!(send(place.admin, "GET", "/metrics", secret, None).await.status, 401);
    }
    let metrics = place.operate("GET", "/metrics", None).await;
    assert!(metrics.text().contains("vllm:generation_tokens_total"));
    let path =
        format!("/v1/organization/usage/completions?start_time={yesterday}&limit=7&group_by=project_id");
    let all = async {
        loop {
            let page = place.operate("GET", &path, None).await.json();
            let buckets = page["data"].as_array().expect("buckets").clone();
            let results = buckets.iter().filter_map(|bucket| bucket["results"].as_array()).flatten();
            if results.count() == 2 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, all).await.expect("both projects are seen");
    let document = place.operate("GET", "/openapi.json", None).await.json();
    assert!(
        document["paths"]["/admin/keys"]["post"].is_object()
            && document["paths"]["/admin/keys"]["get"].is_object()
    );
    let draining = place.operate("POST", "/admin/drain", None).await;
    assert_eq!((draining.status, draining.json()), (202, json!({"status": "draining"})));
    place.server.stopped().await;
}
