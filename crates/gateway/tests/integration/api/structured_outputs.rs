//! Outputs of a form that the request asks for, over real sockets and an executor whose choices are arbitrary
//! but for the mask.

use crate::harness::{Server, Setup, chat, completion};
use serde_json::{Value, json};

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12, "pattern": "^[a-z]+$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false
    })
}

#[tokio::test]
async fn answers_satisfy_their_schema_whole_and_streamed() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person(), "strict": true}});
    for seed in 0..30 {
        let mut body =
            chat(json!({"response_format": format, "max_tokens": 900, "seed": seed, "temperature": 1.0}));
        let whole = client.post("/v1/chat/completions", &body).await.json();
        assert_eq!(whole["choices"][0]["finish_reason"], "stop", "seed {seed}: {whole}");
        let person: Value = serde_json::from_str(content(&whole)).expect("JSON");
        let object = person.as_object().expect("an object");
        assert_eq!(object.len(), 3, "seed {seed}: {person}");
        assert!(object["name"].as_str().is_some_and(|name| (1..=12).contains(&name.len())), "{person}");
        assert!(object["age"].as_u64().is_some_and(|age| age <= 120), "{person}");
        assert!(object["tags"].as_array().is_some_and(|tags| tags.len() <= 3), "{person}");
        body["stream"] = json!(true);
        let chunks = client.post("/v1/chat/completions", &body).await.chunks();
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), content(&whole), "seed {seed}");
    }
}

#[tokio::test]
async fn every_spelling_constrains_every_choice() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let digits = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
    let regex = "[0-9]{3}";
    for fields in [
        json!({"guided_regex": regex}),
        json!({"structured_outputs": {"regex": regex}}),
        json!({"grammar": "root ::= [0-9] [0-9] [0-9]"}),
        json!({"guided_choice": ["123", "456"]}),
        json!({"structured_outputs": {"choice": ["123"]}}),
    ] {
        let mut body = completion(json!({"max_tokens": 50, "n": 3, "seed": 5}));
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let answer = client.post("/v1/completions", &body).await.json();
        for choice in answer["choices"].as_array().expect("choices") {
            assert!(digits(choice["text"].as_str().expect("a text")), "{fields}: {answer}");
            assert_eq!(choice["finish_reason"], "stop", "{fields}");
        }
    }
    let body = completion(json!({"guided_regex": "a", "min_tokens": 20, "max_tokens": 50}));
    let answer = client.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "a", "what is complete ends: {answer}");
}

#[tokio::test]
async fn constraints_that_cannot_be_used_are_refused_before_anything_runs() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for (fields, param, code) in [
        (json!({"guided_regex": "("}), "guided_regex", "invalid_regex"),
        (json!({"guided_choice": []}), "guided_choice", "empty_array"),
        (json!({"guided_json": false}), "guided_json", "invalid_json_schema"),
        (json!({"guided_json": {"not": {"const": 1}}}), "guided_json", "unsupported_json_schema"),
        (
            json!({"structured_outputs": {"grammar": "root ::= x"}}),
            "structured_outputs.grammar",
            "invalid_grammar",
        ),
    ] {
        let reply = client.post("/v1/chat/completions", &chat(fields.clone())).await;
        let (status, _, at, found) = reply.error();
        assert_eq!((status, found.as_str(), at), (400, code, json!(param)), "{fields}");
    }
    let ok = client.post("/v1/chat/completions", &chat(json!({"max_tokens": 3}))).await;
    assert_eq!(ok.status, 200);
}

#[tokio::test]
async fn numbers_are_written_with_their_own_digits() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for (schema, expected) in [
        (r#"{"const": 2512292042121000001}"#, "2512292042121000001"),
        (r#"{"const": -9223372036854775808}"#, "-9223372036854775808"),
        (r#"{"enum": [18446744073709551616]}"#, "18446744073709551616"),
        (r#"{"const": 0.1000000000000000055511151231257827}"#, "0.1000000000000000055511151231257827"),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740993}"#,
            "9007199254740993",
        ),
        (r#"{"type": "integer", "minimum": -1e19, "maximum": -1e19}"#, "-10000000000000000000"),
    ] {
        for format in [
            format!(r#""response_format": {{"type": "json_object", "schema": {schema}}}"#),
            format!(
                r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}"#
            ),
            format!(r#""guided_json": {schema}"#),
            format!(r#""guided_json": {}"#, serde_json::to_string(schema).expect("a string")),
        ] {
            let body = format!(
                r#"{{"model": "paper", "messages": [{{"role": "user", "content": "x"}}], "max_tokens": 60, {format}}}"#
            );
            client.send(crate::harness::post_bytes("/v1/chat/completions", &body, &[])).await;
            let reply = client.reply().await.expect("a reply");
            assert_eq!(reply.status, 200, "{format}: {}", reply.text());
            assert_eq!(content(&reply.json()).trim(), expected, "{format}");
        }
    }
}

#[tokio::test]
async fn no_schema_ends_the_process() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for schema in [
        r#"{"const": -9223372036854775808}"#,
        r#"{"enum": ["x", -9223372036854775807]}"#,
        r#"{"type": "integer", "minimum": -1e30, "maximum": -1e19}"#,
        r#"{"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}"#,
        r#"{"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}"#,
        r#"{"minimum": 1e-300, "maximum": 1e300, "multipleOf": 1e-300}"#,
        r##"{"$ref": "#/x/y", "x": {"y": {"const": -9223372036854775808}}}"##,
    ] {
        let body = format!(
            r#"{{"model": "paper", "messages": [{{"role": "user", "content": "x"}}], "max_tokens": 5, "guided_json": {schema}}}"#
        );
        client.send(crate::harness::post_bytes("/v1/chat/completions", &body, &[])).await;
        let reply = client.reply().await.expect("a reply");
        assert!(matches!(reply.status, 200 | 400), "{schema}: {}", reply.text());
    }
}

#[tokio::test]
async fn what_a_schema_cannot_have_is_named_with_its_place() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for (pattern, keyword) in
        [(r"^(?=.*\d).{3,8}$", "pattern"), ("^(?!x)y$", "pattern"), (r"(a)\1", "pattern")]
    {
        let schema = json!({"properties": {"a": {"type": "string", "pattern": pattern}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let reply = client.post("/v1/chat/completions", &chat(json!({"response_format": format}))).await;
        let (status, _, _, code) = reply.error();
        assert_eq!((status, code.as_str()), (400, "unsupported_json_schema"), "{pattern}");
        let place = format!("in the keyword '{keyword}' at '#/properties/a' is not supported");
        assert!(reply.text().contains(&place), "{pattern}: {}", reply.text());
    }
    for (format, param) in [
        (json!({"type": "json_schema", "json_schema": {"name": "x"}}), "response_format.json_schema.schema"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
    ] {
        let reply = client.post("/v1/chat/completions", &chat(json!({"response_format": format}))).await;
        let (status, _, at, code) = reply.error();
        assert_eq!(
            (status, code.as_str(), at),
            (400, "missing_required_parameter", json!(param)),
            "{format}"
        );
    }
}
