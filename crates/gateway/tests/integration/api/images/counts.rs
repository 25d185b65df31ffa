//! The tokens of images in the usage of every API that can tell them, and their places in `/tokenize`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{GRADIENT, SQUARE, TALL, asking, data_url, image, setup, text};
use crate::harness::{Client, PATIENCE, Reply, Server, Stored, chat, post_bytes};

/// Tokens of [`SQUARE`].
const N: u64 = 16;

fn input(file: &[u8]) -> Value {
    json!([{"role": "user", "content": [{"type": "input_image", "image_url": data_url(file)}]}])
}

fn response(fields: Value) -> Value {
    let mut body = json!({"model": "paper", "input": input(SQUARE), "max_output_tokens": 4});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

async fn post(client: &mut Client, key: &str, path: &str, body: &Value) -> Value {
    let authorization = format!("authorization: Bearer {key}");
    client.send(post_bytes(path, &body.to_string(), &[&authorization])).await;
    answered(client).await.json()
}

async fn get(client: &mut Client, key: &str, path: &str) -> Reply {
    client
        .send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"))
        .await;
    answered(client).await
}

async fn answered(client: &mut Client) -> Reply {
    let reply = client.reply().await.expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
}

/// The data of named events.
fn events(reply: &Reply) -> Vec<Value> {
    let data = reply.text().lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

#[tokio::test]
async fn streams_and_whole_answers_tell_the_tokens_of_images() {
    let server = Server::start(setup(true)).await;
    let mut client = server.connect().await;
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    let mut body = asking(&[image(&data_url(SQUARE))]);
    body["stream"] = json!(true);
    body["stream_options"] = usage;
    let chunks = client.post("/v1/chat/completions", &body).await.chunks();
    assert!(chunks.len() > 2);
    for chunk in chunks {
        assert_eq!(chunk["usage"]["prompt_tokens_details"]["image_tokens"], N, "{chunk}");
    }
    let of = |response: &Value| response["usage"]["input_tokens_details"]["image_tokens"].clone();
    let whole = client.post("/v1/responses", &response(json!({}))).await.json();
    assert_eq!(of(&whole), N, "{whole}");
    let streamed = client.post("/v1/responses", &response(json!({"stream": true}))).await;
    assert_eq!(of(&events(&streamed).last().expect("an end")["response"]), N);
    let only_text = client.post("/v1/responses", &response(json!({"input": "Hello"}))).await.json();
    assert_eq!(only_text["usage"]["input_tokens_details"].get("image_tokens"), None, "{only_text}");

    let data = data_url(SQUARE).split_once(',').expect("a data URL").1.to_owned();
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let content = json!([{"type": "image", "source": source}]);
    let mut body =
        json!({"model": "paper", "max_tokens": 4, "messages": [{"role": "user", "content": content}]});
    let whole = client.post("/v1/messages", &body).await.json();
    assert_eq!(whole["usage"]["input_tokens_details"]["image_tokens"], N, "{whole}");
    body["stream"] = json!(true);
    let streamed = events(&client.post("/v1/messages", &body).await);
    let of_kind = |kind: &str| streamed.iter().find(|event| event["type"] == kind).expect("an event");
    for usage in [&of_kind("message_start")["message"]["usage"], &of_kind("message_delta")["usage"]] {
        assert_eq!(usage["input_tokens_details"]["image_tokens"], N, "{usage}");
    }
}

#[tokio::test]
async fn kept_responses_and_batches_tell_the_tokens_of_images() {
    let stored = Stored::start(setup(true), &[("acme", "first")]).await;
    let (mut client, key) = (stored.server.connect().await, stored.keys[0].secret().to_owned());
    let kept = post(&mut client, &key, "/v1/responses", &response(json!({"store": true}))).await;
    let id = kept["id"].as_str().expect("an id");
    let read = get(&mut client, &key, &format!("/v1/responses/{id}")).await.json();
    assert_eq!(read["usage"], kept["usage"]);
    assert_eq!(read["usage"]["input_tokens_details"]["image_tokens"], N, "{read}");
    let next = response(json!({"previous_response_id": id, "input": input(GRADIENT)}));
    let next = post(&mut client, &key, "/v1/responses", &next).await;
    assert_eq!(next["usage"]["input_tokens_details"]["image_tokens"], 2 * N, "{next}");

    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                      "body": asking(&[image(&data_url(SQUARE))])});
    let file = upload(&mut client, &key, &format!("{line}\n")).await;
    let batch =
        json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let batch = post(&mut client, &key, "/v1/batches", &batch).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));
    let output = async {
        loop {
            let batch = get(&mut client, &key, &path).await.json();
            if batch["status"] == "completed" {
                return batch["output_file_id"].as_str().expect("a file").to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends");
    let line = get(&mut client, &key, &format!("/v1/files/{output}/content")).await.json();
    let usage = &line["response"]["body"]["usage"];
    assert_eq!(usage["prompt_tokens_details"]["image_tokens"], N, "{line}");
}

async fn upload(client: &mut Client, key: &str, content: &str) -> String {
    let part = |head: &str, body: &str| {
        format!("--x\r\ncontent-disposition: form-data; name={head}\r\n\r\n{body}\r\n")
    };
    let form = part("purpose", "batch") + &part("file; filename=\"f.jsonl\"", content) + "--x--\r\n";
    let head = format!("POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
    let kind = "content-type: multipart/form-data; boundary=x\r\n";
    client.send(format!("{head}{kind}content-length: {}\r\n\r\n{form}", form.len())).await;
    answered(client).await.json()["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn tokenize_tells_where_the_images_stand() {
    let server = Server::start(setup(true)).await;
    let mut client = server.connect().await;
    let parts = [text("ab"), image(&data_url(SQUARE)), text("c"), image(&data_url(TALL))];
    let body = json!({"model": "paper", "messages": asking(&parts)["messages"]});
    let reply = client.post("/tokenize", &body).await.json();
    // The control token of the beginning, "user", a line break, then "ab".
    let (first, second) = (1 + 5 + 2, 1 + 5 + 2 + N + 1);
    let expected = json!([{"start": first, "length": N, "n_tokens": N},
                          {"start": second, "length": 9, "n_tokens": 9}]);
    assert_eq!(reply["image_spans"], expected, "{reply}");
    let tokens = reply["tokens"].as_array().expect("tokens");
    for span in expected.as_array().expect("spans") {
        let [start, length] = ["start", "length"].map(|key| span[key].as_u64().expect("a number") as usize);
        assert!(tokens[start..start + length].iter().all(|token| *token == crate::harness::VOCABULARY));
        assert_ne!(tokens[start - 1], crate::harness::VOCABULARY);
        assert_ne!(tokens[start + length], crate::harness::VOCABULARY);
    }
    let only_text =
        client.post("/tokenize", &json!({"model": "paper", "messages": chat(json!({}))["messages"]})).await;
    assert_eq!(only_text.json().get("image_spans"), None);
}
