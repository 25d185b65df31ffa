//! `best_of` and beam search over real sockets: which answers are given, what is counted, and that a search
//! ends with its client.

use std::time::Duration;

use crate::harness::{END, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_core::request::{BeamSearch, EarlyStopping, Request, RequestId, SamplingParams, TokenId};
use throng_testkit::paper_executor::paper_answer;

fn token_ids(choice: &Value) -> Vec<TokenId> {
    let ids = choice["token_ids"].as_array().expect("token ids");
    ids.iter().map(|id| id.as_u64().expect("an id") as TokenId).collect()
}

fn mean_logprob(choice: &Value) -> f64 {
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("log-probabilities");
    logprobs.iter().map(|logprob| logprob.as_f64().expect("a number")).sum::<f64>() / logprobs.len() as f64
}

#[tokio::test]
async fn best_of_gives_the_most_likely_answers_and_counts_all() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"prompt": ["Hello", "World"], "seed": 7, "max_tokens": 6, "temperature": 1.0,
                        "logprobs": 0, "return_token_ids": true});
    let with = |more: Value| {
        let mut body = completion(fields.clone());
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let all = client.post("/v1/completions", &with(json!({"n": 5}))).await.json();
    let mut expected = Vec::new();
    for of_prompt in all["choices"].as_array().expect("choices").chunks(5) {
        let mut of_prompt = of_prompt.to_vec();
        of_prompt.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
        expected.extend(of_prompt.iter().take(2).map(token_ids));
    }
    let best = client.post("/v1/completions", &with(json!({"n": 2, "best_of": 5}))).await;
    assert_eq!(best.status, 200, "{}", best.text());
    let best = best.json();
    let choices = best["choices"].as_array().expect("choices");
    assert_eq!(choices.iter().map(token_ids).collect::<Vec<_>>(), expected);
    assert_eq!(choices.iter().map(|c| c["index"].as_u64()).collect::<Vec<_>>(), [0, 1, 2, 3].map(Some));
    assert_eq!(best["usage"], all["usage"], "all generated tokens count");

    let unseen = json!({"n": 2, "best_of": 5, "logprobs": null});
    let unseen = client.post("/v1/completions", &with(unseen)).await.json();
    let choices = unseen["choices"].as_array().expect("choices");
    assert_eq!(choices.iter().map(token_ids).collect::<Vec<_>>(), expected);
    assert!(choices.iter().all(|choice| choice["logprobs"].is_null()), "nobody asked for them");
}

#[tokio::test]
async fn best_of_chooses_among_chat_answers() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"best_of": 3, "seed": 1, "max_tokens": 4, "temperature": 1.0});
    let reply = client.post("/v1/chat/completions", &chat(fields)).await.json();
    assert_eq!(reply["choices"].as_array().map(Vec::len), Some(1));
    let n_tokens = reply["usage"]["completion_tokens"].as_u64().expect("usage");
    assert!((3..=12).contains(&n_tokens), "{reply}");
}

/// What the paper model's most likely beams are.
fn expected_beams(setup: &Setup, n: u32, sampling: SamplingParams) -> Vec<Vec<TokenId>> {
    let request = Request {
        n,
        ..Request::plain(
            RequestId(0),
            b"Hello".iter().map(|&byte| TokenId::from(byte)).collect::<Vec<_>>(),
            sampling,
        )
    };
    let answer = paper_answer(&request, &setup.capacity);
    let tokens = answer.sequences.into_iter().take(n as usize);
    tokens.map(|(tokens, _)| tokens.iter().map(|token| token.chosen.token).collect()).collect()
}

#[tokio::test]
async fn a_beam_search_gives_the_best_beams() {
    let setup = Setup::default();
    let stops = [
        (json!(true), EarlyStopping::WhenFull),
        (json!(false), EarlyStopping::WhenUnlikelyToImprove),
        (json!("never"), EarlyStopping::WhenUnableToImprove),
    ];
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for (n, best_of, length_penalty, (said, early_stopping)) in [
        (1, 1, 1.0, &stops[1]),
        (3, 3, 1.0, &stops[0]),
        (2, 5, 0.5, &stops[1]),
        (4, 4, -1.0, &stops[2]),
        (4, 6, 2.0, &stops[2]),
    ] {
        let search = BeamSearch { width: best_of, length_penalty, early_stopping: *early_stopping };
        let stop_token_ids = (0..20).collect::<Vec<TokenId>>();
        let sampling = SamplingParams {
            max_tokens: 25,
            beams: Some(search),
            eos_token_ids: vec![END],
            stop_token_ids: stop_token_ids.clone(),
            ..Default::default()
        };
        let expected = expected_beams(&setup, n, sampling);
        let body = completion(json!({
            "use_beam_search": true, "n": n, "best_of": best_of, "length_penalty": length_penalty,
            "early_stopping": said, "max_tokens": 25, "stop_token_ids": stop_token_ids,
            "return_token_ids": true, "temperature": 0, "logprobs": 2,
        }));
        let reply = client.post("/v1/completions", &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-throng-ignored"), Some("temperature"));
        let reply = reply.json();
        let choices = reply["choices"].as_array().expect("choices");
        let given: Vec<_> = choices.iter().map(token_ids).collect();
        assert_eq!(given, expected, "{n} of {best_of} beams, {length_penalty}, {said}");
        let n_tokens: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(reply["usage"]["completion_tokens"], n_tokens);
        assert_eq!(
            choices[0]["logprobs"]["token_logprobs"].as_array().map(Vec::len),
            Some(expected[0].len())
        );
    }
    server.idle().await;
}

#[tokio::test]
async fn a_stop_string_cuts_the_beams_it_occurs_in() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let fields = json!({"use_beam_search": true, "n": 2, "max_tokens": 12, "ignore_eos": true});
    let whole = client.post("/v1/chat/completions", &chat(fields.clone())).await.json();
    let text = |reply: &Value, index: usize| {
        reply["choices"][index]["message"]["content"].as_str().expect("text").to_owned()
    };
    let stop = text(&whole, 0).chars().nth(4).expect("a fifth character").to_string();
    let mut body = chat(fields);
    body["stop"] = json!(stop);
    let cut = client.post("/v1/chat/completions", &body).await.json();
    for index in 0..2 {
        let whole = text(&whole, index);
        assert_eq!(text(&cut, index), whole.split(&stop).next().expect("a first part"));
    }
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_beam_search_ends_with_its_client() {
    let server = Server::start(Setup { step_time: Duration::from_millis(2), ..Setup::default() }).await;
    let mut client = server.connect().await;
    let fields = json!({"use_beam_search": true, "n": 4, "max_tokens": 3000, "ignore_eos": true});
    client.send(post_bytes("/v1/completions", &completion(fields).to_string(), &[])).await;
    server.has_made(40).await;
    drop(client);
    server.idle().await;
    let n_tokens = server.engine.stats().scheduler.counters.output_tokens;
    assert!(n_tokens < 4 * 3000, "{n_tokens} tokens were made");
}
