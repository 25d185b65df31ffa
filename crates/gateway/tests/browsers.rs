//! What web pages may do: pages of foreign origins, pages that reach the server by a foreign name (DNS rebinding), and
//! bodies that a browser sends anywhere without a preflight. Other programs are not restricted.

mod harness;

use harness::{Client, Reply, Server, Setup};
use serde_json::json;
use throng_gateway::{GatewayConfig, Secret};

const CHAT: &str = "/v1/chat/completions";

/// A server that any machine may reach, without keys.
async fn public(change: impl FnOnce(&mut GatewayConfig)) -> Server {
    let mut setup = Setup { bind: "0.0.0.0:0", ..Setup::default() };
    setup.config.server.host = "models.example.org".to_owned();
    setup.config.access.allow_unauthenticated = true;
    change(&mut setup.config);
    Server::start(setup).await
}

async fn ask(server: &Server, method: &str, path: &str, fields: &[&str]) -> Reply {
    let mut client: Client = server.connect().await;
    let body = json!({"model": "paper", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]})
        .to_string();
    let body = if method == "POST" { body } else { String::new() };
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let n = body.len();
    client.send(format!("{method} {path} HTTP/1.1\r\n{fields}content-length: {n}\r\n\r\n{body}")).await;
    client.reply().await.expect("an answer")
}

const JSON: &str = "content-type: application/json";

fn with_json<'a>(fields: &[&'a str]) -> Vec<&'a str> {
    [&[JSON][..], fields].concat()
}

#[tokio::test]
async fn a_public_server_without_keys_serves_only_its_own_pages_and_programs() {
    let server = public(|_| ()).await;
    let allowed: &[&[&str]] = &[
        &["host: anything.example"],
        &["host: 10.0.0.5:8000", "origin: http://10.0.0.5:8000"],
        &["host: [fd00::1]:8000", "origin: http://[fd00::1]:8000", "sec-fetch-site: same-origin"],
        &["host: localhost:8000", "origin: http://localhost:8000"],
        &["host: models.example.org", "origin: https://models.example.org", "sec-fetch-site: same-origin"],
        &["host: models.example.org", "sec-fetch-site: none"],
    ];
    for fields in allowed {
        let reply = ask(&server, "POST", CHAT, &with_json(fields)).await;
        assert_eq!(reply.status, 200, "{fields:?}: {}", reply.text());
    }
    let refused: &[&[&str]] = &[
        &["host: 10.0.0.5:8000", "origin: http://evil.example"],
        &["host: 10.0.0.5:8000", "origin: null"],
        &["host: 10.0.0.5:8000", "origin: http://10.0.0.5:9000"],
        &["host: 10.0.0.5:8000", "origin: http://10.0.0.5:8000", "origin: http://10.0.0.5:8000"],
        // DNS rebinding: the page's own name resolves to this server.
        &["host: evil.example:8000", "origin: http://evil.example:8000"],
        &["host: evil.example:8000", "sec-fetch-site: same-origin"],
        &["host: evil.example:8000", "sec-fetch-mode: cors"],
        &["host: 10.0.0.5:8000", "sec-fetch-site: cross-site"],
        &["host: 10.0.0.5:8000", "sec-fetch-site: same-site"],
        &["host: localhost:8000", "origin: http://models.example.org"],
    ];
    for fields in refused {
        let (status, _, _, code) = ask(&server, "POST", CHAT, &with_json(fields)).await.error();
        assert_eq!((status, code.as_str()), (403, "forbidden_origin"), "{fields:?}");
    }
    let link = ["host: 10.0.0.5:8000", "sec-fetch-site: cross-site", "sec-fetch-mode: navigate"];
    assert_eq!(ask(&server, "GET", "/", &link).await.status, 200, "a link from elsewhere may be followed");
    let rebound = ["host: evil.example:8000", "sec-fetch-site: same-origin"];
    assert_eq!(ask(&server, "GET", "/v1/models", &rebound).await.status, 403);
}

#[tokio::test]
async fn allowed_origins_and_hosts_are_configurable() {
    let server = public(|config| {
        config.access.allowed_origins = vec!["https://app.example".to_owned()];
        config.access.allowed_hosts = vec!["gpu.example.lan".to_owned()];
    })
    .await;
    let page = ["host: gpu.example.lan:8000", "origin: http://gpu.example.lan:8000", JSON];
    assert_eq!(ask(&server, "POST", CHAT, &page).await.status, 200);
    let app = ["host: 10.0.0.5", "origin: https://app.example", "sec-fetch-site: cross-site", JSON];
    let reply = ask(&server, "POST", CHAT, &app).await;
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    let preflight = ["host: 10.0.0.5", "origin: https://app.example", "access-control-request-method: POST"];
    assert_eq!(ask(&server, "OPTIONS", CHAT, &preflight).await.status, 204);
    let other = ["host: 10.0.0.5", "origin: https://other.example", "access-control-request-method: POST"];
    let reply = ask(&server, "OPTIONS", CHAT, &other).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn with_keys_configured_origins_are_not_checked() {
    let server = public(|config| config.access.api_keys = vec![Secret::new("key")]).await;
    let page = ["host: any.example", "origin: https://elsewhere.example", JSON, "authorization: Bearer key"];
    let reply = ask(&server, "POST", CHAT, &page).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
    let (status, _, _, code) = ask(&server, "POST", CHAT, &page[..3]).await.error();
    assert_eq!((status, code.as_str()), (401, "missing_api_key"));
}

#[tokio::test]
async fn a_loopback_server_refuses_foreign_pages() {
    let server = Server::start(Setup::default()).await;
    for (fields, status) in [
        (["host: localhost", "sec-fetch-site: cross-site"], 403),
        (["host: localhost", "sec-fetch-site: same-origin"], 200),
        (["host: localhost", "origin: http://localhost"], 200),
        (["host: localhost", "origin: http://localhost:3000"], 403),
        (["host: 192.168.1.5", "origin: http://192.168.1.5"], 403),
    ] {
        assert_eq!(ask(&server, "POST", CHAT, &with_json(&fields)).await.status, status, "{fields:?}");
    }
}

#[tokio::test]
async fn a_body_is_json_in_utf_8_or_refused_by_its_type() {
    let server = Server::start(Setup::default()).await;
    for good in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/json ; charset=utf8; profile=x",
        "application/vnd.api+json",
    ] {
        let reply = ask(&server, "POST", CHAT, &["host: localhost", &format!("content-type: {good}")]).await;
        assert_eq!(reply.status, 200, "{good}: {}", reply.text());
    }
    for bad in [
        "x: no type at all",
        "content-type:",
        "content-type: text/plain",
        "content-type: text/plain; application/json",
        "content-type: text/json",
        "content-type: application/x-www-form-urlencoded",
        "content-type: multipart/form-data; boundary=application/json",
        "content-type: application/json, text/plain",
        "content-type: application/jsonp",
        "content-type: application/a b+json",
        "content-type: text/x+json",
        "content-type: application/json; charset=latin1",
        "content-type: application/json; Charset=utf-16",
        "content-type: application/json; charset=",
        "content-type: application/json; charset=utf-8; charset=utf-7",
        "content-type: application/json\r\ncontent-type: text/plain",
    ] {
        for path in [CHAT, "/v1/completions", "/tokenize", "/detokenize"] {
            let (status, _, _, code) = ask(&server, "POST", path, &["host: localhost", bad]).await.error();
            assert_eq!((status, code.as_str()), (415, "unsupported_media_type"), "{bad}");
        }
    }
    let mut client = server.connect().await;
    client.send("POST /tokenize HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.reply().await.expect("an answer").error().3, "invalid_json", "no body, no type");
}
