//! Adapters over HTTP: chosen by `model`, listed with their parent, loaded and unloaded at run time, and
//! alive as long as a request uses them. The paper executor computes another output for each adapter.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_core::request::{Adapter, AdapterId};
use throng_gateway::{AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter, Secret};

/// Room for two adapters; their folders are only named.
#[derive(Debug, Default)]
struct Shelf {
    next: AtomicU32,
    /// One clone is in each adapter.
    place: Arc<()>,
    loads: Mutex<Vec<String>>,
}

impl Shelf {
    fn n_held(&self) -> usize {
        Arc::strong_count(&self.place) - 1
    }
}

impl AdapterLoader for Shelf {
    fn load(&self, path: &str) -> Result<LoadedAdapter, AdapterFault> {
        if path.contains("broken") {
            return Err(AdapterFault::Invalid("tensor q_proj.lora_B.weight is missing".into()));
        }
        if self.n_held() >= 2 {
            return Err(AdapterFault::Full("2 adapters are loaded".into()));
        }
        self.loads.lock().expect("no panic").push(path.to_owned());
        let adapter = Adapter::numbered(AdapterId(self.next.fetch_add(1, Ordering::Relaxed)));
        Ok(LoadedAdapter { adapter, held: Arc::new(self.place.clone()) })
    }
}

fn setup(shelf: &Arc<Shelf>, names: &[&str], allow_runtime_updates: bool) -> Setup {
    let module = |name: &&str| AdapterModule { name: (*name).into(), path: format!("/{name}"), loaded: None };
    let modules = names.iter().map(module).collect();
    Setup {
        adapters: Some(AdapterSettings { loader: shelf.clone(), modules, allow_runtime_updates }),
        ..Setup::default()
    }
}

async fn text(client: &mut Client, model: &str) -> String {
    let body = completion(json!({"model": model, "max_tokens": 12, "temperature": 0, "ignore_eos": true}));
    let reply = client.post("/v1/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["model"], model);
    reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

async fn load(client: &mut Client, body: Value) -> crate::harness::Reply {
    client.post("/v1/load_lora_adapter", &body).await
}

async fn unload(client: &mut Client, name: &str) -> crate::harness::Reply {
    client.post("/v1/unload_lora_adapter", &json!({"lora_name": name})).await
}

#[tokio::test]
async fn requests_choose_adapters_by_model_and_prefixes_are_not_shared() {
    let shelf = Arc::default();
    let server = Server::start(setup(&shelf, &["sql", "legal"], false)).await;
    let mut client = server.connect().await;
    // The same prompt thrice and again: each computes keys and values of its own.
    let plain = text(&mut client, "paper").await;
    let (sql, legal) = (text(&mut client, "sql").await, text(&mut client, "legal").await);
    assert!(plain != sql && sql != legal && plain != legal, "{plain:?} {sql:?} {legal:?}");
    for (model, expected) in [("sql", &sql), ("org/paper", &plain), ("legal", &legal), ("paper", &plain)] {
        assert_eq!(&text(&mut client, model).await, expected, "{model}");
    }
    let body = chat(json!({"model": "sql", "max_tokens": 4, "stream": true}));
    let reply = client.post("/v1/chat/completions", &body).await;
    assert!(reply.chunks().iter().all(|chunk| chunk["model"] == "sql"));
    let list = client.get("/v1/models").await.json();
    let cards: Vec<_> = list["data"].as_array().expect("a list").iter().collect();
    let adapters: Vec<_> =
        cards.iter().filter(|card| card["parent"] == "paper").map(|card| &card["id"]).collect();
    assert_eq!(adapters, ["org/paper", "legal", "sql"]);
    let card = client.get("/v1/models/sql").await.json();
    assert_eq!(
        (&card["id"], &card["root"], &card["parent"]),
        (&json!("sql"), &json!("/sql"), &json!("paper"))
    );
    let tokens = client.post("/tokenize", &json!({"model": "legal", "prompt": "Hello"})).await;
    assert_eq!(tokens.status, 200);
    let body = completion(json!({"model": "absent"}));
    let refused = client.post("/v1/completions", &body).await.error();
    assert_eq!((refused.0, refused.3.as_str()), (404, "model_not_found"));
}

#[tokio::test]
async fn adapters_are_loaded_and_unloaded_at_run_time() {
    let shelf = Arc::default();
    let server = Server::start(setup(&shelf, &[], true)).await;
    let mut client = server.connect().await;
    let body = json!({"lora_name": "sql", "lora_path": "/models/sql"});
    let reply = load(&mut client, body.clone()).await;
    assert_eq!((reply.status, reply.text()), (200, "Success: LoRA adapter 'sql' added successfully."));
    let sql = text(&mut client, "sql").await;
    let (status, _, param, code) = load(&mut client, body).await.error();
    assert_eq!((status, param, code.as_str()), (400, json!("lora_name"), "invalid_value"));
    let again = json!({"lora_name": "sql", "lora_path": "/models/sql-2", "load_inplace": true});
    assert_eq!(load(&mut client, again).await.status, 200);
    assert_ne!(text(&mut client, "sql").await, sql, "the new one computes");
    let reply = unload(&mut client, "sql").await;
    assert_eq!((reply.status, reply.text()), (200, "Success: LoRA adapter 'sql' removed successfully."));
    assert_eq!(shelf.n_held(), 0);
    let gone = client.post("/v1/completions", &completion(json!({"model": "sql"}))).await.error();
    assert_eq!((gone.0, gone.3.as_str()), (404, "model_not_found"));
    let gone = unload(&mut client, "sql").await.error();
    assert_eq!((gone.0, gone.3.as_str()), (404, "model_not_found"));
    for (body, param, code) in [
        (json!({"lora_name": "x"}), "lora_path", "missing_required_parameter"),
        (json!({"lora_path": "x"}), "lora_name", "missing_required_parameter"),
        (json!({"lora_name": "paper", "lora_path": "x"}), "lora_name", "invalid_value"),
        (json!({"lora_name": "a\nb", "lora_path": "x"}), "lora_name", "invalid_value"),
        (json!({"lora_name": "x", "lora_path": "/broken"}), "lora_path", "invalid_adapter"),
        (json!({"lora_name": "x", "lora_path": 5}), "lora_path", "invalid_type"),
    ] {
        let reply = load(&mut client, body.clone()).await;
        let (status, _, found, found_code) = reply.error();
        assert_eq!((status, found, found_code.as_str()), (400, json!(param), code), "{body}");
        assert!(code != "invalid_adapter" || reply.text().contains("tensor q_proj.lora_B.weight is missing"));
    }
}

#[tokio::test]
async fn an_adapter_in_use_stays_until_its_requests_end() {
    let shelf: Arc<Shelf> = Arc::default();
    let mut setup = setup(&shelf, &["a", "b", "c"], true);
    setup.step_time = Duration::from_millis(2);
    let server = Server::start(setup).await;
    let long = |model: &str| {
        completion(
            json!({"model": model, "max_tokens": 400, "temperature": 0, "ignore_eos": true, "stream": true}),
        )
    };
    let mut first = server.connect().await;
    first.send(post_bytes("/v1/completions", &long("a").to_string(), &[])).await;
    first.read_until("data: ").await;
    let mut second = server.connect().await;
    second.send(post_bytes("/v1/completions", &long("b").to_string(), &[])).await;
    second.read_until("data: ").await;
    let mut client = server.connect().await;
    // Both places are taken, by one that runs and by one whose name is gone.
    assert_eq!(unload(&mut client, "a").await.status, 200);
    assert_eq!(shelf.n_held(), 2);
    let full = client.post("/v1/completions", &completion(json!({"model": "c"}))).await;
    assert_eq!((full.status, full.error().3.as_str()), (503, "overloaded"));
    assert!(full.header("retry-after").is_some());
    // The second client hangs up: its adapter may go for another.
    drop(second);
    let fits = async {
        loop {
            let reply =
                client.post("/v1/completions", &completion(json!({"model": "c", "max_tokens": 1}))).await;
            match reply.status {
                200 => break,
                status => assert_eq!(status, 503),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, fits).await.expect("there is room at last");
    // The stream of the unloaded adapter runs to its end, without an error.
    let rest = first.read_until("[DONE]").await;
    assert!(rest.contains("\"finish_reason\":\"length\"") && !rest.contains("\"error\""), "{rest}");
    server.idle().await;
    let freed = async {
        while shelf.n_held() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("only c is held");
    assert_eq!(*shelf.loads.lock().expect("no panic"), ["/a", "/b", "/c"]);
}

#[tokio::test]
async fn run_time_loading_needs_the_operators_word_and_key() {
    let shelf = Arc::default();
    let mut setup = setup(&shelf, &["sql"], false);
    setup.config.access.api_keys = vec![Secret::new("client")];
    setup.config.access.admin_key = Some(Secret::new("right"));
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let body = json!({"lora_name": "sql", "lora_path": "/x"}).to_string();
        client.send(post_bytes(path, &body, &[])).await;
        assert_eq!(client.reply().await.expect("a response").status, 401);
        client.send(post_bytes(path, &body, &["authorization: Bearer client"])).await;
        assert_eq!(client.reply().await.expect("a response").status, 403);
        client.send(post_bytes(path, &body, &["authorization: Bearer right"])).await;
        let reply = client.reply().await.expect("a response");
        let (status, _, _, code) = reply.error();
        assert_eq!((status, code.as_str()), (403, "permission_denied"));
        assert!(reply.text().contains("--allow-runtime-lora-updating"));
    }
    assert_eq!(shelf.n_held(), 0);
}
