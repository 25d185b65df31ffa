//! Failover: engines fail at random steps while they serve a request, another engine goes on with it, and
//! what the client reads over HTTP is, byte for byte, what it reads from an engine that never fails. Prints
//! the seed of each case.

use crate::faulty_engine::{Fault, FaultKind};
use crate::harness::{END, Reply, Server, Setup, chat, completion};
use fastrand::Rng;
use serde_json::{Value, json};

/// A small machine, so that prompts are computed in chunks and contexts end.
fn setup() -> Setup {
    let mut setup = Setup::default();
    setup.capacity.n_blocks = 128;
    setup.capacity.max_batch_tokens = 48;
    setup.capacity.max_sequence_tokens = 256;
    setup
}

/// A server over engines with these faults.
async fn server(faults: &[Option<Fault>]) -> Server {
    let setup = setup();
    let engines =
        faults.iter().map(|&fault| crate::faulty_engine::start(setup.capacity, setup.engine.clone(), fault));
    Server::over_all(engines.collect(), setup).await
}

/// Letters `a` to `z`, so that answers have a text in which stop strings can be found.
fn letters() -> Vec<u32> {
    (u32::from(b'a')..=u32::from(b'z')).collect()
}

fn letters_and_end() -> Vec<u32> {
    [&letters()[..6], &[END]].concat()
}

/// Requests that between them use everything that depends on the output so far.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = |fields| ("/v1/chat/completions", chat(fields));
    let completion = |fields| ("/v1/completions", completion(fields));
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    let long: String = "a prompt of several chunks ".repeat(5);
    vec![
        chat(
            json!({"stream": true, "seed": 1, "max_tokens": 40, "ignore_eos": true, "stream_options": usage,
                    "logprobs": true, "top_logprobs": 3}),
        ),
        chat(json!({"seed": 2, "n": 3, "max_tokens": 30, "ignore_eos": true, "logprobs": true})),
        chat(json!({"stream": true, "seed": 3, "n": 3, "max_tokens": 30, "return_token_ids": true,
                    "stream_options": {"include_usage": true}})),
        chat(json!({"stream": true, "temperature": 0, "ignore_eos": true})),
        chat(json!({"stream": true, "seed": 4, "min_tokens": 25, "max_tokens": 60,
                    "allowed_token_ids": letters_and_end(), "stream_options": usage})),
        completion(json!({"stream": true, "seed": 5, "max_tokens": 50, "repetition_penalty": 1.3,
                          "presence_penalty": 0.5, "frequency_penalty": 0.25, "bad_words": ["e", "ab"],
                          "allowed_token_ids": letters(), "logprobs": 2})),
        completion(json!({"stream": true, "seed": 6, "min_tokens": 10, "max_tokens": 60, "n": 2,
                          "allowed_token_ids": letters(), "stop_token_ids": [u32::from(b'q'), u32::from(b'x')]})),
        completion(json!({"seed": 7, "prompt": long, "echo": true, "logprobs": 2, "max_tokens": 20,
                          "ignore_eos": true})),
        completion(json!({"stream": true, "seed": 8, "prompt": long, "echo": true, "logprobs": 1,
                          "max_tokens": 20, "ignore_eos": true})),
        completion(json!({"seed": 9, "prompt": ["One", "and another"], "n": 2, "max_tokens": 25,
                          "prompt_logprobs": 1})),
        completion(json!({"stream": true, "seed": 10, "max_tokens": 1, "logprobs": 1})),
        completion(json!({"prompt": long, "echo": true, "logprobs": 1, "max_tokens": 0})),
    ]
}

async fn post(server: &Server, (path, body): &(&str, Value)) -> Reply {
    server.connect().await.post(path, body).await
}

/// What a client reads, without the time, by choice: how the events of several choices alternate depends on
/// the schedule.
fn shown(reply: &Reply) -> Vec<Vec<String>> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let lines: Vec<String> = reply.text().lines().map(without_time).collect();
    let index = |line: &str| {
        let event: Option<Value> = serde_json::from_str(line.strip_prefix("data: ")?).ok();
        event?["choices"][0]["index"].as_u64()
    };
    let mut of_choices =
        vec![Vec::new(); 1 + lines.iter().filter_map(|line| index(line)).max().unwrap_or(0) as usize];
    for line in lines.into_iter().filter(|line| !line.is_empty() && line != ": ping") {
        of_choices[index(&line).unwrap_or(0) as usize].push(line);
    }
    of_choices
}

fn without_time(line: &str) -> String {
    let Some((before, rest)) = line.split_once("\"created\":") else { return line.to_owned() };
    format!("{before}\"created\":0{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// A request's answer from an engine that does not fail, and the steps that it takes.
async fn undisturbed(request: &(&str, Value)) -> (Vec<Vec<String>>, u64) {
    let server = server(&[None]).await;
    let expected = shown(&post(&server, request).await);
    server.idle().await;
    (expected, server.engine.stats().scheduler.counters.steps)
}

fn n_failed(server: &Server, idx: usize) -> u64 {
    server.engines[idx].stats().failures.requests
}

async fn survives_faults(seed: u64, mut request: (&'static str, Value)) {
    println!("seed {seed}: {request:?}");
    let mut rng = Rng::with_seed(seed);
    // The same id in each run.
    request.1["request_id"] = json!("the-same");
    let (expected, n_steps) = undisturbed(&request).await;
    for _ in 0..6 {
        let faults = [Some(Fault::random(&mut rng, n_steps)), Some(Fault::random(&mut rng, n_steps)), None];
        let faults = if rng.bool() { &faults[..] } else { &faults[1..] };
        let server = server(faults).await;
        assert_eq!(shown(&post(&server, &request).await), expected, "{faults:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_notices_no_fault() {
    for (seed, request) in requests().into_iter().enumerate() {
        survives_faults(seed as u64, request).await;
    }
}

#[tokio::test]
async fn stop_strings_are_found_across_faults() {
    for seed in 0..6 {
        let body = json!({"seed": seed, "max_tokens": 60, "allowed_token_ids": letters()});
        let whole = post(&server(&[None]).await, &("/v1/completions", completion(body.clone()))).await.json();
        let text = whole["choices"][0]["text"].as_str().expect("a text").to_owned();
        assert_eq!(text.len(), 60);
        for include in [false, true] {
            let mut body = completion(body.clone());
            let stop = json!({"stop": [&text[20..24]], "stream": true, "include_stop_str_in_output": include,
                              "stream_options": {"include_usage": true}});
            body.as_object_mut().expect("an object").extend(stop.as_object().expect("an object").clone());
            survives_faults(100 + seed, ("/v1/completions", body)).await;
        }
    }
}

#[tokio::test]
async fn a_failed_step_moves_the_request_to_another_replica() {
    let server = server(&[Some(Fault { at_step: 10, kind: FaultKind::StepFails }), None]).await;
    let body = json!({"stream": true, "ignore_eos": true, "max_tokens": 30});
    let reply = post(&server, &("/v1/completions", completion(body))).await;
    assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
    server.idle().await;
    let made = |idx: usize| server.engines[idx].stats().scheduler.counters.output_tokens;
    assert_eq!(n_failed(&server, 0), 1);
    assert_eq!((made(0), made(1)), (9, 21));
    let metrics = server.connect().await.get("/metrics").await;
    for line in [
        "vllm:generation_tokens_total{model_name=\"paper\",engine=\"1\"} 21",
        "vllm:request_generation_tokens_sum{model_name=\"paper\",engine=\"0\"} 30.0",
        "throng_engine_failed_requests_total{model_name=\"paper\",engine=\"0\"} 1",
    ] {
        assert!(metrics.text().contains(line), "{line} in {}", metrics.text());
    }
}

#[tokio::test]
async fn a_step_that_hangs_moves_the_request_to_another_replica() {
    let body =
        json!({"stream": true, "seed": 3, "ignore_eos": true, "max_tokens": 30, "request_id": "the-same"});
    let request = ("/v1/completions", completion(body));
    let (expected, _) = undisturbed(&request).await;
    let setup = setup();
    let mut impatient = setup.engine.clone();
    impatient.step_timeout_ms = 100;
    let fault = Some(Fault { at_step: 7, kind: FaultKind::StepHangs });
    let hangs = crate::faulty_engine::start(setup.capacity, impatient, fault);
    let lives = crate::faulty_engine::start(setup.capacity, setup.engine.clone(), None);
    let server = Server::over_all(vec![hangs, lives], setup).await;
    assert_eq!(shown(&post(&server, &request).await), expected);
    server.idle().await;
    assert_eq!(n_failed(&server, 0), 1);
}

#[tokio::test]
async fn a_request_is_tried_on_three_replicas_and_once_on_each() {
    let fault = Some(Fault { at_step: 3, kind: FaultKind::StepPanics });
    let server = server(&[fault; 5]).await;
    let body = json!({"stream": true, "ignore_eos": true, "max_tokens": 30});
    let events = post(&server, &("/v1/completions", completion(body))).await.events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
    assert_eq!(last["error"]["code"], "internal_error");
    server.idle().await;
    let failed: Vec<u64> = (0..5).map(|idx| n_failed(&server, idx)).collect();
    assert_eq!(failed, [1, 1, 1, 0, 0]);
}

#[tokio::test]
async fn with_one_replica_a_failed_step_ends_the_request() {
    let server = server(&[Some(Fault { at_step: 5, kind: FaultKind::StepFails })]).await;
    let body = json!({"ignore_eos": true, "max_tokens": 30});
    let reply = post(&server, &("/v1/completions", completion(body.clone()))).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (500, "internal_error"));
    // The engine has a new executor.
    assert_eq!(post(&server, &("/v1/completions", completion(body))).await.status, 200);
}

#[tokio::test]
async fn what_would_fail_everywhere_is_not_moved() {
    let server = server(&[Some(Fault { at_step: 2, kind: FaultKind::LogitsAreNan }), None]).await;
    let body = json!({"ignore_eos": true, "max_tokens": 3});
    let reply = post(&server, &("/v1/completions", completion(body))).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (500, "internal_error"));
    server.idle().await;
    assert_eq!((n_failed(&server, 0), server.engines[1].stats().scheduler.counters.steps), (1, 0));
}

#[tokio::test]
async fn a_replica_that_refuses_or_is_lost_is_skipped() {
    let (setup, mut full) = (setup(), setup().engine);
    full.scheduler.max_queued_requests = 0;
    let refuses = || crate::faulty_engine::start(setup.capacity, full.clone(), None);
    let lives = || crate::faulty_engine::start(setup.capacity, setup.engine.clone(), None);
    let request = ("/v1/completions", completion(json!({"max_tokens": 5})));

    let server = Server::over_all(vec![refuses(), lives()], self::setup()).await;
    assert_eq!(post(&server, &request).await.status, 200);
    server.engines[1].drain(crate::harness::PATIENCE).await;
    let refused = post(&server, &request).await;
    assert_eq!((refused.status, refused.error().3.as_str()), (503, "overloaded"));

    let fault = Fault { at_step: 1, kind: FaultKind::EngineIsLost };
    let lost = crate::faulty_engine::start(setup.capacity, setup.engine.clone(), Some(fault));
    let server = Server::over_all(vec![lost, lives()], self::setup()).await;
    // Which replica gets a request is a matter of chance between equal ones.
    for n in 0..100 {
        let request = ("/v1/completions", completion(json!({"max_tokens": 5, "prompt": format!("{n}")})));
        assert_eq!(post(&server, &request).await.status, 200);
        if server.engines[0].is_lost() {
            break;
        }
    }
    assert!(server.engines[0].is_lost());
    for path in ["/health", "/health/live"] {
        assert_eq!(server.connect().await.get(path).await.status, 200, "{path}: one replica is enough");
    }
}
