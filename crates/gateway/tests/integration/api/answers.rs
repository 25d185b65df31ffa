//! The format of answers, whole and streamed, over real sockets.

use std::time::Duration;

use crate::harness::{Client, Server, Setup, VOCABULARY, chat, completion};
use serde_json::{Value, json};

/// Letters only, so that every token is a character.
fn letters() -> Value {
    json!((97..=122).collect::<Vec<u32>>())
}

fn joined(chunks: &[Value], index: u64, at: fn(&Value) -> &Value) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices"));
    choices.filter(|c| c["index"] == index).filter_map(|c| at(c).as_str()).collect()
}

#[tokio::test]
async fn a_chat_is_the_same_whole_and_streamed() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"n": 2, "seed": 7, "max_completion_tokens": 9, "allowed_token_ids": letters(),
                        "logprobs": true, "top_logprobs": 2});
    let whole = client.post("/v1/chat/completions", &chat(fields.clone())).await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert!(whole.header("server-timing").is_some_and(|v| v.starts_with("queue;dur=")));
    assert!(whole.header("x-queue-ms").is_some());
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert!(whole["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    assert_eq!(whole["usage"]["completion_tokens"], 18);
    assert!(whole["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());

    let mut streamed = fields;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true, "include_timings": true});
    let reply = client.post("/v1/chat/completions", &chat(streamed)).await;
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let chunks = reply.chunks();
    for index in 0..2 {
        let choice = &whole["choices"][index as usize];
        let text = choice["message"]["content"].as_str().expect("text");
        assert_eq!(text.len(), 9);
        assert_eq!(joined(&chunks, index, |c| &c["delta"]["content"]), text);
        assert_eq!(choice["finish_reason"], "length");
        let logprobs = choice["logprobs"]["content"].as_array().expect("logprobs");
        assert_eq!(logprobs.len(), 9);
        assert_eq!(logprobs[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
        assert_eq!(logprobs[0]["bytes"], json!([text.as_bytes()[0]]));
        let first = chunks.iter().find(|c| c["choices"][0]["index"] == index).expect("a first chunk");
        assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    }
    let (last, others) = chunks.split_last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 18);
    let timings = &last["timings"];
    assert_eq!(timings["predicted_n"], 18);
    assert_eq!(
        timings["prompt_n"].as_u64().zip(timings["cache_n"].as_u64()).map(|(n, cached)| n + cached),
        last["usage"]["prompt_tokens"].as_u64()
    );
    for figure in ["queue_ms", "prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"] {
        assert!(timings[figure].as_f64().is_some_and(|value| value >= 0.0), "{figure} in {timings}");
    }
    assert!(others.iter().all(|chunk| chunk.get("timings").is_none()));
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert!(
        others.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == last["id"])
    );
    let ends = others.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "length");
    assert_eq!(ends.count(), 2);
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_and_the_computing() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"seed": 3, "max_tokens": 400, "allowed_token_ids": letters(), "temperature": 1.0});
    let free = client.post("/v1/completions", &completion(fields.clone())).await.json();
    let text = free["choices"][0]["text"].as_str().expect("text").to_owned();
    let stop = &text[40..44];
    let expected = &text[..text.find(stop).expect("it is there")];
    for stream in [false, true] {
        let mut body = completion(fields.clone());
        body["stop"] = json!([stop, "never this"]);
        body["stream"] = json!(stream);
        let reply = client.post("/v1/completions", &body).await;
        if stream {
            let chunks = reply.chunks();
            assert_eq!(joined(&chunks, 0, |c| &c["text"]), expected);
            let end = &chunks.last().expect("an end")["choices"][0];
            assert_eq!((&end["finish_reason"], &end["stop_reason"]), (&json!("stop"), &json!(stop)));
        } else {
            let choice = &reply.json()["choices"][0];
            assert_eq!(choice["text"], expected);
            assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
        }
    }
    server.idle().await;
}

#[tokio::test]
async fn offsets_of_an_echoed_prompt_count_characters_of_its_text() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let mut body = completion(json!({"prompt": "é🎉 a", "echo": true, "max_tokens": 2, "logprobs": 0,
                                     "allowed_token_ids": letters()}));
    let whole = client.post("/v1/completions", &body).await.json();
    // A byte a token: each begins with the character that it is a part of.
    let offsets = json!([0, 0, 1, 1, 1, 1, 2, 3, 4, 5]);
    assert_eq!(whole["choices"][0]["logprobs"]["text_offset"], offsets);
    body["stream"] = json!(true);
    let chunks = client.post("/v1/completions", &body).await.chunks();
    let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array());
    assert_eq!(Value::Array(lists.flatten().cloned().collect()), offsets);
}

#[tokio::test]
async fn choices_of_several_prompts_are_numbered_and_echoed() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"prompt": ["ab", "cde"], "n": 2, "echo": true, "max_tokens": 3, "logprobs": 1,
                        "allowed_token_ids": letters(), "seed": 1});
    let whole = client.post("/v1/completions", &completion(fields.clone())).await.json();
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    for (i, choice) in choices.iter().enumerate() {
        let prompt = ["ab", "cde"][i / 2];
        assert_eq!(choice["index"], i);
        let text = choice["text"].as_str().expect("text");
        assert!(text.starts_with(prompt) && text.len() == prompt.len() + 3, "{text}");
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"].as_array().map(Vec::len), Some(prompt.len() + 3));
        assert!(logprobs["token_logprobs"][0].is_null() && logprobs["token_logprobs"][1].is_number());
        let offsets: Vec<usize> = (0..text.len()).collect();
        assert_eq!(logprobs["text_offset"], json!(offsets));
    }
    let mut streamed = completion(fields);
    streamed["stream"] = json!(true);
    let chunks = client.post("/v1/completions", &streamed).await.chunks();
    for choice in choices {
        let index = choice["index"].as_u64().expect("a number");
        assert_eq!(json!(joined(&chunks, index, |c| &c["text"])), choice["text"]);
    }
}

#[tokio::test]
async fn without_a_tokenizer_token_ids_go_in_and_come_out() {
    let server = Server::start(Setup { has_tokenizer: false, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let body = completion(json!({"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": true}));
    let choice = &client.post("/v1/completions", &body).await.json()["choices"][0];
    assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(4));
    assert_eq!(choice["prompt_token_ids"], json!([1, 2, 3]));
    let reply = client.post("/v1/chat/completions", &chat(json!({}))).await;
    let (status, _, param, code) = reply.error();
    assert_eq!((status, code.as_str(), &param), (400, "unsupported_parameter", &json!("messages")));
    assert!(reply.text().contains("tokenizer"), "{}", reply.text());
    let reply = client.post("/v1/completions", &completion(json!({"prompt": [VOCABULARY]}))).await;
    assert_eq!(reply.error().3, "invalid_token");
}

#[tokio::test]
async fn the_small_routes_answer() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for path in ["/health", "/health/live", "/health/ready", "/ping", "/version", "/load"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    let list = client.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "paper");
    assert_eq!(list["data"][0]["notice"], "a paper model");
    assert_eq!(list["data"][0]["max_model_len"], crate::harness::MAX_LEN);
    assert_eq!(client.get("/v1/models/org/paper").await.json()["id"], "org/paper");
    assert_eq!(client.get("/v1/models/other").await.error().3, "model_not_found");
    let tokens =
        client.post("/tokenize", &json!({"prompt": "héllo", "return_token_strs": true})).await.json();
    assert_eq!(tokens["count"], 6);
    let text = client.post("/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text["prompt"], "héllo");
    let page = client.get("/").await;
    assert!(page.text().contains("<title>Throng</title>"));
    assert!(page.header("content-security-policy").is_some_and(|csp| csp.starts_with("default-src 'none'")));
    let etag = page.header("etag").expect("an etag").to_owned();
    client.send(format!("GET / HTTP/1.1\r\nhost: localhost\r\nif-none-match: {etag}\r\n\r\n")).await;
    assert_eq!(client.reply().await.expect("a response").status, 304);
    for file in ["app.js", "dom.js", "style.css", "icon.svg"] {
        assert_eq!(client.get(&format!("/ui/{file}")).await.status, 200, "{file}");
    }
}

/// `vllm:spec_decode_num_drafts`, `_draft_tokens` and `_accepted_tokens`.
async fn draft_counts(client: &mut Client) -> (u64, u64, u64) {
    let scrape = client.get("/metrics").await;
    let text = scrape.text();
    let count = |name: &str| {
        let name = format!("vllm:spec_decode_num_{name}_total{{model_name=\"paper\",engine=\"0\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    };
    (count("drafts"), count("draft_tokens"), count("accepted_tokens"))
}

#[tokio::test]
async fn metrics_count_drafts() {
    // Steps take long whatever they compute, so that drafts pay.
    let server = Server::start(Setup { step_time: Duration::from_millis(2), ..Setup::default() }).await;
    let mut client = server.connect().await;
    let repeating = |more: Value| {
        let mut body = chat(json!({"max_tokens": 60, "ignore_eos": true, "allowed_token_ids": [65]}));
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        body
    };
    let without = client.post("/v1/chat/completions", &repeating(json!({"speculative.n_max": 0}))).await;
    server.has_made(60).await;
    assert_eq!(draft_counts(&mut client).await, (0, 0, 0));
    let with = client.post("/v1/chat/completions", &repeating(json!({}))).await;
    server.has_made(120).await;
    assert_eq!(with.json()["choices"], without.json()["choices"]);
    let (drafts, tokens, accepted) = draft_counts(&mut client).await;
    assert!(drafts > 0 && tokens > drafts && accepted <= tokens, "{drafts} {tokens} {accepted}");
    assert!(accepted > 20, "every draft is right: {accepted}");
}

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_use() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let body = chat(json!({"max_tokens": 5, "ignore_eos": true}));
    assert_eq!(client.post("/v1/chat/completions", &body).await.status, 200);
    server.has_made(5).await;
    let scrape = client.get("/metrics").await;
    let text = scrape.text();
    let labels = "{model_name=\"paper\",engine=\"0\"";
    for name in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "request_time_per_output_token_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
        "request_inference_time_seconds_count",
        "request_prompt_tokens_count",
        "request_generation_tokens_count",
        "request_params_n_count",
        "request_params_max_tokens_count",
        "iteration_tokens_total_count",
    ] {
        assert!(text.contains(&format!("\nvllm:{name}{labels}")), "{name} in {text}");
    }
    assert!(text.contains(&format!("vllm:generation_tokens_total{labels}}} 5\n")), "{text}");
    assert!(text.contains(&format!("vllm:inter_token_latency_seconds_count{labels}}} 4\n")), "{text}");
    assert!(
        text.contains(
            "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"200\"} 1"
        )
    );
}

#[tokio::test]
async fn a_silent_stream_pings() {
    let mut setup = Setup { step_time: std::time::Duration::from_millis(1500), ..Setup::default() };
    setup.config.api.ping_interval_s = 1;
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let body = chat(json!({"stream": true, "max_tokens": 1, "ignore_eos": true})).to_string();
    client.send(crate::harness::post_bytes("/v1/chat/completions", &body, &[])).await;
    let so_far = client.read_until(": ping\n\n").await;
    assert!(!so_far.contains("finish_reason\":\"length"), "the ping came while nothing else did: {so_far}");
    let chunks = client.reply().await.expect("the whole stream").chunks();
    assert_eq!(chunks.last().expect("an end")["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn http_2_without_tls_is_supported() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let server = Server::start(Setup::default()).await;
    let stream = tokio::net::TcpStream::connect(server.address).await.expect("the server accepts");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
    tokio::spawn(connection);
    let ask = |body: Value| {
        let uri = format!("http://localhost:{}/v1/chat/completions", server.address.port());
        let request = http::Request::post(uri).header("content-type", "application/json");
        request.body(Full::new(bytes::Bytes::from(body.to_string()))).expect("a valid request")
    };
    for (body, status) in [
        (chat(json!({"max_tokens": 3})), 200),
        (chat(json!({"temperature": "hot"})), 400),
        (chat(json!({"max_tokens": 3, "stream": true})), 200),
    ] {
        let reply = sender.send_request(ask(body.clone())).await.expect("an answer");
        assert_eq!(reply.status(), status, "{body}");
        let bytes = reply.into_body().collect().await.expect("a whole body").to_bytes();
        assert_eq!(bytes.ends_with(b"data: [DONE]\n\n"), body["stream"] == true);
    }
}
