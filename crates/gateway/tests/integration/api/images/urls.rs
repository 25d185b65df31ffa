//! Images at URLs: fetched for models of this server from the hosts that the operator lists, over every API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::{SQUARE, answer, asking, data_url, image, said, setup, text};
use crate::harness::{Client, PATIENCE, Server, Setup};

/// A host of [`SQUARE`] on loopback.
struct Host {
    address: SocketAddr,
    n_requests: Arc<AtomicUsize>,
    /// Notified when a request for `/stalls` has come, and when its connection has been closed.
    stalled: Arc<Notify>,
    left: Arc<Notify>,
}

impl Host {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (n_requests, stalled, left) = (Arc::<AtomicUsize>::default(), Arc::default(), Arc::default());
        let host = Self { address, n_requests, stalled, left };
        let (count, stalled, left) = (host.n_requests.clone(), host.stalled.clone(), host.left.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 4096];
                let n = stream.read(&mut head).await.unwrap_or(0);
                count.fetch_add(1, Ordering::SeqCst);
                let target = String::from_utf8_lossy(&head[..n]).split(' ').nth(1).unwrap_or("").to_owned();
                let body = match target.as_str() {
                    "/stalls" => {
                        stalled.notify_one();
                        while stream.read(&mut head).await.is_ok_and(|n| n > 0) {}
                        left.notify_one();
                        continue;
                    }
                    "/page" => b"<html>no image</html>",
                    _ => SQUARE,
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(body).await;
            }
        });
        host
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn n_requests(&self) -> usize {
        self.n_requests.load(Ordering::SeqCst)
    }
}

async fn server(hosts: &[String], takes_images: bool) -> Server {
    let mut setup: Setup = setup(takes_images);
    setup.config.api.allowed_media_domains = hosts.to_vec();
    Server::start(setup).await
}

async fn server_of(host: &Host) -> Server {
    server(&[format!("private:{}", host.address)], true).await
}

/// Path and code of a refusal with status 400.
async fn refused(client: &mut Client, url: &str) -> (Value, String) {
    let reply = client.post("/v1/chat/completions", &asking(&[text("a"), image(url)])).await;
    let error = reply.json()["error"].clone();
    assert_eq!(reply.status, 400, "{error}");
    (error["param"].clone(), error["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn a_fetched_image_is_the_same_as_a_sent_one_in_every_api() {
    let host = Host::start().await;
    let server = server_of(&host).await;
    let mut client = server.connect().await;
    let url = host.url("/a.png");
    let sent = answer(&mut client, &asking(&[image(&data_url(SQUARE)), text("What?")])).await;
    let fetched = answer(&mut client, &asking(&[image(&url), text("What?")])).await;
    assert_eq!(said(&sent), said(&fetched));
    assert_eq!(fetched["usage"]["prompt_tokens_details"]["image_tokens"], 16);
    let cached = fetched["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached > Some(0), "the same image, wherever it came from: {fetched}");

    let mut streamed = asking(&[image(&url), text("What?")]);
    streamed["stream"] = json!(true);
    let chunks = client.post("/v1/chat/completions", &streamed).await.chunks();
    let content = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(chunks.iter().filter_map(content).collect::<String>(), said(&sent));

    let parts = json!([{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]);
    let input = json!([{"role": "user", "content": parts}]);
    let body = json!({"model": "paper", "temperature": 0, "max_output_tokens": 8, "input": input});
    let reply = client.post("/v1/responses", &body).await.json();
    assert_eq!(reply["output"][0]["content"][0]["text"], said(&sent), "{reply}");
    let counted = client.post("/v1/responses/input_tokens", &json!({"model": "paper", "input": input})).await;
    assert_eq!(counted.json()["input_tokens"], sent["usage"]["prompt_tokens"]);

    let source = json!({"type": "url", "url": url});
    let content = json!([{"type": "image", "source": source}, text("What?")]);
    let messages = json!([{"role": "user", "content": content}]);
    let body = json!({"model": "paper", "max_tokens": 8, "temperature": 0, "messages": messages});
    let reply = client.post("/v1/messages", &body).await.json();
    assert_eq!(reply["content"][0]["text"], said(&sent), "{reply}");
    let counted =
        client.post("/v1/messages/count_tokens", &json!({"model": "paper", "messages": messages})).await;
    assert_eq!(counted.json()["input_tokens"], sent["usage"]["prompt_tokens"]);

    let body = json!({"model": "paper", "messages": asking(&[image(&url), text("What?")])["messages"]});
    let tokens = client.post("/tokenize", &body).await.json();
    assert_eq!(tokens["count"], sent["usage"]["prompt_tokens"], "{tokens}");
    assert_eq!(tokens["image_spans"][0]["n_tokens"], 16);
    assert_eq!(host.n_requests(), 7);
}

#[tokio::test]
async fn nothing_is_fetched_unless_the_operator_lists_the_host() {
    let host = Host::start().await;
    let at = json!("messages[0].content[1].image_url");
    let code = |code: &str| (at.clone(), code.to_owned());
    let closed = server(&[], true).await;
    let mut client = closed.connect().await;
    assert_eq!(refused(&mut client, "https://example.com/a.png").await, code("unsupported_parameter"));
    let inner = (json!("messages[0].content[1].image_url.url"), "invalid_image_url".to_owned());
    assert_eq!(refused(&mut client, &host.url("/a.png")).await, inner);

    let server = server(&["images.test".to_owned()], true).await;
    let mut client = server.connect().await;
    assert_eq!(refused(&mut client, "https://example.com/a.png").await, code("image_host_not_allowed"));
    for url in [host.url("/a.png"), "file:///etc/passwd".to_owned(), "http://me@images.test/".to_owned()] {
        assert_eq!(refused(&mut client, &url).await, inner, "{url}");
    }
    assert_eq!(host.n_requests(), 0);
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_by_its_place() {
    let host = Host::start().await;
    let server = server_of(&host).await;
    let mut client = server.connect().await;
    let at = json!("messages[0].content[1].image_url");
    let page = refused(&mut client, &host.url("/page")).await;
    assert_eq!(page, (at, "invalid_image".to_owned()), "the content decides");
    // Each API names the image in its own way.
    let part = json!({"type": "input_image", "image_url": host.url("/page")});
    let input = json!([{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]);
    let reply = client.post("/v1/responses", &json!({"model": "paper", "input": input})).await;
    assert_eq!(reply.json()["error"]["param"], "input[1].content[0].image_url");
    let source = json!({"type": "url", "url": host.url("/page")});
    let message = json!({"role": "user", "content": [{"type": "image", "source": source}]});
    let body = json!({"model": "paper", "max_tokens": 4, "messages": [message]});
    let error = client.post("/v1/messages", &body).await.json()["error"].clone();
    assert!(error["message"].as_str().is_some_and(|text| text.contains("messages[0].content[0]")), "{error}");
    // A model of text takes no image, so that none is fetched.
    let of_text = self::server(&[format!("private:{}", host.address)], false).await;
    let mut client = of_text.connect().await;
    assert_eq!(refused(&mut client, &host.url("/a.png")).await.1, "unsupported_parameter");
    let mut absent = asking(&[image(&host.url("/a.png"))]);
    absent["model"] = json!("absent");
    let mut client = server.connect().await;
    assert_eq!(client.post("/v1/chat/completions", &absent).await.status, 404);
    assert_eq!(host.n_requests(), 3);
}

#[tokio::test]
async fn a_download_ends_when_its_client_goes() {
    let host = Host::start().await;
    let server = server_of(&host).await;
    for path in ["/v1/chat/completions", "/tokenize"] {
        let mut client = server.connect().await;
        let mut body = asking(&[image(&host.url("/stalls"))]);
        if path == "/tokenize" {
            body = json!({"model": "paper", "messages": body["messages"]});
        }
        client.send(crate::harness::post_bytes(path, &body.to_string(), &[])).await;
        tokio::time::timeout(PATIENCE, host.stalled.notified()).await.expect("it is asked for");
        drop(client);
        tokio::time::timeout(PATIENCE, host.left.notified()).await.expect("the connection is closed");
    }
    // The server goes on.
    let mut client = server.connect().await;
    answer(&mut client, &asking(&[image(&host.url("/a.png"))])).await;
}
