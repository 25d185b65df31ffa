//! What web pages may do: pages of foreign origins, pages that reach the server by a foreign name (DNS
//! rebinding), and bodies that a browser sends anywhere without a preflight. Other programs are not
//! restricted.

use crate::harness::{Client, Reply, Server, Setup};
use serde_json::json;
use throng_gateway::{Gateway, GatewayConfig, Secret};

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
    // What a browser asks when OpenAI's JavaScript client sends a chat.
    let names = "authorization,content-type,idempotency-key,openai-organization,x-stainless-arch,\
                 x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,\
                 x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";
    let asks = format!("access-control-request-headers: {names}");
    let method = "access-control-request-method: POST";
    let preflight = ["host: 10.0.0.5", "origin: https://app.example", method, &asks];
    let reply = ask(&server, "OPTIONS", CHAT, &preflight).await;
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    assert_eq!(reply.header("access-control-allow-headers"), Some(names));
    assert_eq!(reply.header("access-control-allow-methods"), Some("POST"));
    let app = ["host: 10.0.0.5", "origin: https://app.example", "x-stainless-os: Linux", JSON];
    let reply = ask(&server, "POST", CHAT, &app).await;
    assert!(
        reply.header("access-control-expose-headers").is_some_and(|names| names.contains("x-request-id"))
    );
    let unknown = ask(&server, "POST", "/v1/nowhere", &app).await;
    assert_eq!(
        (unknown.status, unknown.header("access-control-allow-origin")),
        (404, Some("https://app.example"))
    );
    let other = ["host: 10.0.0.5", "origin: https://other.example", "access-control-request-method: POST"];
    let reply = ask(&server, "OPTIONS", CHAT, &other).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn pages_of_allowed_origins_can_read_why_a_head_is_refused() {
    let allowed = "https://app.example";
    let server = public(|config| {
        config.access.allowed_origins = vec![allowed.to_owned()];
        config.api.max_body_bytes = 10;
    })
    .await;
    for (origin, expected) in [(allowed, (413, Some(allowed))), ("https://other.example", (403, None))] {
        let origin = format!("origin: {origin}");
        let reply = ask(&server, "POST", CHAT, &["host: 10.0.0.5", &origin, JSON]).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), expected, "{origin}");
        let can_read_id = reply.header("access-control-expose-headers").is_some();
        assert_eq!(can_read_id, expected.1.is_some(), "{origin}");
    }
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

#[tokio::test]
async fn the_operator_chooses_what_pages_may_send() {
    let server = public(|config| {
        config.access.allowed_origins = vec!["*".to_owned()];
        config.access.allowed_methods = vec!["GET".to_owned()];
        config.access.allowed_headers = vec!["x-one".to_owned(), "x-two".to_owned()];
        config.access.allow_credentials = true;
    })
    .await;
    let page = ["host: 10.0.0.5", "origin: https://any.example", "access-control-request-method: POST"];
    let reply = ask(&server, "OPTIONS", CHAT, &page).await;
    for (name, value) in [
        ("access-control-allow-origin", "https://any.example"),
        ("access-control-allow-methods", "GET"),
        ("access-control-allow-headers", "x-one,x-two"),
        ("access-control-allow-credentials", "true"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    for (setting, change) in [
        (
            "allowed_origins",
            (|config: &mut GatewayConfig| config.access.allowed_origins = vec!["a.example".into()])
                as fn(&mut GatewayConfig),
        ),
        ("allowed_methods", |config: &mut GatewayConfig| config.access.allowed_methods = vec!["G T".into()]),
        ("allowed_headers", |config| config.access.allowed_headers = vec!["x y".into()]),
        ("root_path", |config| config.server.root_path = "llm/".into()),
    ] {
        let mut config = GatewayConfig::default();
        change(&mut config);
        let error = Gateway::loading(config, Default::default()).expect_err(setting).to_string();
        assert!(error.starts_with(setting), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_that_forwards_its_own_name_is_told_the_flag() {
    let proxied = ["host: chat.example.org", "x-forwarded-for: 10.1.2.3"];
    let page = ["host: chat.example.org", "origin: https://chat.example.org", JSON];
    // Many proxies replace the name, but not the origin.
    let renamed = ["host: 127.0.0.1:8000", "origin: https://chat.example.org", JSON];
    let server = Server::start(Setup::default()).await;
    for fields in [&proxied[..], &page, &renamed] {
        let reply = ask(&server, "POST", CHAT, &with_json(&fields[..fields.len().min(2)])).await;
        assert_eq!(reply.error().3, "forbidden_origin");
        assert!(reply.text().contains("--allowed-hosts"), "{}", reply.text());
    }
    for allowed in ["chat.example.org", "*"] {
        let mut setup = Setup::default();
        setup.config.access.allowed_hosts = vec![allowed.to_owned()];
        let server = Server::start(setup).await;
        assert_eq!(ask(&server, "POST", CHAT, &with_json(&proxied)).await.status, 200);
        assert_eq!(ask(&server, "POST", CHAT, &page).await.status, 200);
        let status = ask(&server, "POST", CHAT, &renamed).await.status;
        assert_eq!(status, if allowed == "*" { 403 } else { 200 }, "any host is not any origin");
        let foreign = ["host: chat.example.org", "origin: https://evil.example", JSON];
        assert_eq!(ask(&server, "POST", CHAT, &foreign).await.status, 403);
    }
}

#[tokio::test]
async fn a_path_before_all_routes() {
    let mut setup = Setup::default();
    setup.config.server.root_path = "/llm".to_owned();
    let server = Server::start(setup).await;
    let local = ["host: localhost"];
    for path in ["/llm/v1/models", "/v1/models", "/llm/", "/", "/llm/ui/app.js", "/llm/health"] {
        assert_eq!(ask(&server, "GET", path, &local).await.status, 200, "{path}");
    }
    assert_eq!(ask(&server, "POST", "/llm/v1/chat/completions", &with_json(&local)).await.status, 200);
    let reply = ask(&server, "GET", "/llm", &local).await;
    assert_eq!((reply.status, reply.header("location")), (308, Some("/llm/")));
    assert_eq!(ask(&server, "GET", "/llms/v1/models", &local).await.status, 404);
    // Under a path, what the page loads and asks must not begin with a slash.
    let page = ask(&server, "GET", "/llm/", &local).await;
    assert!(!page.text().contains("=\"/"), "{}", page.text());
    let script = ask(&server, "GET", "/llm/ui/app.js", &local).await;
    assert!(!script.text().contains("fetch(\"/"));
}
