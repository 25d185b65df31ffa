//! Workers over real sockets with the paper executor: who may ask them what, what a gateway makes of them,
//! and that what nobody wants any more ends there too.

use crate::harness::{Client, VOCABULARY, completion, post_bytes};
use crate::running_worker::{RunningWorker, TOKEN, all_ready, gateway, gateway_with, serve, until};
use serde_json::{Value, json};
use throng_core::scheduling::block_hash::BlockKey;
use throng_gateway::{Gateway, GatewayConfig, ModelAlias, ReplicaConfig, Secret, WeightedModel};
use throng_wire::{ARTIFACTS, DESCRIBE, Description, GENERATE, STATUS, VERSION_HEADER, WATCH};

#[tokio::test]
async fn a_worker_answers_whom_it_knows_and_refuses_what_it_does_not() {
    let worker = RunningWorker::start("paper", |_| {}).await;
    let bearer = format!("Bearer {TOKEN}");
    let token = ("authorization", bearer.as_str());
    let version = (VERSION_HEADER, "1");
    let request = json!({"prompt": [1, 2], "n": 1, "sampling": {"max_tokens": 3, "ignore_eos": true}});
    for path in [DESCRIBE, STATUS, WATCH, GENERATE, &format!("{ARTIFACTS}x")] {
        let body = (path == GENERATE).then(|| request.to_string());
        for fields in [&[version][..], &[version, ("authorization", "Bearer wrong")]] {
            assert_eq!(worker.ask(path, fields, body.clone()).await.0, 401, "{path}");
        }
    }
    let (status, body) = worker.ask(DESCRIBE, &[token], None).await;
    let description: Description = serde_json::from_slice(&body).expect("a description");
    assert_eq!((status, description.names[0].as_str()), (200, "paper"));
    let artifact = format!("{ARTIFACTS}{}", description.artifacts[0].digest);
    assert_eq!(worker.ask(&artifact, &[token], None).await.1, br#"[["default", "{{ messages }}"]]"#);
    assert_eq!(worker.ask(&format!("{ARTIFACTS}00"), &[token], None).await.0, 404);
    let (status, body) = worker.ask(GENERATE, &[token, version], Some(format!("{request}\n"))).await;
    let text = String::from_utf8(body).expect("text");
    assert!(
        status == 200 && text.starts_with("{\"event\":\"accepted\"}\n") && text.lines().count() == 6,
        "{text}"
    );
    for (fields, body) in [
        (vec![token], request.to_string()),
        (vec![token, (VERSION_HEADER, "2")], request.to_string()),
        (vec![token, version], "{".to_owned()),
        (vec![token, version], json!({"n": 1_000_000, "prompt": [1]}).to_string()),
        (
            vec![token, version],
            json!({"prompt": [1], "resumed": [{"index": 4_000_000_000u32, "output": []}]}).to_string(),
        ),
        (
            vec![token, version],
            json!({"prompt": [1], "n": 1, "constraint": {"form": {"kind": "haiku"}}}).to_string(),
        ),
    ] {
        assert_eq!(worker.ask(GENERATE, &fields, Some(format!("{body}\n"))).await.0, 400, "{body}");
    }
    // What no gateway sends: each of these made a thread of the worker panic, or would take all memory.
    let infinite = f32::INFINITY.to_bits();
    let not_a_number = f32::NAN.to_bits();
    let form = json!({"kind": "regex", "of": "a+"});
    for (key, value) in [
        (
            "sampling",
            json!({"beams": {"width": u32::MAX, "length_penalty": 0, "early_stopping": "when_full"}}),
        ),
        ("sampling", json!({"beams": {"width": 0, "length_penalty": 0, "early_stopping": "when_full"}})),
        ("sampling", json!({"temperature": not_a_number})),
        ("sampling", json!({"top_p": infinite})),
        ("sampling", json!({"logit_bias": [[1, not_a_number]]})),
        ("sampling", json!({"repetition_penalty": 0})),
        ("constraint", json!({"form": form, "reasoning": {}})),
        ("constraint", json!({"form": form, "reasoning": {"open": [1], "close": [], "is_open": true}})),
        ("constraint", json!({"reasoning": {"budget": 0}})),
    ] {
        let mut body = request.clone();
        body[key] = value;
        let (status, answer) = worker.ask(GENERATE, &[token, version], Some(format!("{body}\n"))).await;
        assert_eq!(status, 400, "{body}: {}", String::from_utf8_lossy(&answer));
    }
    let refused = json!({"prompt": [VOCABULARY], "n": 1}).to_string();
    let (_, body) = worker.ask(GENERATE, &[token, version], Some(format!("{refused}\n"))).await;
    let text = String::from_utf8(body).expect("text");
    assert!(text.contains("\"event\":\"failed\"") && text.contains("invalid_token"), "{text}");
    worker.idle().await;
}

#[tokio::test]
async fn what_nobody_wants_ends_at_the_worker() {
    let worker = RunningWorker::start("paper", |_| {}).await;
    let (_fleet, address) = gateway(&[&worker]).await;
    let mut client = Client::connect(address).await;
    until(&mut client, all_ready).await;
    let body =
        completion(json!({"prompt": [1, 2, 3], "ignore_eos": true, "max_tokens": 4000, "stream": true}));
    let mut gone = Client::connect(address).await;
    gone.send(post_bytes("/v1/completions", &body.to_string(), &[])).await;
    gone.read_until("data: ").await;
    drop(gone);
    worker.idle().await;
    assert!(worker.engine.stats().scheduler.counters.output_tokens < 4000);
    let body = completion(json!({"prompt": [1, 2, 3], "ignore_eos": true, "max_tokens": 20, "n": 2}));
    let reply = client.post("/v1/completions", &body).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 40, "{}", reply.text());
}

#[tokio::test]
async fn prompts_go_where_their_prefix_is_cached_and_pins_hold() {
    // So short steps that a prompt takes 32 of them: whatever else the machine does, one step of a worker is shorter than that.
    let start = || RunningWorker::start_with_steps_of(64, "paper", |_| {});
    let workers = [start().await, start().await, start().await];
    let (_fleet, address) = gateway(&workers.each_ref()).await;
    let mut client = Client::connect(address).await;
    until(&mut client, |workers| workers.len() == 3 && all_ready(workers)).await;
    let names = workers.each_ref().map(|worker| format!("x-throng-replica: {}", worker.address));
    let prompt_tokens =
        || workers.each_ref().map(|worker| worker.engine.stats().scheduler.counters.prompt_tokens);
    let hits = || workers.each_ref().map(|worker| worker.engine.stats().scheduler.counters.cache_hit_tokens);
    // Two prompts of many steps, each computed first where its pin says.
    let prompts = [1_u32, 2].map(|first| (0..2_008).map(|idx| first + idx % 7).collect::<Vec<_>>());
    let body = |idx: usize| {
        completion(json!({"prompt": prompts[idx], "ignore_eos": true, "max_tokens": 2})).to_string()
    };
    for (idx, worker) in [(0, 2), (1, 1)] {
        client.send(post_bytes("/v1/completions", &body(idx), &[&names[worker]])).await;
        assert_eq!(client.reply().await.expect("an answer").status, 200);
        let known = |workers: &[Value]| workers[worker]["known_blocks"].as_u64() >= Some(125);
        until(&mut client, known).await;
    }
    let before = prompt_tokens();
    assert!(before[2] >= 2_000 && before[1] >= 2_000 && before[0] < 100, "{before:?}");
    for turn in 0..6 {
        client.send(post_bytes("/v1/completions", &body(turn % 2), &[])).await;
        assert_eq!(client.reply().await.expect("an answer").status, 200);
    }
    let after = hits();
    assert_eq!(after, [0, 3 * 2_000, 3 * 2_000], "prompts went elsewhere than their prefixes: {after:?}");
    // A pin is stronger than what is cached; nobody else takes its place.
    client.send(post_bytes("/v1/completions", &body(0), &[&names[0]])).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    let now = prompt_tokens();
    assert!(now[0] >= 2_000 && now[2] < before[2] + 200, "{now:?}");
    client.send(post_bytes("/v1/completions", &body(0), &["x-throng-replica: elsewhere"])).await;
    let refused = client.reply().await.expect("an answer");
    assert_eq!(refused.error().3, "no_healthy_worker");
    assert!(
        refused.text().contains("The worker that 'x-throng-replica' names is not known"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_worker_is_known_by_its_name() {
    let workers = [RunningWorker::start("paper", |_| {}).await, RunningWorker::start("paper", |_| {}).await];
    let config = |worker: &RunningWorker, name: Option<&str>| ReplicaConfig {
        name: name.map(str::to_owned),
        ..ReplicaConfig::of_url(format!("throng://{}", worker.address))
    };
    let start = |replicas: [ReplicaConfig; 2]| {
        let (gateway, loading) =
            Gateway::loading(GatewayConfig::default(), Default::default()).expect("valid");
        (gateway, loading.start_fleet(&replicas, Some(&Secret::new(TOKEN))))
    };
    let (_, twice) = start([config(&workers[0], Some("gpu-1")), config(&workers[1], Some("gpu-1"))]);
    assert_eq!(twice.expect_err("a name for two").to_string(), "the name gpu-1 is given to two workers");

    let (gateway, fleet) = start([config(&workers[0], Some("gpu-1")), config(&workers[1], None)]);
    let _fleet = fleet.expect("valid");
    let (address, _) = serve(gateway).await;
    let mut client = Client::connect(address).await;
    let shown = until(&mut client, |workers| workers.len() == 2 && all_ready(workers)).await;
    let unnamed = workers[1].address.to_string();
    assert_eq!((&shown[0]["name"], &shown[1]["name"]), (&json!("gpu-1"), &json!(unnamed)));
    assert_eq!(shown[0]["url"], json!(format!("throng://{}", workers[0].address)));
    let n_made = |worker: &RunningWorker| worker.engine.stats().scheduler.counters.output_tokens;
    for (name, n, status) in
        [("gpu-1", 0, 200), (&unnamed, 1, 200), (&workers[0].address.to_string(), 0, 503)]
    {
        let before = n_made(&workers[n]);
        let body = completion(json!({"prompt": [1, 2], "ignore_eos": true, "max_tokens": 7}));
        let pin = format!("x-throng-replica: {name}");
        client.send(post_bytes("/v1/completions", &body.to_string(), &[&pin])).await;
        assert_eq!(client.reply().await.expect("an answer").status, status, "{name}");
        let n_expected = if status == 200 { 7 } else { 0 };
        assert!((n_expected..n_expected + 4).contains(&(n_made(&workers[n]) - before)), "{name}");
    }
    let metrics = client.get("/metrics").await;
    for replica in ["gpu-1".to_owned(), format!("throng://{unnamed}")] {
        let line =
            format!(r#"throng_replica_state{{model_name="paper",replica="{replica}",state="ready"}} 1"#);
        assert!(metrics.text().contains(&line), "{line} in {}", metrics.text());
    }
}

#[tokio::test]
async fn what_is_said_of_caches_is_for_those_who_understand_it() {
    let worker = RunningWorker::start("paper", |_| {}).await;
    let bearer = format!("Bearer {TOKEN}");
    // Only the watch of a worker has the changes of its cache: what it says once is as from a worker that never tells them.
    let (status, body) = worker.ask(STATUS, &[("authorization", &bearer)], None).await;
    let text = String::from_utf8(body).expect("text");
    assert!(status == 200 && !text.contains("cache\":"), "{text}");
    let status: throng_wire::Status = serde_json::from_str(&text).expect("a status");
    assert_eq!(status.cache, None);
    let newer = r#"{"health": "ready", "cache": {"stored": [18446744073709551615], "hints": {}}, "new": 1}"#;
    let status: throng_wire::Status = serde_json::from_str(newer).expect("known fields");
    let changes = status.cache.expect("changes");
    assert_eq!(
        (changes.is_snapshot, changes.stored, changes.removed),
        (false, vec![BlockKey(u64::MAX)], vec![])
    );
}

#[tokio::test]
async fn aliases_divide_sessions_and_fall_back() {
    let old = RunningWorker::start("old", |_| {}).await;
    let new = RunningWorker::start("new", |_| {}).await;
    let mut config = GatewayConfig::default();
    let target = |model: &str, weight| WeightedModel { model: model.to_owned(), weight };
    let alias = |name: &str, targets, fallback: &[&str]| ModelAlias {
        name: name.to_owned(),
        targets,
        fallback: fallback.iter().map(|model| (*model).to_owned()).collect(),
        shadow: None,
    };
    config.routing.aliases = vec![
        alias("chat", vec![target("old", 3), target("new", 1)], &[]),
        alias("gone", vec![target("nowhere", 1)], &["not there", "new", "old"]),
        alias("none", vec![target("nowhere", 1)], &[]),
    ];
    let (_fleet, address) = gateway_with(config, &[&old, &new]).await;
    let mut client = Client::connect(address).await;
    until(&mut client, all_ready).await;
    let (mut counts, mut of_header) = ([0, 0], None);
    for session in 0..40 {
        let body = json!({"model": "chat", "prompt": [1, 2], "max_tokens": 1, "user": format!("u{session}")});
        let mut models = Vec::new();
        for _ in 0..3 {
            models.push(client.post("/v1/completions", &body).await.json()["model"].clone());
        }
        assert!(models.iter().all(|model| *model == models[0]), "{models:?}");
        counts[usize::from(models[0] == "new")] += 1;
        // The header is stronger than the user.
        client.send(post_bytes("/v1/completions", &body.to_string(), &["x-session-id: one"])).await;
        let model = client.reply().await.expect("an answer").json()["model"].clone();
        assert_eq!(*of_header.get_or_insert(model.clone()), model);
    }
    // These 40 users stand where their digests say: every run divides them so.
    assert!(counts[0] > counts[1] && counts[1] > 0, "{counts:?}");
    for (name, model) in [("gone", "new"), ("old", "old")] {
        let body = json!({"model": name, "prompt": [1, 2], "max_tokens": 1});
        assert_eq!(client.post("/v1/completions", &body).await.json()["model"], model);
    }
    let body = json!({"model": "none", "prompt": [1, 2], "max_tokens": 1});
    assert_eq!(client.post("/v1/completions", &body).await.status, 404);
    let models = client.get("/v1/models").await.json();
    let ids: Vec<&str> =
        models["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert!(ids.contains(&"chat") && ids.contains(&"gone"), "{ids:?}");
}

#[tokio::test]
async fn models_stand_side_by_side_and_workers_that_differ_are_not_used() {
    let first = RunningWorker::start("paper", |_| {}).await;
    let (_fleet, address) = {
        let other_model = RunningWorker::start("other", |_| {}).await;
        let unlike = RunningWorker::start("other", |description| description.eos_token_ids = vec![1]).await;
        gateway(&[&first, &other_model, &unlike]).await
    };
    let mut client = Client::connect(address).await;
    let workers = until(&mut client, |workers| {
        let ready = workers.iter().filter(|worker| worker["state"] == "ready").count();
        let refused =
            |worker: &Value| worker["reason"].as_str().is_some_and(|reason| reason.contains("end tokens"));
        ready == 2 && workers.iter().any(refused)
    })
    .await;
    assert_eq!(workers[0]["models"], json!(["paper"]));
    let models = client.get("/v1/models").await.json();
    let ids: Vec<&str> =
        models["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert!(ids.len() == 2 && ids.contains(&"paper") && ids.contains(&"other"), "{ids:?}");
    for model in ids {
        let body = json!({"model": model, "prompt": [5, 6], "max_tokens": 3, "ignore_eos": true});
        let reply = client.post("/v1/completions", &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}
