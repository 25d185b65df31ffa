//! A classifier that is another server: prompts and answers that it does not allow are not sent, within its
//! deadline, and when it does not answer the operator's choice holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{END, Reply, Server, Setup, chat, completion};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_gateway::{ClassifierConfig, OnFailure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const ANSWER: &str = "The password is hunter2, keep it.";

/// How the classifier answers.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Texts with "hunter2" are of the category "secrets".
    Judging,
    /// Not at all.
    Silent,
    /// With what is no judgement.
    Nonsense,
}

/// A classifier on a socket of its own: its URL, and how many texts it was asked about.
async fn classifier(manner: Manner) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let url = format!("http://{}/v1/moderations", listener.local_addr().expect("an address"));
    let n_texts = Arc::new(AtomicUsize::new(0));
    let counted = n_texts.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(judge(stream, manner, counted.clone()));
        }
    });
    (url, n_texts)
}

async fn judge(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    manner: Manner,
    n_texts: Arc<AtomicUsize>,
) -> Option<()> {
    let mut received = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&received).into_owned();
        let whole = text.split_once("\r\n\r\n").and_then(|(head, body)| {
            let head = head.to_ascii_lowercase();
            let length: usize =
                head.lines().find_map(|l| l.strip_prefix("content-length:"))?.trim().parse().ok()?;
            (body.len() >= length).then(|| serde_json::from_str::<Value>(&body[..length]).ok()).flatten()
        });
        let Some(question) = whole else {
            if stream.read_buf(&mut received).await.ok()? == 0 {
                return None;
            }
            continue;
        };
        received.clear();
        let texts = question["input"].as_array()?;
        n_texts.fetch_add(texts.len(), Ordering::Relaxed);
        let results: Vec<Value> = texts
            .iter()
            .map(|text| {
                let is_flagged = text.as_str().is_some_and(|text| text.contains("hunter2"));
                json!({"flagged": is_flagged, "categories": {"secrets": is_flagged, "violence": false}})
            })
            .collect();
        let body = match manner {
            Manner::Judging => json!({"results": results}).to_string(),
            Manner::Nonsense => json!({"results": []}).to_string(),
            Manner::Silent => std::future::pending().await,
        };
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// Says the same whatever it is asked, a byte a token. Only requests with a penalty bring their history
/// along.
fn always_the_same(batch: &ScheduledBatch, scheduled: &ScheduledSequence, output: &mut StepOutput) {
    let n_output = batch.history(scheduled, 0).len() - scheduled.n_prompt as usize;
    let token = ANSWER.as_bytes().get(n_output).map_or(END, |&byte| byte.into());
    output.push_sampled(TokenLogprob { token, logprob: -1.0, rank: 1 }, &[]);
}

async fn server(url: &str, change: impl FnOnce(&mut ClassifierConfig)) -> Server {
    let mut setup = Setup::default();
    let mut classifier: ClassifierConfig = serde_json::from_value(json!({"url": url})).expect("a setting");
    classifier.timeout_ms = 30_000;
    change(&mut classifier);
    setup.config.moderation.classifier = Some(classifier);
    Server::answering(setup, always_the_same).await
}

async fn post(server: &Server, path: &str, body: &Value) -> Reply {
    server.connect().await.post(path, body).await
}

fn fields(stream: bool) -> Value {
    json!({"max_tokens": 60, "repetition_penalty": 1.1, "stream": stream})
}

/// The text and the reason of a chat's end, whole or streamed.
async fn answered(server: &Server, stream: bool) -> (String, Value) {
    let reply = post(server, "/v1/chat/completions", &chat(fields(stream))).await;
    if !stream {
        let choice = &reply.json()["choices"][0];
        return (
            choice["message"]["content"].as_str().unwrap_or_default().to_owned(),
            choice["finish_reason"].clone(),
        );
    }
    let chunks = reply.chunks();
    let text = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    (text, chunks.last().expect("chunks")["choices"][0]["finish_reason"].clone())
}

#[tokio::test]
async fn nothing_of_an_answer_is_sent_that_was_not_judged() {
    let (url, n_texts) = classifier(Manner::Judging).await;
    for window in 1..=ANSWER.len() + 1 {
        let server = server(&url, |classifier| classifier.output_window_bytes = window).await;
        for stream in [false, true] {
            let (text, reason) = answered(&server, stream).await;
            assert_eq!(reason, "content_filter", "window {window}");
            assert!(ANSWER.starts_with(&text) && !text.contains("hunter2"), "window {window}: {text}");
            // With small windows the answer is sent up to where it became forbidden.
            assert!(window > 8 || text.starts_with("The pass"), "window {window}: {text}");
        }
        server.idle().await;
    }
    assert!(n_texts.load(Ordering::Relaxed) > 4 * ANSWER.len(), "it was asked again and again");
}

#[tokio::test]
async fn prompts_are_judged_first() {
    let (url, _) = classifier(Manner::Judging).await;
    let server = server(&url, |classifier| classifier.output = false).await;
    let body = completion(json!({"prompt": "is it hunter2?", "max_tokens": 3}));
    let (status, _, param, code) = post(&server, "/v1/completions", &body).await.error();
    assert_eq!((status, param, code.as_str()), (400, json!("prompt"), "content_filter"));
    let (text, reason) = answered(&server, true).await;
    assert_eq!((text.as_str(), reason), (ANSWER, json!("stop")), "answers are not judged");
    let body = json!({"input": ["fine", "hunter2"]});
    let results = post(&server, "/v1/moderations", &body).await.json()["results"].clone();
    assert_eq!((&results[0]["flagged"], &results[1]["flagged"]), (&json!(false), &json!(true)));
    assert_eq!(results[1]["categories"]["secrets"], json!(true));
    let metrics = server.connect().await.get("/metrics").await;
    assert!(metrics.text().contains("throng_moderated_prompts_total 1"), "{}", metrics.text());
}

#[tokio::test]
async fn without_a_judgement_the_operators_choice_holds() {
    for manner in [Manner::Silent, Manner::Nonsense] {
        let (url, _) = classifier(manner).await;
        let at_once = |on_failure| {
            move |classifier: &mut ClassifierConfig| {
                classifier.on_failure = on_failure;
                if manner == Manner::Silent {
                    classifier.timeout_ms = 20;
                }
            }
        };
        let closed = server(&url, at_once(OnFailure::Refuse)).await;
        let reply = post(&closed, "/v1/chat/completions", &chat(fields(true))).await;
        assert_eq!((reply.status, reply.error().3.as_str()), (503, "moderation_unavailable"));
        assert!(reply.header("retry-after").is_some());
        let open = server(&url, at_once(OnFailure::Allow)).await;
        for stream in [false, true] {
            assert_eq!(answered(&open, stream).await, (ANSWER.to_owned(), json!("stop")));
        }
        let only_output = server(&url, |classifier| {
            at_once(OnFailure::Refuse)(classifier);
            classifier.input = false;
        })
        .await;
        assert_eq!(answered(&only_output, true).await, (String::new(), json!("content_filter")));
        tokio::time::timeout(Duration::from_secs(30), only_output.idle()).await.expect("it ends");
    }
}

#[tokio::test]
async fn a_classifier_is_asked_over_tls_if_its_certificate_is_trusted() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, cert.pem()).expect("written");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let url =
        format!("https://localhost:{}/v1/moderations", listener.local_addr().expect("an address").port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(judge(stream, Manner::Judging, Arc::default()));
            }
        }
    });
    let body = completion(json!({"prompt": "is it hunter2?", "max_tokens": 3}));
    let trusted = server(&url, |classifier| classifier.ca = Some(ca)).await;
    let reply = post(&trusted, "/v1/completions", &body).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (400, "content_filter"));
    let CertifiedKey { cert, .. } = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = folder.path().join("other.pem");
    std::fs::write(&other, cert.pem()).expect("written");
    let untrusted = server(&url, |classifier| classifier.ca = Some(other)).await;
    let reply = post(&untrusted, "/v1/completions", &body).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (503, "moderation_unavailable"));
}
