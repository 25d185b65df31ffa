//! Ignored parameters of a request are named in its answer, over a real socket.

use crate::harness::{Server, Setup, chat, completion};
use serde_json::json;

#[tokio::test]
async fn template_variables_that_no_template_reads_are_named() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields =
        json!({"max_tokens": 2, "colour": "blue", "chat_template_kwargs": {"enable_thinking": false}});
    for stream in [false, true] {
        let mut body = chat(fields.clone());
        body["stream"] = stream.into();
        let reply = client.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-throng-ignored"), Some("colour, chat_template_kwargs.enable_thinking"));
    }
    let body = json!({"messages": [{"role": "user", "content": "Hi", "annotations": []}],
                      "chat_template_kwargs": {"enable_thinking": false}});
    let reply = client.post("/tokenize", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let named = reply.header("x-throng-ignored");
    assert_eq!(named, Some("messages[].annotations, chat_template_kwargs.enable_thinking"));
    let reserved = chat(json!({"chat_template_kwargs": {"bos_token": "x"}}));
    let (status, _, param, code) = client.post("/v1/chat/completions", &reserved).await.error();
    assert_eq!((status, code.as_str()), (400, "unknown_parameter"));
    assert_eq!(param, "chat_template_kwargs.bos_token");
}

#[tokio::test]
async fn parameters_without_effect_are_named_on_every_route() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let without_effect = json!({"user": "me", "metadata": {"a": "b"}, "store": true, "colour": 1, "seed": null,
        "safety_identifier": null, "max_tokens": 2, "tools": [], "response_format": {"type": "text"}});
    let mut text = completion(without_effect.clone());
    text.as_object_mut().expect("an object").remove("tools");
    for (path, mut body) in [("/v1/chat/completions", chat(without_effect)), ("/v1/completions", text)] {
        for stream in [false, true] {
            body["stream"] = stream.into();
            let reply = client.post(path, &body).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(reply.header("x-throng-ignored"), Some("metadata, store, colour"), "{path}");
        }
    }
    let reply = client.post("/tokenize", &json!({"prompt": "Hi", "colour": 1})).await;
    assert_eq!(reply.header("x-throng-ignored"), Some("colour"));
    let equal = chat(json!({"max_tokens": 3, "max_completion_tokens": 3}));
    let reply = client.post("/v1/chat/completions", &equal).await;
    assert_eq!((reply.status, reply.header("x-throng-ignored")), (200, None), "{}", reply.text());
    let different = chat(json!({"max_tokens": 3, "max_completion_tokens": 4}));
    assert_eq!(client.post("/v1/chat/completions", &different).await.error().3, "mutually_exclusive");
}

#[tokio::test]
async fn a_conversation_that_cannot_fit_is_refused_before_it_is_rendered() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    // The template of this server never prints arguments, so only their total size shows that they are too long.
    let call = |id: usize| {
        json!({"role": "assistant", "tool_calls": [
            {"id": id.to_string(), "function": {"name": "f", "arguments": "x".repeat(100_000)}}]})
    };
    let reply = |id: usize| json!({"role": "tool", "tool_call_id": id.to_string(), "content": "1"});
    let messages: Vec<_> = (0..60).flat_map(|id| [call(id), reply(id)]).collect();
    let body = chat(json!({"messages": messages}));
    let (status, _, param, code) = client.post("/v1/chat/completions", &body).await.error();
    assert_eq!((status, code.as_str()), (400, "context_length_exceeded"));
    assert_eq!(param, "messages");
}
