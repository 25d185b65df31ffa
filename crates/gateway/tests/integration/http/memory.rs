//! The memory of requests is counted and bounded, over real sockets: bodies, answers, waiting requests.

use std::time::Duration;

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};

const BODY_BYTES: usize = 1 << 20;

/// The reported memory of a part.
async fn held(probe: &mut Client, part: &str) -> usize {
    let reply = probe.get("/metrics").await;
    let name = format!("throng_memory_bytes{{part=\"{part}\"}} ");
    let value = reply.text().lines().find_map(|line| line.strip_prefix(&name)).expect("the part is counted");
    value.parse().expect("a number")
}

async fn until_nothing_is_held(probe: &mut Client) {
    for part in ["bodies", "prompts", "answers"] {
        let freed = async { while held(probe, part).await > 0 {} };
        tokio::time::timeout(PATIENCE, freed).await.unwrap_or_else(|_| panic!("{part} are freed"));
    }
}

/// A server with a memory limit that some bodies of `BODY_BYTES` fit into at once.
fn small() -> Setup {
    let mut setup = Setup::default();
    setup.config.api.max_body_bytes = BODY_BYTES;
    setup.config.api.max_answer_bytes = BODY_BYTES;
    setup.config.server.max_request_memory_bytes = 12 << 20;
    setup
}

/// A chat with a body of the maximum size, most of which is an unknown parameter.
fn large_chat(fields: Value) -> Vec<u8> {
    let mut body = chat(fields);
    let n = BODY_BYTES - body.to_string().len() - r#","junk":"""#.len();
    body["junk"] = json!("x".repeat(n));
    post_bytes("/v1/chat/completions", &body.to_string(), &[])
}

fn is_overloaded(reply: &Reply) {
    let (status, error_type, _, code) = reply.error();
    assert_eq!(
        (status, error_type.as_str(), code.as_str()),
        (503, "server_error", "overloaded"),
        "{reply:?}"
    );
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
}

#[tokio::test]
async fn full_memory_refuses_at_once_and_still_serves_ordinary_requests() {
    let server = Server::start(small()).await;
    let mut probe = server.connect().await;
    assert!(probe.get("/metrics").await.text().contains("throng_memory_limit_bytes 12582912"));
    let body = large_chat(json!({"max_tokens": 1}));
    let (mut waiting, mut refused) = (Vec::new(), 0);
    while refused < 3 {
        let before = held(&mut probe, "bodies").await;
        let mut client = server.connect().await;
        client.send(&body[..body.len() - 1]).await;
        // Either everything sent so far is held, or there is an answer.
        let is_held = loop {
            if held(&mut probe, "bodies").await >= before + BODY_BYTES - 1 {
                break true;
            }
            let mut byte = [0];
            let answered = client.stream.peek(&mut byte);
            if tokio::time::timeout(Duration::from_millis(1), answered).await.is_ok() {
                break false;
            }
        };
        if is_held {
            waiting.push(client);
        } else {
            refused += 1;
            is_overloaded(&client.reply().await.expect("a response"));
        }
        assert!(waiting.len() < 12, "more than the bound is held");
    }
    assert!(waiting.len() >= 6, "{} bodies filled it", waiting.len());
    let reply = probe.post("/v1/chat/completions", &chat(json!({"max_tokens": 2}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    drop(waiting);
    until_nothing_is_held(&mut probe).await;
    let mut client = server.connect().await;
    client.send(&body).await;
    assert_eq!(client.reply().await.expect("a response").status, 200);
}

#[tokio::test]
async fn a_running_request_does_not_hold_its_body() {
    let mut setup = small();
    setup.step_time = Duration::from_millis(5);
    let server = Server::start(setup).await;
    let mut probe = server.connect().await;
    let mut client = server.connect().await;
    client.send(large_chat(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true}))).await;
    client.read_until("\"content\"").await;
    assert_eq!(held(&mut probe, "bodies").await, 0);
    let prompts = held(&mut probe, "prompts").await;
    assert!((1..10_000).contains(&prompts), "{prompts}");
    drop(client);
    until_nothing_is_held(&mut probe).await;
}

#[tokio::test]
async fn an_answer_that_repeats_too_much_is_refused_before_anything_is_computed() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let prompt = "a".repeat(3000);
    let refused = async |client: &mut Client, path: &str, body: Value, param: &str| {
        let reply = client.post(path, &body).await;
        let (status, _, found, code) = reply.error();
        assert_eq!(
            (status, found, code.as_str()),
            (400, json!(param), "answer_too_large"),
            "{}",
            reply.text()
        );
    };
    for fields in [
        json!({"prompt": prompt, "n": 128, "max_tokens": 1, "prompt_logprobs": 20}),
        json!({"prompt": prompt, "n": 128, "max_tokens": 1, "echo": true, "logprobs": 20}),
        json!({"prompt": prompt, "n": 128, "max_tokens": 1, "echo": true, "logprobs": 20, "stream": true}),
    ] {
        refused(&mut client, "/v1/completions", completion(fields), "n").await;
    }
    let fields = json!({"prompt": vec![prompt.as_str(); 20], "max_tokens": 1, "prompt_logprobs": 20});
    refused(&mut client, "/v1/completions", completion(fields), "prompt_logprobs").await;
    let fields = json!({"n": 128, "max_tokens": 2000, "logprobs": true, "top_logprobs": 20});
    refused(&mut client, "/v1/chat/completions", chat(fields), "max_tokens").await;
    assert_eq!(server.engine.stats().scheduler.counters.steps, 0);
    // Log-probabilities that are reported once are not refused, nor is an unset `max_tokens`.
    let fields = json!({"n": 8, "max_tokens": 1, "prompt_logprobs": 20, "stop_token_ids": [1]});
    assert_eq!(client.post("/v1/chat/completions", &chat(fields)).await.status, 200);
    let fields = json!({"logprobs": true, "top_logprobs": 20});
    assert_eq!(client.post("/v1/chat/completions", &chat(fields)).await.status, 200);
}

#[tokio::test]
async fn an_answer_that_grows_too_large_ends() {
    let server = Server::start(small()).await;
    let mut client = server.connect().await;
    let fields = json!({"n": 4, "ignore_eos": true, "logprobs": true, "top_logprobs": 20});
    let reply = client.post("/v1/chat/completions", &chat(fields)).await;
    let (status, _, param, code) = reply.error();
    assert_eq!((status, param, code.as_str()), (400, json!("max_tokens"), "answer_too_large"));
    server.idle().await;
    until_nothing_is_held(&mut client).await;
}

/// The text and the four lists of `logprobs` of all choices, put together from the chunks of a stream.
fn joined(chunks: &[Value], n: usize) -> Vec<(String, [Vec<Value>; 4])> {
    let mut choices = vec![(String::new(), [const { Vec::new() }; 4]); n];
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices")) {
        let (text, lists) = &mut choices[choice["index"].as_u64().expect("an index") as usize];
        text.push_str(choice["text"].as_str().expect("text"));
        for (list, name) in lists.iter_mut().zip(LISTS) {
            list.extend(choice["logprobs"][name].as_array().into_iter().flatten().cloned());
        }
    }
    choices
}

const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

#[tokio::test]
async fn a_large_echo_is_the_same_whole_and_in_many_events() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let prompt = "ä quite long prompt, ".repeat(180);
    let mut fields =
        json!({"prompt": prompt, "n": 3, "max_tokens": 4, "echo": true, "logprobs": 3, "seed": 1});
    let whole = client.post("/v1/completions", &completion(fields.clone())).await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert!(whole.header("content-length").is_some());
    assert!(whole.body.len() > 512 << 10, "{} bytes", whole.body.len());
    let whole = whole.json();
    fields["stream"] = json!(true);
    let reply = client.post("/v1/completions", &completion(fields)).await;
    let longest = reply.events().iter().map(String::len).max().expect("events");
    assert!(longest <= 48 << 10, "an event of {longest} bytes");
    let streamed = joined(&reply.chunks(), 3);
    for (choice, (text, lists)) in whole["choices"].as_array().expect("choices").iter().zip(&streamed) {
        assert_eq!(choice["text"], json!(text));
        assert!(text.starts_with(&prompt));
        for (list, name) in lists.iter().zip(LISTS) {
            assert!(choice["logprobs"][name] == json!(list), "{name}");
        }
    }
    until_nothing_is_held(&mut client).await;
}

#[tokio::test]
async fn a_full_queue_refuses_before_anything_is_tokenized() {
    let mut setup = Setup::default();
    setup.engine.scheduler.max_queued_requests = 0;
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    // If the text were tokenized, it would be too long: 400.
    let body = chat(json!({"messages": [{"role": "user", "content": "long ".repeat(200_000)}]}));
    is_overloaded(&client.post("/v1/chat/completions", &body).await);
}

#[tokio::test]
async fn detokenized_text_is_bounded_like_an_answer() {
    let server = Server::start(small()).await;
    let mut client = server.connect().await;
    let start = json!({"tokens": vec![crate::harness::START; 150_000]});
    let (status, _, _, code) = client.post("/detokenize", &start).await.error();
    assert_eq!((status, code.as_str()), (400, "answer_too_large"));
    let text = client.post("/detokenize", &json!({"tokens": vec![97; 150_000]})).await;
    assert_eq!(text.json()["prompt"].as_str().map(str::len), Some(150_000));
    let strings = json!({"prompt": "a".repeat(100_000), "return_token_strs": true});
    let strings = client.post("/tokenize", &strings).await;
    assert!([200, 400].contains(&strings.status), "{}", strings.text());
    until_nothing_is_held(&mut client).await;
}
