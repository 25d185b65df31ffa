//! The operator's rules over real sockets: prompts are refused, answers end before a match, whole and
//! streamed, and nothing of it is sent in any form.

use crate::harness::{END, Reply, Server, Setup, chat, completion};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_gateway::{Gateway, GatewayConfig, ModerationRule};

const ANSWER: &str = "The password is hunter2, keep it.";

fn rule(literals: &[&str], regex: Option<&str>) -> ModerationRule {
    ModerationRule {
        category: "secrets".to_owned(),
        literals: literals.iter().map(|&text| text.to_owned()).collect(),
        regex: regex.map(str::to_owned),
        input: true,
        output: true,
        tenants: Vec::new(),
    }
}

/// Says the same whatever it is asked, a byte a token. Only requests with a penalty bring their history
/// along.
fn always_the_same(batch: &ScheduledBatch, scheduled: &ScheduledSequence, output: &mut StepOutput) {
    let n_output = batch.history(scheduled, 0).len() - scheduled.n_prompt as usize;
    let token = ANSWER.as_bytes().get(n_output).map_or(END, |&byte| byte.into());
    output.push_sampled(TokenLogprob { token, logprob: -1.0, rank: 1 }, &[]);
}

async fn server(rules: Vec<ModerationRule>) -> Server {
    let mut setup = Setup::default();
    setup.config.moderation.rules = rules;
    Server::answering(setup, always_the_same).await
}

async fn post(server: &Server, path: &str, body: &Value) -> Reply {
    server.connect().await.post(path, body).await
}

#[tokio::test]
async fn an_answer_ends_before_what_must_not_be_sent() {
    let server = server(vec![rule(&["Hunter2"], None)]).await;
    let fields = json!({"max_tokens": 60, "repetition_penalty": 1.1, "return_token_ids": true});
    let shown = "The password is ";
    let whole = post(&server, "/v1/chat/completions", &chat(fields.clone())).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], shown, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "content_filter");
    let whole = post(&server, "/v1/completions", &completion(fields.clone())).await.json();
    assert_eq!(whole["choices"][0]["text"], shown, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "content_filter");
    for logprobs in [false, true] {
        let mut body = chat(fields.clone());
        body["stream"] = json!(true);
        body["logprobs"] = json!(logprobs);
        let reply = post(&server, "/v1/chat/completions", &body).await;
        let chunks = reply.chunks();
        let text: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, shown);
        assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], "content_filter");
        let ids: Vec<u64> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        assert!(ids.len() <= shown.len() && !ids.contains(&u64::from(b'u')), "{ids:?}");
    }
    server.idle().await;
    assert!(server.engine.stats().scheduler.counters.output_tokens < 4 * 60, "the generations were ended");
}

#[tokio::test]
async fn an_answer_without_a_match_is_sent_as_it_is() {
    let filtered = server(vec![rule(&[], Some(r"\bpass\b")), rule(&["hunter3"], None)]).await;
    let free = server(Vec::new()).await;
    for stream in [false, true] {
        let body = completion(json!({"max_tokens": 60, "repetition_penalty": 1.1, "stream": stream,
                                     "request_id": "the-same"}));
        let (one, other) =
            (post(&filtered, "/v1/completions", &body).await, post(&free, "/v1/completions", &body).await);
        let shown = |reply: &Reply| -> String {
            let lines = reply.text().lines().filter(|line| !line.is_empty());
            lines.map(|line| line.split("\"created\":").last().unwrap_or(line)[10..].to_owned()).collect()
        };
        let text = |reply: &Reply| match stream {
            false => reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned(),
            true => reply
                .chunks()
                .iter()
                .filter_map(|c| c["choices"][0]["text"].as_str().map(str::to_owned))
                .collect(),
        };
        assert_eq!(text(&one), ANSWER);
        assert_eq!(text(&one), text(&other));
        if !stream {
            assert_eq!(shown(&one), shown(&other));
        }
    }
}

#[tokio::test]
async fn a_prompt_with_a_match_is_refused() {
    let server = server(vec![rule(&["forbidden"], None)]).await;
    for (path, body, param) in [
        ("/v1/completions", completion(json!({"prompt": "a Forbidden word"})), "prompt"),
        (
            "/v1/completions",
            completion(json!({"prompt": "forbidden".bytes().collect::<Vec<u8>>()})),
            "prompt",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"messages": [{"role": "user", "content": "forbidden"}]})),
            "messages",
        ),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let (status, _, named, code) = post(&server, path, &body).await.error();
            assert_eq!((status, code.as_str(), named), (400, "content_filter", json!(param)));
        }
    }
    assert_eq!(
        post(&server, "/v1/completions", &completion(json!({"max_tokens": 1, "repetition_penalty": 1.1})))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn texts_can_be_checked() {
    let mut input_only = rule(&["bomb"], None);
    (input_only.category, input_only.output) = ("violence".to_owned(), false);
    let server = server(vec![rule(&["hunter2"], None), input_only]).await;
    let body = json!({"input": ["a BOMB", "fine", "hunter2 and a bomb"], "model": "omni-moderation-latest"});
    let answer = post(&server, "/v1/moderations", &body).await.json();
    assert_eq!(answer["model"], "omni-moderation-latest");
    let results = answer["results"].as_array().expect("a list");
    let flagged = |i: usize| (&results[i]["flagged"], &results[i]["categories"]);
    assert_eq!(flagged(0), (&json!(true), &json!({"secrets": false, "violence": true})));
    assert_eq!(flagged(1), (&json!(false), &json!({"secrets": false, "violence": false})));
    assert_eq!(flagged(2), (&json!(true), &json!({"secrets": true, "violence": true})));
    assert_eq!(results[0]["category_scores"], json!({"secrets": 0.0, "violence": 1.0}));
    for (body, code) in [
        (json!({}), "missing_required_parameter"),
        (json!({"input": []}), "missing_required_parameter"),
        (json!({"input": 5}), "invalid_type"),
        (json!({"input": [5]}), "invalid_type"),
    ] {
        let (status, _, _, found) = post(&server, "/v1/moderations", &body).await.error();
        assert_eq!((status, found.as_str()), (400, code), "{body}");
    }
}

#[test]
fn rules_that_cannot_be_used_end_the_start() {
    for bad in [rule(&[], None), rule(&["a"], Some("b")), rule(&[], Some("(")), rule(&[], Some("a+"))] {
        let mut config = GatewayConfig::default();
        config.moderation.rules = vec![rule(&["fine"], None), bad.clone()];
        let error = Gateway::loading(config, Default::default()).expect_err("refused");
        assert!(error.to_string().contains("rule 1"), "{error}: {bad:?}");
    }
}
