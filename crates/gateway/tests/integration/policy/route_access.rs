//! Who may use which route: every route of the document, which lists the whole table of routes, on both
//! listeners, with a key in every state, over real sockets.

use std::net::SocketAddr;

use crate::harness::{Client, Reply, Server, Setup};
use serde_json::{Value, json};
use throng_gateway::Secret;
use throng_store::{CreatedKey, NewKey, Store, open};
use throng_testkit::nightly::amount;

/// What opens without a key.
const OPEN: &[&str] =
    &["/", "/dashboard", "/health", "/health/live", "/health/ready", "/ping", "/version", "/api/version"];
/// What clients and the operator may use.
const SHARED: &[&str] = &[
    "/openapi.json",
    "/explain",
    "/explain/{id}",
    "/v1/organization/usage/completions",
    "/v1/organization/costs",
];
/// What only the operator may use where there are keys.
const OPERATOR: &[&str] = &[
    "/load",
    "/metrics",
    "/fleet",
    "/plan",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/models/load",
    "/v1/models/unload",
    "/v1/models/sleep",
    "/v1/models/wake",
    "/api/pull",
    "/api/delete",
    "/api/copy",
    "/api/create",
    "/api/push",
];
/// What asks for a model; a list of models is answered with those that the key permits.
const OF_A_MODEL: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/api/embed",
    "/api/embeddings",
    "/infill",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/models/{id}",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
];

/// Whose key a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// None at all.
    None,
    /// One that is not accepted.
    Refused,
    /// A client.
    Client,
    /// A client that may use other models than those that are served.
    Restricted,
    /// The operator.
    Operator,
}

struct Place {
    server: Server,
    /// Headers of credentials in every state, with their holders.
    credentials: Vec<(&'static str, Option<String>, Holder)>,
    _folder: tempfile::TempDir,
}

async fn create(store: &dyn Store, new: NewKey) -> CreatedKey {
    let name = "acme".to_owned();
    store.create_key(NewKey { organisation: name.clone(), project: name, ..new }).await.expect("made")
}

/// A server with or without keys for clients (of the configuration and of a database) and for the operator.
async fn start(has_keys: bool, has_admin: bool) -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let url = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let mut setup = Setup::default();
    setup.config.api.tokenizer_info = true;
    let access = &mut setup.config.access;
    if has_keys {
        access.api_keys = vec![Secret::new("configured")];
        access.database = Some(url("keys.db"));
    }
    if has_admin {
        access.admin_key = Some(Secret::new("operator"));
        access.admin_listen = Some("127.0.0.1:0".to_owned());
    }
    let (server, loading, model) = Server::without_model(setup).await;
    loading.finish(vec![model]).expect("a valid model");
    let store = open(&url("keys.db")).await.expect("a database");
    let valid = create(&*store, NewKey::default()).await;
    let expired = create(&*store, NewKey { expires_unix_s: Some(1), ..NewKey::default() }).await;
    let revoked = create(&*store, NewKey::default()).await;
    store.revoke_key(&revoked.key.id).await.expect("revoked");
    let models = Some(vec!["other".to_owned()]);
    let restricted = create(&*store, NewKey { models, ..NewKey::default() }).await;
    let foreign = create(&*open(&url("other.db")).await.expect("a database"), NewKey::default()).await;
    if let Some(keys) = loading.stored_keys() {
        keys.refresh(&*store).await.expect("read");
    }
    let client = |holder| if has_keys { holder } else { Holder::None };
    let bearer = |key: &str| Some(format!("authorization: Bearer {key}\r\n"));
    let field = |text: &str| Some(format!("{text}\r\n"));
    let credentials = vec![
        ("none", None, Holder::None),
        ("wrong", bearer("wrong"), client(Holder::Refused)),
        ("empty", bearer(""), client(Holder::Refused)),
        ("no scheme", field("authorization: configured"), client(Holder::Refused)),
        ("another scheme", field("authorization: Basic configured"), client(Holder::Refused)),
        ("two", field("authorization: Bearer configured\r\nx-api-key: configured"), client(Holder::Refused)),
        ("expired", bearer(expired.secret()), client(Holder::Refused)),
        ("revoked", bearer(revoked.secret()), client(Holder::Refused)),
        ("of another database", bearer(foreign.secret()), client(Holder::Refused)),
        ("the prefix", bearer(&valid.key.prefix), client(Holder::Refused)),
        ("configured", bearer("configured"), client(Holder::Client)),
        ("configured, x-api-key", field("x-api-key: configured"), client(Holder::Client)),
        ("valid", bearer(valid.secret()), client(Holder::Client)),
        ("restricted", bearer(restricted.secret()), client(Holder::Restricted)),
        ("operator", bearer("operator"), if has_admin { Holder::Operator } else { client(Holder::Refused) }),
    ];
    Place { server, credentials, _folder: folder }
}

/// The paths and methods of all routes.
async fn routes(server: &Server) -> Vec<(String, String)> {
    let mut client = server.connect().await;
    let key = "authorization: Bearer configured";
    client.send(format!("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n{key}\r\n\r\n")).await;
    let document = client.reply().await.expect("an answer").json();
    let paths = document["paths"].as_object().expect("paths").clone();
    let of_path = |(path, item): (String, Value)| {
        let methods: Vec<String> = item.as_object().expect("methods").keys().cloned().collect();
        methods.into_iter().map(move |method| (path.clone(), method.to_uppercase()))
    };
    paths.into_iter().flat_map(of_path).collect()
}

/// The path of a request for a route.
fn path_of(route: &str) -> String {
    let id = if route.starts_with("/v1/models") { "paper" } else { "none" };
    route.replace("{id}", id).replace("{item_id}", "none")
}

/// The path in other ways in which clients write it, with whether a client's route is found by it.
fn other_paths(route: &str, routes: &[(String, String)]) -> Vec<(String, bool)> {
    let path = path_of(route);
    let is_of_operator = OPERATOR.contains(&route) || route.starts_with("/admin/") || OPEN.contains(&route);
    let is_v1 = path.starts_with("/v1/");
    let is_key_route = !is_of_operator && !SHARED.contains(&route);
    let mut others = vec![(format!("/{path}"), true), (format!("{path}//"), true)];
    match path.strip_prefix("/v1") {
        Some(rest) => others.extend([(rest.to_owned(), true), (format!("/v1{path}"), true)]),
        None => others.push((format!("/v1{path}"), is_key_route)),
    }
    others.push((format!("/v1/v1{path}"), is_key_route && !is_v1));
    others.retain(|(other, _)| !routes.iter().any(|(known, _)| known == other) && path != "/");
    // Ids may have slashes in them.
    let with_id = format!("{route}/{{id}}");
    let has_id = route.ends_with("{id}")
        || route.starts_with("/v1/models/")
        || routes.iter().any(|(known, _)| *known == with_id);
    others.retain(|(other, _)| !(has_id && other.ends_with("//")));
    others.into_iter().map(|(other, is_found)| (other, is_found && !is_of_operator)).collect()
}

async fn ask(client: &mut Client, method: &str, route: &str, credential: Option<&str>) -> Reply {
    ask_at(client, method, (route, &path_of(route)), credential).await
}

async fn ask_at(
    client: &mut Client,
    method: &str,
    (route, path): (&str, &str),
    credential: Option<&str>,
) -> Reply {
    let body = match route {
        "/v1/chat/completions" => crate::harness::chat(json!({"max_tokens": 1})).to_string(),
        "/v1/completions" => crate::harness::completion(json!({"max_tokens": 1})).to_string(),
        "/api/generate" | "/api/show" => {
            json!({"model": "paper", "prompt": "a", "stream": false}).to_string()
        }
        "/api/chat" | "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({"model": "paper", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})
                .to_string()
        }
        "/v1/responses" | "/v1/responses/compact" | "/v1/responses/input_tokens" => {
            json!({"model": "paper", "max_output_tokens": 1, "input": "a"}).to_string()
        }
        "/api/embed" | "/api/embeddings" => {
            json!({"model": "paper", "input": "a", "prompt": "a"}).to_string()
        }
        "/infill" => json!({"input_prefix": "a", "input_suffix": "b"}).to_string(),
        "/tokenize" => json!({"prompt": "a"}).to_string(),
        "/detokenize" => json!({"tokens": [1]}).to_string(),
        // Nothing that would change a key or end the server.
        _ => "[]".to_owned(),
    };
    let credential = credential.unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{credential}");
    match method {
        "GET" => client.send(format!("{head}\r\n")).await,
        _ => {
            let n = body.len();
            client
                .send(format!("{head}content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"))
                .await;
        }
    }
    client.reply().await.unwrap_or_else(|| panic!("{method} {path}: no answer"))
}

/// The refusal that a request must meet; `None`: the route's own answer.
fn refusal(
    place: &str,
    path: &str,
    holder: Holder,
    (has_keys, has_admin): (bool, bool),
) -> Option<(u16, &'static str)> {
    const MISSING: Option<(u16, &str)> = Some((401, "missing_api_key"));
    const INVALID: Option<(u16, &str)> = Some((401, "invalid_api_key"));
    const FORBIDDEN: Option<(u16, &str)> = Some((403, "permission_denied"));
    const ABSENT: Option<(u16, &str)> = Some((404, "unknown_url"));
    let is_admin = path.starts_with("/admin/");
    let is_of_operator = OPERATOR.contains(&path) || is_admin;
    let is_of_clients = !is_of_operator && !OPEN.contains(&path) && !SHARED.contains(&path);
    match (place, holder) {
        ("clients", _) if is_admin => ABSENT,
        ("operator", _) if is_of_clients || path == "/" => ABSENT,
        _ if OPEN.contains(&path) => None,
        (_, Holder::Refused) => INVALID,
        ("operator", Holder::Operator) => None,
        ("operator", Holder::None) => MISSING,
        ("operator", _) => INVALID,
        (_, Holder::Operator) if is_of_clients => FORBIDDEN,
        (_, Holder::Operator) => None,
        (_, Holder::None) if has_keys || has_admin && is_of_operator => MISSING,
        (_, Holder::None) => None,
        _ if is_of_operator => FORBIDDEN,
        (_, Holder::Restricted) if OF_A_MODEL.contains(&path) => FORBIDDEN,
        _ => None,
    }
}

async fn check(place: &Place, name: &str, address: SocketAddr, has: (bool, bool)) -> usize {
    let routes = routes(&place.server).await;
    let mut client = Client::connect(address).await;
    let mut n_checked = 0;
    for ((path, method), credential) in
        routes.iter().flat_map(|route| place.credentials.iter().map(move |credential| (route, credential)))
    {
        // Ends the server for whoever may do so; it has a test of its own.
        if path == "/admin/drain" && credential.2 == Holder::Operator && name == "operator" {
            continue;
        }
        let reply = ask(&mut client, method, path, credential.1.as_deref()).await;
        let case = format!("{method} {path} of {name} with the key {:?}, {has:?}", credential.0);
        let code = code_of(&reply);
        let code = code.as_str();
        match refusal(name, path, credential.2, has) {
            Some((401, "invalid_api_key")) if matches!(credential.0, "expired" | "revoked") => {
                assert_eq!((reply.status, code), (401, "api_key_revoked"), "{case}");
            }
            Some(expected) => assert_eq!((reply.status, code), expected, "{case}"),
            None => {
                // Loading adapters is off, which is another 403 than the one for a wrong key.
                let is_off = reply.status == 403 && reply.text().contains("--allow-runtime-lora-updating");
                assert!(is_off || ![401, 403, 405].contains(&reply.status), "{case}: {}", reply.status);
                assert_ne!(code, "unknown_url", "{case}");
            }
        }
        if credential.2 == Holder::Restricted && path == "/v1/models" && name == "clients" {
            assert_eq!(reply.json()["data"], json!([]), "{case}");
        }
        if reply.header("connection") == Some("close") {
            client = Client::connect(address).await;
        }
        n_checked += 1;
        // One credential of each kind shows that another spelling of a path has the same rights.
        let of_kind = place.credentials.iter().find(|other| other.2 == credential.2);
        let is_first = of_kind.is_some_and(|first| first.0 == credential.0);
        if !amount(is_first, true) {
            continue;
        }
        for (other, is_found) in other_paths(path, &routes) {
            let found = ask_at(&mut client, method, (path, &other), credential.1.as_deref()).await;
            if is_found && name == "clients" {
                let answers = [&reply, &found].map(|reply| (reply.status, code_of(reply)));
                assert_eq!(answers[0], answers[1], "{case} at {other}");
            } else {
                assert_eq!(
                    (found.status, code_of(&found).as_str()),
                    (404, "unknown_url"),
                    "{case} at {other}"
                );
            }
            if found.header("connection") == Some("close") {
                client = Client::connect(address).await;
            }
        }
    }
    n_checked
}

/// The code of an error; empty for anything else.
fn code_of(reply: &Reply) -> String {
    match reply.header("content-type") {
        Some("application/json") => {
            let body = reply.json();
            // Ollama's errors are texts, with the code beside them; llama.cpp's have the status as their code.
            let error = &body["error"];
            let code = [&error["code"], &error["reason"], &body["code"]].into_iter().find_map(Value::as_str);
            code.unwrap_or_default().to_owned()
        }
        _ => String::new(),
    }
}

#[tokio::test]
async fn every_route_admits_those_whom_its_table_names_and_nobody_else() {
    for has_keys in [false, true] {
        for has_admin in [false, true] {
            let place = start(has_keys, has_admin).await;
            let n = check(&place, "clients", place.server.address, (has_keys, has_admin)).await;
            assert!(n > 400, "{n} cases");
            let Some(admin) = place.server.admin_address else { continue };
            check(&place, "operator", admin, (has_keys, has_admin)).await;
        }
    }
}
