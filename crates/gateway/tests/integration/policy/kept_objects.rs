//! Objects that are kept for one tenant: for every other one they are absent, whatever it asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Client, Reply, Setup, Socket, Stored};
use serde_json::{Value, json};
use throng_testkit::nightly::{amount, requested};

/// Two projects of an organisation, and one of the same name of another.
const PROJECTS: [(&str, &str); 3] = [("acme", "first"), ("acme", "second"), ("other", "first")];
const CONNECTIONS: u64 = 4;

/// A kept object with the requests that read, change or use it.
struct Object {
    owner: usize,
    id: String,
    requests: Vec<Request>,
}

struct Request {
    method: &'static str,
    path: String,
    body: Option<Value>,
}

fn to(method: &'static str, path: impl Into<String>) -> Request {
    Request { method, path: path.into(), body: None }
}

fn sending(path: impl Into<String>, body: Value) -> Request {
    Request { method: "POST", path: path.into(), body: Some(body) }
}

/// A request for a response with these fields.
fn response_with(fields: Value) -> Value {
    let mut body = json!({"model": "paper", "input": "Hello", "max_output_tokens": 4});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// A text that only objects of this tenant have.
fn secret(tenant: usize) -> String {
    format!("The secret of tenant {tenant} is {}.", tenant * 1_000_003)
}

async fn ask(client: &mut Client, key: &str, request: &Request) -> Reply {
    let Request { method, path, body } = request;
    let body = body.as_ref().map(ToString::to_string).unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
    let content = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.send(head + &content).await;
    client.reply().await.expect("an answer")
}

/// The tenant's requests while it makes its objects.
struct Owner<'a> {
    tenant: usize,
    key: &'a str,
    client: Client,
    objects: Vec<Object>,
}

impl Owner<'_> {
    async fn made(&mut self, path: &str, body: Value) -> String {
        self.asked(&sending(path, body)).await["id"].as_str().expect("an id").to_owned()
    }

    async fn asked(&mut self, request: &Request) -> Value {
        let reply = ask(&mut self.client, self.key, request).await;
        assert_eq!(reply.status, 200, "{} {}: {}", request.method, request.path, reply.text());
        reply.json()
    }

    fn add(&mut self, id: String, requests: Vec<Request>) {
        self.objects.push(Object { owner: self.tenant, id, requests });
    }

    /// Asks for an object until it has the value.
    async fn until(&mut self, path: &str, key: &str, value: &str) {
        let become_so = async {
            while self.asked(&to("GET", path)).await[key] != value {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::harness::PATIENCE, become_so).await.expect("it ends");
    }

    async fn upload(&mut self, purpose: &str, content: &str) -> String {
        let part = |head: &str, body: &str| {
            format!("--x\r\ncontent-disposition: form-data; name={head}\r\n\r\n{body}\r\n")
        };
        let form = part("purpose", purpose) + &part("file; filename=\"f.jsonl\"", content) + "--x--\r\n";
        let key = self.key;
        let head = format!("POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
        let kind = "content-type: multipart/form-data; boundary=x\r\n";
        self.client.send(format!("{head}{kind}content-length: {}\r\n\r\n{form}", form.len())).await;
        let reply = self.client.reply().await.expect("an answer");
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["id"].as_str().expect("an id").to_owned()
    }

    fn add_file(&mut self, id: String) {
        let path = format!("/v1/files/{id}");
        let batch = json!({"input_file_id": id, "endpoint": "/v1/completions", "completion_window": "24h"});
        let content = format!("{path}/content");
        let requests =
            vec![to("GET", &path), to("GET", content), to("DELETE", path), sending("/v1/batches", batch)];
        self.add(id, requests);
    }

    /// Files and batches, with the files of their results.
    async fn make_files_and_batches(&mut self) {
        let secret = secret(self.tenant);
        let file = self.upload("user_data", &secret).await;
        self.add_file(file);
        let body = json!({"model": "paper", "prompt": secret, "max_tokens": 2});
        let line = json!({"custom_id": secret, "method": "POST", "url": "/v1/completions", "body": body});
        let input = self.upload("batch", &format!("{line}\n")).await;
        let begin = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h",
                           "metadata": {"text": secret}});
        self.add_file(input);
        let batch = self.made("/v1/batches", begin).await;
        let path = format!("/v1/batches/{batch}");
        self.until(&path, "status", "completed").await;
        let done = self.asked(&to("GET", &path)).await;
        self.add_file(done["output_file_id"].as_str().expect("a file").to_owned());
        let requests = vec![to("GET", &path), to("POST", format!("{path}/cancel"))];
        self.add(batch, requests);

        let params =
            json!({"model": "paper", "max_tokens": 2, "messages": [{"role": "user", "content": secret}]});
        let asked = json!({"requests": [{"custom_id": "m", "params": params}]});
        let batch = self.made("/v1/messages/batches", asked).await;
        let path = format!("/v1/messages/batches/{batch}");
        self.until(&path, "processing_status", "ended").await;
        let more = ["results", "cancel"].map(|what| format!("{path}/{what}"));
        let [results, cancel] = more;
        let requests = vec![to("GET", &path), to("GET", results), to("POST", cancel), to("DELETE", path)];
        self.add(batch, requests);
    }

    /// Responses and conversations, with their items.
    async fn make_conversations(&mut self) {
        let secret = secret(self.tenant);
        let item = json!({"type": "message", "role": "user", "content": secret});
        let conversation =
            self.made("/v1/conversations", json!({"items": [item], "metadata": {"text": secret}})).await;
        let mut fields = vec![
            json!({"instructions": secret, "input": secret}),
            json!({"instructions": secret, "conversation": conversation}),
            json!({"instructions": secret, "background": true}),
        ];
        while let Some(asked) = fields.pop() {
            let is_background = asked["background"] == true;
            let response = self.made("/v1/responses", response_with(asked)).await;
            if is_background {
                self.until(&format!("/v1/responses/{response}"), "status", "incomplete").await;
            }
            // One that goes on from another one.
            if fields.is_empty() {
                let goes_on = json!({"instructions": secret, "previous_response_id": response});
                let next = self.made("/v1/responses", response_with(goes_on)).await;
                self.add_response(next).await;
            }
            self.add_response(response).await;
        }
        self.add_conversation(conversation).await;
    }

    async fn add_response(&mut self, id: String) {
        let path = format!("/v1/responses/{id}");
        let items = self.asked(&to("GET", format!("{path}/input_items"))).await;
        let mut requests = vec![
            to("GET", &path),
            to("GET", format!("{path}?stream=true&starting_after=0")),
            to("GET", format!("{path}/input_items")),
            to("POST", format!("{path}/cancel")),
            to("DELETE", &path),
            sending("/v1/responses", response_with(json!({"previous_response_id": id}))),
            sending("/v1/responses", response_with(json!({"previous_response_id": id, "store": false}))),
            sending("/v1/responses/compact", json!({"model": "paper", "previous_response_id": id})),
        ];
        requests.extend(items["data"].as_array().expect("items").iter().map(reference_to));
        self.add(id, requests);
    }

    async fn add_conversation(&mut self, id: String) {
        let path = format!("/v1/conversations/{id}");
        let items = self.asked(&to("GET", format!("{path}/items"))).await;
        let new = json!({"items": [{"type": "message", "role": "user", "content": "mine"}]});
        let mut requests = vec![
            to("GET", &path),
            to("GET", format!("{path}/items")),
            to("DELETE", &path),
            sending(&path, json!({"metadata": {"text": "mine"}})),
            sending(format!("{path}/items"), new),
            sending("/v1/responses", response_with(json!({"conversation": id}))),
        ];
        for item in items["data"].as_array().expect("items") {
            let place = format!("{path}/items/{}", item["id"].as_str().expect("an id"));
            requests.extend([to("GET", &place), to("DELETE", place), reference_to(item)]);
        }
        self.add(id, requests);
    }
}

/// A request with a reference to a kept item.
fn reference_to(item: &Value) -> Request {
    let input = json!([{"type": "item_reference", "id": item["id"]}]);
    sending("/v1/responses", response_with(json!({"input": input})))
}

/// A tenant that asks for the objects of others at random.
struct Stranger {
    place: Arc<Stored>,
    objects: Arc<Vec<Object>>,
    random: fastrand::Rng,
}

impl Stranger {
    async fn run(mut self, n_requests: u64) {
        let mut client = self.place.server.connect().await;
        let lists = ["/v1/files?limit=100", "/v1/batches?limit=100", "/v1/messages/batches?limit=100"];
        for _ in 0..n_requests {
            let object = &self.objects[self.random.usize(..self.objects.len())];
            let tenant = (object.owner + self.random.usize(1..PROJECTS.len())) % PROJECTS.len();
            let key = self.place.keys[tenant].secret();
            if self.random.u8(..) < 8 {
                let list = lists[self.random.usize(..lists.len())];
                let reply = ask(&mut client, key, &to("GET", list)).await;
                assert!(
                    reply.status == 200 && !reply.text().contains(&object.id),
                    "{list}: {}",
                    reply.text()
                );
                continue;
            }
            let request = &object.requests[self.random.usize(..object.requests.len())];
            let reply = ask(&mut client, key, request).await;
            let what = format!("{tenant}: {} {} {:?}", request.method, request.path, request.body);
            let code = reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
            let is_absent = [400, 404].contains(&reply.status)
                && (code.ends_with("not_found") || reply.json()["error"]["type"] == "not_found_error");
            assert!(is_absent, "{what}: {} {}", reply.status, reply.text());
            assert!(!reply.text().contains(&secret(object.owner)), "{what}: {}", reply.text());
        }
    }
}

/// What the owner of each object reads of it.
async fn all_read(place: &Stored, objects: &[Object]) -> Vec<(String, u16, String)> {
    let (mut client, mut read) = (place.server.connect().await, Vec::new());
    for object in objects {
        let key = place.keys[object.owner].secret();
        for request in object.requests.iter().filter(|request| request.method == "GET") {
            let reply = ask(&mut client, key, request).await;
            read.push((request.path.clone(), reply.status, reply.text().to_owned()));
        }
    }
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tenant_reads_changes_or_uses_what_another_one_keeps() {
    let seed = requested("THRONG_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("THRONG_SEED={seed}");
    let place = Arc::new(Stored::start(Setup::default(), &PROJECTS).await);
    let mut objects = Vec::new();
    for tenant in 0..PROJECTS.len() {
        let (key, client) = (place.keys[tenant].secret(), place.server.connect().await);
        let mut owner = Owner { tenant, key, client, objects: Vec::new() };
        owner.make_files_and_batches().await;
        owner.make_conversations().await;
        objects.extend(owner.objects);
    }
    let objects = Arc::new(objects);
    let before = all_read(&place, &objects).await;
    for (path, status, text) in &before {
        assert_eq!(*status, 200, "{path}: {text}");
    }
    let n_secret = before.iter().filter(|(_, _, text)| text.contains("The secret of tenant")).count();
    assert!(n_secret > objects.len(), "most of what is read has the secret");

    let strangers: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let random = fastrand::Rng::with_seed(seed ^ number);
            let stranger = Stranger { place: place.clone(), objects: objects.clone(), random };
            tokio::spawn(stranger.run(amount(10_000, 100_000) / CONNECTIONS))
        })
        .collect();
    for stranger in strangers {
        stranger.await.expect("no answer");
    }
    assert_eq!(all_read(&place, &objects).await, before, "nothing was changed");

    for object in objects.iter().filter(|object| object.id.starts_with("resp_")) {
        let authorization = format!("Bearer {}", place.keys[(object.owner + 1) % PROJECTS.len()].secret());
        let socket = Socket::open(place.server.address, &[("authorization", &authorization)]).await;
        let mut message = response_with(json!({"previous_response_id": object.id}));
        message["type"] = json!("response.create");
        let told = socket.expect("accepted").ask(&message).await;
        assert_eq!(told["error"]["code"], "previous_response_not_found", "{told}");
    }
}
