//! HTTP endpoints as tools.

use axum::extract::{Path, Query};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use throng_api::answer::CallFailure;
use throng_tools::{HttpToolConfig, Toolbox, ToolsConfig};

async fn endpoint() -> String {
    let router =
        Router::new()
            .route(
                "/cities/{city}/weather",
                get(|Path(city): Path<String>, Query(query): Query<Value>| async move {
                    format!("{city} {query}")
                }),
            )
            .route("/orders", post(|Json(body): Json<Value>| async move { Json(json!({"ordered": body})) }))
            .route("/broken", post(|| async { (axum::http::StatusCode::BAD_GATEWAY, "no") }))
            .route("/long", get(|| async { "ö".repeat(100_000) }))
            .route("/odd", get(|| async { format!("a{}", "ö".repeat(100_000)) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    origin
}

fn tool(name: &str, method: &str, url: String) -> HttpToolConfig {
    serde_json::from_value(json!({
        "server": "web", "name": name, "description": "Does it.", "method": method, "url": url,
        "headers": {"x-key": "secret"}, "limits": {"breaker_failures": 2},
    }))
    .expect("a tool")
}

#[tokio::test]
async fn arguments_fill_the_path_the_query_and_the_body() {
    let origin = endpoint().await;
    let http = vec![
        tool("weather", "get", format!("{origin}/cities/{{city}}/weather")),
        tool("order", "POST", format!("{origin}/orders")),
        tool("broken", "POST", format!("{origin}/broken")),
        tool("long", "GET", format!("{origin}/long")),
        tool("odd", "GET", format!("{origin}/odd")),
    ];
    let toolbox = Toolbox::open(&ToolsConfig { http, ..ToolsConfig::default() }).expect("a toolbox");
    let call = async |name: &str, arguments: Value| toolbox.call("web", name, &arguments.to_string()).await;
    let told = call("weather", json!({"city": "Malmö/..", "days": 2})).await;
    assert_eq!(told, Ok(r#"Malmö/.. {"days":"2"}"#.to_owned()));
    assert_eq!(call("order", json!({"n": 1})).await, Ok(r#"{"ordered":{"n":1}}"#.to_owned()));
    for bad in [json!({"city": ".."}), json!({})] {
        assert!(matches!(call("weather", bad).await, Err(CallFailure::Unanswered { status: 400, .. })));
    }
    for (name, n_bytes) in [("long", 65_536), ("odd", 65_535)] {
        let long = call(name, json!({})).await.expect("a text");
        let note = format!("\n[cut after {n_bytes} bytes]");
        assert!(long.ends_with(&format!("ö{note}")), "{} bytes", long.len());
        assert_eq!(long.len(), n_bytes + note.len());
    }
    for status in [502, 502, 503] {
        let failure = call("broken", json!({})).await.expect_err("broken");
        assert!(matches!(failure, CallFailure::Unanswered { status: s, .. } if s == status), "{failure:?}");
    }
}

#[test]
fn a_url_whose_host_is_an_argument_is_refused() {
    for url in ["http://{host}/a", "http://a.{host}/", "ftp://a/", "https://user@a/"] {
        let config = ToolsConfig { http: vec![tool("a", "GET", url.to_owned())], ..ToolsConfig::default() };
        let error = Toolbox::open(&config).expect_err(url).to_string();
        assert!(error.starts_with("gateway.tools.http.url of 'a':"), "{error}");
    }
}
