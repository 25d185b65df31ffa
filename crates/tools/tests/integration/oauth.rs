//! An MCP server whose tokens come from an authorization server, over HTTP on this machine.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::json;
use throng_core::secret::Secret;
use throng_tools::{OauthConfig, ServerConfig, Toolbox, ToolsConfig};

use crate::mcp_server;

const SECRET: &str = "p/a+ss word";

/// What the authorization server has seen, and how it behaves.
#[derive(Debug, Default)]
struct Authority {
    asked: Mutex<Vec<(Option<String>, String)>>,
    n_given: AtomicU32,
    lifetime_s: AtomicU64,
    reads_body: bool,
    answer: Option<(u16, &'static str)>,
}

async fn token(State(own): State<Arc<Authority>>, headers: HeaderMap, body: String) -> (StatusCode, String) {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    let is_known = if own.reads_body {
        body.contains("client_id=throng&client_secret=p%2Fa%2Bss%20word")
    } else {
        // "throng:p%2Fa%2Bss%20word" in base64.
        authorization == Some("Basic dGhyb25nOnAlMkZhJTJCc3MlMjB3b3Jk")
    };
    own.asked.lock().expect("no panic").push((authorization.map(str::to_owned), body));
    if let Some((status, text)) = own.answer {
        return (StatusCode::from_u16(status).expect("a status"), text.to_owned());
    }
    if !is_known {
        return (StatusCode::UNAUTHORIZED, json!({"error": "invalid_client"}).to_string());
    }
    let n = own.n_given.fetch_add(1, Ordering::SeqCst) + 1;
    let lifetime_s = own.lifetime_s.load(Ordering::SeqCst);
    let granted = json!({"access_token": format!("t{n}"), "token_type": "Bearer", "expires_in": lifetime_s});
    (StatusCode::OK, granted.to_string())
}

async fn start(authority: Authority) -> (String, Arc<Authority>) {
    let authority = Arc::new(authority);
    let router = Router::new().route("/token", post(token)).with_state(authority.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/token"), authority)
}

fn toolbox(origin: &str, token_url: &str) -> Toolbox {
    let oauth = OauthConfig {
        token_url: token_url.to_owned(),
        client_id: "throng".to_owned(),
        client_secret: Secret::new(SECRET.to_owned()),
        scopes: vec!["tools:read".to_owned(), "tools:call".to_owned()],
    };
    let url = Some(format!("{origin}/mcp"));
    let server = ServerConfig { name: "own".to_owned(), url, oauth: Some(oauth), ..ServerConfig::default() };
    let pins = Some(tempfile::tempdir().expect("a folder").path().join("pins.json"));
    Toolbox::open(&ToolsConfig { pins, server: vec![server], ..ToolsConfig::default() }).expect("a toolbox")
}

async fn shout(toolbox: &Toolbox) -> Result<String, String> {
    let called = toolbox.call("own", "shout", r#"{"text": "hi"}"#).await;
    called.map_err(|failure| format!("{failure:?}"))
}

#[tokio::test]
async fn a_token_is_got_once_and_again_before_it_expires() {
    for reads_body in [false, true] {
        let (origin, seen) = mcp_server::start().await;
        let lifetime_s = AtomicU64::new(3_600);
        let (token_url, authority) =
            start(Authority { reads_body, lifetime_s, ..Authority::default() }).await;
        let toolbox = toolbox(&origin, &token_url);
        let sent = || seen.authorization.lock().expect("no panic").clone();
        for _ in 0..3 {
            assert_eq!(shout(&toolbox).await.as_deref(), Ok("HI"));
            assert_eq!(sent().as_deref(), Some("Bearer t1"));
        }
        let asked = authority.asked.lock().expect("no panic").clone();
        assert_eq!(asked.len(), 1 + usize::from(reads_body), "the header is tried first");
        let resource = origin.replace(':', "%3A").replace('/', "%2F");
        let form = format!(
            "grant_type=client_credentials&resource={resource}%2Fmcp&scope=tools%3Aread%20tools%3Acall"
        );
        assert!(asked.iter().all(|(_, body)| body.starts_with(&form)), "{asked:?} {form}");
        assert_eq!(asked.last().map(|(header, _)| header.is_none()), Some(reads_body));
    }
    let (origin, seen) = mcp_server::start().await;
    let (token_url, _authority) = start(Authority::default()).await;
    let toolbox = toolbox(&origin, &token_url);
    for n in 1..4 {
        // A token without a life is for one call.
        assert_eq!(shout(&toolbox).await.as_deref(), Ok("HI"));
        assert_eq!(*seen.authorization.lock().expect("no panic"), Some(format!("Bearer t{n}")));
    }
}

#[tokio::test]
async fn a_refusal_is_told_without_secrets_and_addresses() {
    for (status, text, words) in [
        (400, r#"{"error": "invalid_scope"}"#, "invalid_scope"),
        (401, r#"{"error": "invalid_client"}"#, "invalid_client"),
        (500, "<html>", "gives no token"),
        (200, "<html>", "is not that of OAuth"),
        (200, r#"{"access_token": "a", "token_type": "mac"}"#, "than a bearer's"),
        (200, r#"{"access_token": "a\nb", "token_type": "bearer"}"#, "no header's"),
        (302, "", "gives no token"),
    ] {
        let (origin, seen) = mcp_server::start().await;
        let (token_url, _) = start(Authority { answer: Some((status, text)), ..Authority::default() }).await;
        let failure = shout(&toolbox(&origin, &token_url)).await.expect_err(words);
        assert!(failure.contains(words), "{failure}");
        for secret in [SECRET, "p%2Fa", &token_url, &origin] {
            assert!(!failure.contains(secret), "{failure}");
        }
        assert_eq!(*seen.calls.lock().expect("no panic"), [""; 0]);
    }
    let gone = shout(&toolbox("http://127.0.0.1:9", "http://127.0.0.1:9/token")).await.expect_err("nobody");
    assert!(gone.contains("its authorization server does not answer") && !gone.contains(":9"), "{gone}");
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let oauth = |token_url: &str, secret: &str| {
        Some(OauthConfig {
            token_url: token_url.to_owned(),
            client_id: "a".to_owned(),
            client_secret: Secret::new(secret.to_owned()),
            scopes: Vec::new(),
        })
    };
    let url = Some("http://127.0.0.1:9/mcp".to_owned());
    let named = ServerConfig { name: "own".to_owned(), ..ServerConfig::default() };
    let headers = [("Authorization".to_owned(), Secret::new("Bearer x".to_owned()))].into();
    let good = oauth("http://127.0.0.1:9/token", "s");
    for (server, words) in [
        (ServerConfig { url: url.clone(), oauth: oauth("ftp://a", "s"), ..named.clone() }, "token_url"),
        (ServerConfig { url: url.clone(), oauth: oauth("http://a", ""), ..named.clone() }, "client_secret"),
        (ServerConfig { url, oauth: good.clone(), headers, ..named.clone() }, "both oauth and a header"),
        (ServerConfig { command: Some("x".to_owned()), oauth: good, ..named }, "needs a url"),
    ] {
        let pins = Some("pins.json".into());
        let opened = Toolbox::open(&ToolsConfig { pins, server: vec![server], ..ToolsConfig::default() });
        let fault = opened.expect_err(words).to_string();
        assert!(fault.contains(words), "{fault}");
    }
}
