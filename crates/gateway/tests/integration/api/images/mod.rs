//! Images over every API, to a paper model whose answers depend on their pixels.

mod counts;
mod urls;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_gateway::ImageInput;

use crate::harness::{Client, Server, Setup, VOCABULARY, byte_tokenizer_with, chat};

pub const MARKERS: &[&str] = &["<image>"];
pub const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}\
                        {% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}\
                        {{ p.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

pub const SQUARE: &[u8] = include_bytes!("../../../../../images/tests/fixtures/square.png");
pub const GRADIENT: &[u8] = include_bytes!("../../../../../images/tests/fixtures/gradient.png");
pub const TALL: &[u8] = include_bytes!("../../../../../images/tests/fixtures/tall.png");

/// The configuration of the image processor and that of the model.
pub fn processor() -> [Value; 2] {
    let processor = json!({
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4,
        "size": {"shortest_edge": 256, "longest_edge": 1024},
    });
    [processor, json!({"model_type": "qwen3_vl", "image_token_id": VOCABULARY})]
}

/// Settings of a server whose model takes images, or not.
pub fn setup(takes_images: bool) -> Setup {
    let [processor, config] = processor();
    let input = ImageInput::new(&processor, &config, &byte_tokenizer_with(MARKERS)).expect("valid");
    let setup = Setup::default();
    let vocabulary_size = VOCABULARY + MARKERS.len() as u32;
    let capacity = ExecutorCapacity { vocabulary_size, takes_media: true, ..setup.capacity };
    let images = takes_images.then(|| Arc::new(input));
    Setup { capacity, images, markers: MARKERS, template: TEMPLATE.to_owned(), ..setup }
}

async fn server(takes_images: bool) -> Server {
    Server::start(setup(takes_images)).await
}

pub fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file))
}

pub fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}})
}

pub fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A greedy chat of these parts.
pub fn asking(parts: &[Value]) -> Value {
    chat(json!({"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 8}))
}

pub async fn answer(client: &mut Client, body: &Value) -> Value {
    let reply = client.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

pub fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("text")
}

#[tokio::test]
async fn answers_depend_on_pixels_and_a_repeated_image_is_found_in_the_cache() {
    let server = server(true).await;
    let mut client = server.connect().await;
    let of = |file: &[u8]| asking(&[text("What is "), image(&data_url(file)), text("?")]);
    let one = answer(&mut client, &of(SQUARE)).await;
    assert_eq!(one["usage"]["prompt_tokens_details"]["image_tokens"], 16);
    let n_text =
        "<|start|>user\nWhat is ?<|end|><|start|>assistant\n".len() - "<|start|><|end|><|start|>".len() + 3;
    assert_eq!(one["usage"]["prompt_tokens"], n_text + 16);
    let other = answer(&mut client, &of(GRADIENT)).await;
    assert_eq!(other["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_ne!(said(&one), said(&other), "the same tokens, other pixels");
    assert_eq!(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let again = answer(&mut client, &of(SQUARE)).await;
    assert_eq!(said(&one), said(&again));
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{again}");
    let tall = answer(&mut client, &of(TALL)).await;
    assert_eq!(tall["usage"]["prompt_tokens_details"]["image_tokens"], 9);
}

#[tokio::test]
async fn several_images_stand_where_the_client_put_them_and_text_never_becomes_one() {
    let server = server(true).await;
    let mut client = server.connect().await;
    let [square, gradient] = [SQUARE, GRADIENT].map(|file| image(&data_url(file)));
    let compare = text("Compare <image> with");
    let two = answer(&mut client, &asking(&[square.clone(), compare.clone(), gradient.clone()])).await;
    assert_eq!(two["usage"]["prompt_tokens_details"]["image_tokens"], 32);
    let swapped = answer(&mut client, &asking(&[gradient, compare, square])).await;
    assert_eq!(two["usage"], swapped["usage"]);
    assert_ne!(said(&two), said(&swapped));
    let only_text = answer(&mut client, &asking(&[text("<image>")])).await;
    assert_eq!(only_text["usage"]["prompt_tokens_details"].get("image_tokens"), None);
}

#[tokio::test]
async fn all_apis_give_the_same_prompt() {
    let server = server(true).await;
    let mut client = server.connect().await;
    let expected = answer(&mut client, &asking(&[image(&data_url(SQUARE)), text("What?")])).await;
    let data = STANDARD.encode(SQUARE);
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let message = json!({"role": "user", "content": [{"type": "image", "source": source}, text("What?")]});
    let body = json!({"model": "paper", "max_tokens": 8, "temperature": 0, "messages": [message]});
    let reply = client.post("/v1/messages", &body).await.json();
    assert_eq!(reply["content"][0]["text"], said(&expected), "{reply}");
    assert_eq!(
        reply["usage"]["input_tokens"]
            .as_u64()
            .zip(reply["usage"]["cache_read_input_tokens"].as_u64())
            .map(|(input, cached)| input + cached),
        expected["usage"]["prompt_tokens"].as_u64(),
        "{reply}"
    );
    let options = json!({"temperature": 0, "num_predict": 8});
    let body = json!({"model": "paper", "stream": false, "options": options,
                      "messages": [{"role": "user", "content": "What?", "images": [data]}]});
    let reply = client.post("/api/chat", &body).await.json();
    assert_eq!(reply["message"]["content"], said(&expected), "{reply}");
    let body =
        json!({"model": "paper", "stream": false, "options": options, "prompt": "What?", "images": [data]});
    let reply = client.post("/api/generate", &body).await.json();
    assert_eq!(reply["response"], said(&expected), "{reply}");
    let parts = json!([{"type": "input_image", "image_url": data_url(SQUARE)}, {"type": "input_text", "text": "What?"}]);
    let body = json!({"model": "paper", "temperature": 0, "max_output_tokens": 8,
                      "input": [{"role": "user", "content": parts}]});
    let reply = client.post("/v1/responses", &body).await.json();
    assert_eq!(reply["output"][0]["content"][0]["text"], said(&expected), "{reply}");
    let tokens = client
        .post(
            "/tokenize",
            &json!({"model": "paper", "messages": asking(&[image(&data_url(SQUARE)),
        text("What?")])["messages"]}),
        )
        .await
        .json();
    assert_eq!(tokens["count"], expected["usage"]["prompt_tokens"], "{tokens}");
}

#[tokio::test]
async fn the_result_of_a_tool_may_be_an_image() {
    let server = server(true).await;
    let mut client = server.connect().await;
    let call = json!({"type": "tool_use", "id": "t", "name": "look", "input": {}});
    let source = json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(SQUARE)});
    let result =
        json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]});
    let body = json!({"model": "paper", "max_tokens": 4, "messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]});
    let reply = client.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut as_text = body.clone();
    as_text["messages"][2]["content"][0]["content"] = json!("");
    let without = client.post("/v1/messages/count_tokens", &as_text).await.json();
    let n = |reply: &Value| reply["input_tokens"].as_u64().expect("a number");
    assert_eq!(n(&reply.json()), n(&without) + 16);
}

#[tokio::test]
async fn images_that_cannot_be_used_are_refused_by_their_place() {
    let server = server(true).await;
    let mut client = server.connect().await;
    let at = "messages[0].content[1].image_url";
    let mut refused = async |url: &str| {
        let reply = client.post("/v1/chat/completions", &asking(&[text("a"), image(url)])).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (400, &json!(at)), "{error}");
        (
            error["code"].as_str().expect("a code").to_owned(),
            error["message"].as_str().expect("text").to_owned(),
        )
    };
    let (code, message) = refused(&data_url(b"GIF89a")).await;
    assert_eq!(code, "invalid_image");
    assert!(message.contains("GIF"), "{message}");
    let (code, message) = refused(&data_url(&SQUARE[..200])).await;
    assert_eq!(code, "invalid_image");
    assert!(message.contains("damaged") && !message.contains('/'), "{message}");
    let mut bomb = SQUARE.to_vec();
    bomb[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
    assert_eq!(refused(&data_url(&bomb)).await.0, "invalid_image");
    assert_eq!(refused("https://example.com/a.png").await.0, "unsupported_parameter");
}

#[tokio::test]
async fn a_model_of_text_refuses_images_by_name() {
    let server = server(false).await;
    let mut client = server.connect().await;
    let reply = client.post("/v1/chat/completions", &asking(&[image(&data_url(SQUARE))])).await;
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["code"]), (400, &json!("unsupported_parameter")), "{error}");
    assert!(error["message"].as_str().expect("text").contains("takes only text"), "{error}");
}
