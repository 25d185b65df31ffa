//! Requests as clients send them that were made for other servers, over real sockets: keys that are not known
//! here, paths with a `/v1` too many or too few, names of models that there are not.

use crate::harness::{Server, Setup, byte_tokenizer, chat, completion};
use serde_json::{Value, json};
use throng_text::{AnswerFormat, ToolCallFormat};

/// A server whose model can call tools.
async fn start(strict_parameters: bool) -> Server {
    let mut setup = Setup::default();
    setup.config.api.strict_parameters = strict_parameters;
    setup.answer_format = AnswerFormat::new(Some(ToolCallFormat::Hermes), None, &byte_tokenizer());
    Server::start(setup).await
}

#[tokio::test]
async fn keys_that_are_not_known_inside_of_objects_change_nothing_but_a_header() {
    let (server, strict) = (start(false).await, start(true).await);
    let (mut client, mut strict) = (server.connect().await, strict.connect().await);
    let plain = chat(json!({"max_tokens": 3, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "text", "text": "y"}], "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "text"}}));
    let expected = strict.post("/v1/chat/completions", &plain).await;
    assert_eq!(expected.status, 200, "{}", expected.text());
    let text = |reply: &crate::harness::Reply| -> String {
        reply.chunks().iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
    };
    for (place, key) in [
        ("/messages/0", "cache_control"),
        ("/messages/1", "created_at"),
        ("/messages/1", "opts"),
        ("/messages/0/content/0", "citations"),
        ("/messages/2/content/0", "prompt_cache_breakpoint"),
        ("/messages/2", "weight"),
        ("/messages/2/tool_calls/0", "thought_signature"),
        ("/messages/2/tool_calls/0/function", "partial_json"),
        ("/messages/3", "is_error"),
        ("/tools/0", "cache_control"),
        ("/tools/0/function", "annotations"),
        ("/response_format", "verbosity"),
        ("/stream_options", "chunk_size"),
        ("", "provider"),
    ] {
        let mut body = plain.clone();
        let object = body.pointer_mut(place).and_then(Value::as_object_mut).expect(place);
        object.insert(key.to_owned(), json!({"type": "unknown"}));
        let reply = client.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 200, "{place}/{key}: {}", reply.text());
        assert_eq!(text(&reply), text(&expected), "{place}/{key}");
        let name = format!("{place}/{key}").trim_start_matches('/').replace('/', ".");
        let name: String = name.split('.').fold(String::new(), |path, part| match part.parse::<usize>() {
            Ok(_) => path + "[]",
            Err(_) if path.is_empty() => part.to_owned(),
            Err(_) => path + "." + part,
        });
        assert_eq!(reply.header("x-throng-ignored"), Some(name.as_str()), "{place}/{key}");
        // Marks that other servers put into answers may always be sent back.
        if key != "cache_control" || place.starts_with("/tools") {
            let (status, _, param, code) = strict.post("/v1/chat/completions", &body).await.error();
            assert_eq!((status, code.as_str()), (400, "unknown_parameter"), "{place}/{key}: {param}");
        }
    }
}

#[tokio::test]
async fn a_header_of_ignored_keys_is_bounded() {
    let server = start(false).await;
    let mut client = server.connect().await;
    let keys: serde_json::Map<String, Value> =
        (0..5_000).map(|i| (format!("k{i}\u{e9}{}", "x".repeat(100)), json!(1))).collect();
    let mut message = keys.clone();
    message.extend(json!({"role": "user", "content": "Hi"}).as_object().expect("an object").clone());
    let body = chat(json!({"max_tokens": 1, "messages": vec![message; 3]}));
    let reply = client.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let header = reply.header("x-throng-ignored").expect("names");
    assert!(header.len() < 1_200 && header.ends_with(" more"), "{header}");
    assert!(header.starts_with("messages[].k0?x"), "{header}");
}

#[tokio::test]
async fn a_last_message_of_the_assistant_that_says_so_is_continued() {
    let server = start(false).await;
    let mut client = server.connect().await;
    let messages = |mark: Value| {
        let mut last = json!({"role": "assistant", "content": "Once upon"});
        last.as_object_mut().expect("an object").extend(mark.as_object().expect("an object").clone());
        json!([{"role": "user", "content": "Hi"}, last])
    };
    let open = json!({"messages": messages(json!({})), "continue_final_message": true,
                      "add_generation_prompt": false});
    let expected = client.post("/tokenize", &open).await.json();
    let closed = client.post("/tokenize", &json!({"messages": messages(json!({}))})).await.json();
    assert_ne!(expected["tokens"], closed["tokens"]);
    for mark in ["prefix", "partial"] {
        let reply = client.post("/tokenize", &json!({"messages": messages(json!({mark: true}))})).await;
        assert_eq!((reply.status, &reply.json()["tokens"]), (200, &expected["tokens"]), "{mark}");
        let body = chat(json!({"messages": messages(json!({mark: true}))}));
        assert_eq!(client.post("/v1/chat/completions", &body).await.status, 200);
        let reply = client.post("/tokenize", &json!({"messages": messages(json!({mark: false}))})).await;
        assert_eq!(reply.json()["tokens"], closed["tokens"], "{mark}");
    }
    let history = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a", "prefix": true},
                         {"role": "user", "content": "b"}]);
    let reply = client.post("/tokenize", &json!({"messages": history})).await;
    assert_eq!((reply.status, reply.header("x-throng-ignored")), (200, Some("messages[].prefix")));
}

#[tokio::test]
async fn paths_with_a_version_too_many_or_too_few_are_those_of_clients_routes() {
    let server = Server::start(Setup { has_embedder: true, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let model = client.get("/v1/models/org/paper").await.json();
    for path in ["/models", "/v1/models/", "/v1//models", "//v1/models", "/v1/v1/models"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.json()["object"].clone()), (200, json!("list")), "{path}");
    }
    for path in ["/models/org/paper", "/v1/v1/models/org/paper", "//v1/models/org/paper"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.json()["id"].clone()), (200, model["id"].clone()), "{path}");
    }
    let bodies = [
        ("chat/completions", chat(json!({"max_tokens": 1}))),
        ("completions", completion(json!({"max_tokens": 1}))),
        ("embeddings", json!({"model": crate::harness::EMBEDDER, "input": "a"})),
        ("moderations", json!({"input": "a"})),
        ("tokenize", json!({"model": "paper", "prompt": "a"})),
        ("detokenize", json!({"model": "paper", "tokens": [1]})),
        ("rerank", json!({"model": crate::harness::EMBEDDER, "query": "a", "documents": ["b"]})),
        ("score", json!({"model": crate::harness::EMBEDDER, "text_1": "a", "text_2": "b"})),
    ];
    for (name, body) in &bodies {
        for base in ["", "/v1", "/v1/v1", "/", "/v1/", "//v1"] {
            for end in ["", "/"] {
                let path = format!("{base}/{name}{end}");
                let reply = client.post(&path, body).await;
                assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            }
        }
    }
    for path in ["/v1/v1/v1/v1/models", "/v2/models", "/v1/metrics", "/v1/health", "/openai/v1/models", "/v1"]
    {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    let reply = client.get("/chat/completions").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn an_unknown_model_names_those_that_there_are() {
    let server = Server::start(Setup { has_embedder: true, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let unknown = |path: &str| {
        let mut body = match path {
            "/v1/chat/completions" => chat(json!({})),
            "/v1/completions" => completion(json!({})),
            "/v1/embeddings" => json!({"input": "a"}),
            _ => json!({"prompt": "a"}),
        };
        body["model"] = json!("gpt-4o");
        body
    };
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"] {
        let reply = client.post(path, &unknown(path)).await;
        let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!((reply.status, reply.error().3.as_str()), (404, "model_not_found"), "{path}");
        assert_eq!(
            message, "The model 'gpt-4o' does not exist. Models to use: 'embedder', 'paper'.",
            "{path}"
        );
    }
    let reply = client.get("/v1/models/gpt-4o").await;
    assert!(reply.text().contains("Models to use: 'embedder', 'paper'."), "{}", reply.text());
}

#[tokio::test]
async fn an_empty_text_has_one_answer_wherever_it_has_a_vector_of_its_own() {
    let server = Server::start(Setup { has_embedder: true, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let model = crate::harness::EMBEDDER;
    for (path, body, param) in [
        ("/v1/embeddings", json!({"input": ""}), "input"),
        ("/v1/embeddings", json!({"input": ["a", ""]}), "input[1]"),
        ("/v1/rerank", json!({"query": "", "documents": ["a"]}), "documents"),
        ("/v1/rerank", json!({"query": "a", "documents": ["a", ""]}), "documents"),
        ("/score", json!({"text_1": "a", "text_2": [""]}), "text_2"),
    ] {
        let mut body = body;
        body["model"] = json!(model);
        let (status, _, found, code) = client.post(path, &body).await.error();
        let expected = (400, "invalid_value", Some(param));
        assert_eq!((status, code.as_str(), found.as_str()), expected, "{path} {body}");
    }
    let reply = client.post("/v1/embeddings", &json!({"model": model, "input": [" ", "a"]})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test]
async fn a_text_that_is_no_unicode_is_named() {
    let server = start(false).await;
    let mut client = server.connect().await;
    let body = r#"{"model":"paper","messages":[{"role":"user","content":"a"},
        {"role":"user","content":[{"type":"text","text":"b \ud83d"}]}]}"#;
    client.send(crate::harness::post_bytes("/v1/chat/completions", body, &[])).await;
    let (status, _, param, code) = client.reply().await.expect("an answer").error();
    assert_eq!((status, code.as_str()), (400, "invalid_unicode"));
    assert_eq!(param, json!("messages[1].content[0].text"));
}

#[tokio::test]
async fn hops_that_are_no_number_are_refused_also_where_nothing_is_forwarded() {
    let server = start(false).await;
    let body = chat(json!({"max_tokens": 1})).to_string();
    for (fields, status) in [
        (&["x-throng-hops: 1"][..], 200),
        (&["x-throng-hops: 200"], 200),
        (&["x-throng-hops: garbage"], 400),
        (&["x-throng-hops: +1"], 400),
        (&["x-throng-hops: 1, 1"], 400),
        (&["x-throng-hops: 0", "x-throng-hops: 1"], 400),
        (&["x-throng-hops: "], 400),
    ] {
        let mut client = server.connect().await;
        client.send(crate::harness::post_bytes("/v1/chat/completions", &body, fields)).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!(reply.status, status, "{fields:?}: {}", reply.text());
    }
}
