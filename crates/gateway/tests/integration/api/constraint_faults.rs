//! Constraints that fail while outputs are made: typed errors, as an answer and in a stream, and nothing left
//! behind.

use crate::harness::{Server, Setup, chat, completion};
use serde_json::{Value, json};
use throng_core::constraint::ConstraintError;
use throng_core::scheduling::batch::SequenceError;

/// A server that fails the sequences of every request.
async fn failing(error: SequenceError) -> Server {
    Server::answering(Setup::default(), move |_, _, output| output.fail_sequence(error)).await
}

fn stream_error(events: &[String]) -> Value {
    let last: Value = serde_json::from_str(events.last().expect("an event")).expect("JSON");
    last["error"].clone()
}

#[tokio::test]
async fn parameters_that_leave_no_token_of_the_constraint_are_a_400() {
    let server = Server::start(Setup::default()).await;
    for fields in [
        json!({"guided_regex": "[ab]c", "bad_words": ["a", "b"]}),
        json!({"guided_regex": "[ab]c", "allowed_token_ids": [120, 121]}),
        json!({"guided_regex": "[ab]c", "bad_words": ["ac", "bc"]}),
    ] {
        for (path, mut body) in
            [("/v1/chat/completions", chat(fields.clone())), ("/v1/completions", completion(fields.clone()))]
        {
            let mut client = server.connect().await;
            let reply = client.post(path, &body).await;
            let (status, kind, param, code) = reply.error();
            assert_eq!(
                (status, kind.as_str(), code.as_str()),
                (400, "invalid_request_error", "no_token_allowed")
            );
            assert_eq!(param, "guided_regex", "{fields}");
            body["stream"] = json!(true);
            let reply = client.post(path, &body).await;
            let error = if reply.status == 200 {
                stream_error(&reply.events())
            } else {
                reply.json()["error"].clone()
            };
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("no_token_allowed"), &json!("guided_regex"))
            );
        }
    }
    server.idle().await;
}

#[tokio::test]
async fn faults_while_a_constraint_is_evaluated_are_told_apart() {
    let schema = json!({"response_format": {"type": "json_object"}});
    for (error, fields, status, code, param) in [
        (
            SequenceError::Constraint(ConstraintError::LimitExceeded),
            schema.clone(),
            400,
            "schema_too_complex",
            json!("response_format"),
        ),
        (
            SequenceError::Constraint(ConstraintError::LimitExceeded),
            json!({"guided_regex": "a*"}),
            400,
            "regex_too_complex",
            json!("guided_regex"),
        ),
        (SequenceError::NothingAllowed, json!({}), 400, "no_token_allowed", Value::Null),
        (
            SequenceError::Constraint(ConstraintError::Failed),
            schema.clone(),
            500,
            "internal_error",
            Value::Null,
        ),
        (
            SequenceError::Constraint(ConstraintError::OutputRejected),
            schema,
            500,
            "internal_error",
            Value::Null,
        ),
    ] {
        let server = failing(error).await;
        let mut client = server.connect().await;
        let mut body = chat(fields);
        let found = client.post("/v1/chat/completions", &body).await.error();
        assert_eq!((found.0, found.3.as_str(), found.2), (status, code, param), "{error}");
        body["stream"] = json!(true);
        let reply = client.post("/v1/chat/completions", &body).await;
        let told =
            if reply.status == 200 { stream_error(&reply.events()) } else { reply.json()["error"].clone() };
        assert_eq!(told["code"], code, "{error}");
        server.idle().await;
    }
}
