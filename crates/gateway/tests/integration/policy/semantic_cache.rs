//! The semantic cache over real sockets: a similar question of the same tenant in the same conversation gets
//! the kept answer, or is only counted, and a request that differs in anything else never does. The embedding
//! model of these tests counts letters.

use crate::harness::{EMBEDDER, Reply, Server, Setup, chat, post_bytes};
use serde_json::{Value, json};
use throng_gateway::{Secret, SemanticCacheConfig, SemanticMode};

const QUESTION: &str = "What is the capital of France?";
/// The same letters.
const REWORDED: &str = "The capital of France: what is it?";
const OTHER: &str = "Why do zebras jog quickly by my box?";

fn setup(mode: SemanticMode) -> Setup {
    let mut setup = Setup { has_embedder: true, ..Setup::default() };
    setup.config.response_cache.max_memory_bytes = 16 << 20;
    setup.config.semantic_cache = Some(SemanticCacheConfig {
        model: EMBEDDER.to_owned(),
        mode,
        organisations: vec!["*".to_owned()],
        min_similarity: 0.9,
        max_entries: 100,
        timeout_ms: 250,
    });
    setup
}

fn asking(question: &str, fields: Value) -> Value {
    let mut body = chat(json!({"temperature": 0, "max_tokens": 20}));
    body["messages"] =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]);
    for (key, value) in fields.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

async fn ask(server: &Server, body: &Value, fields: &[&str]) -> Reply {
    let mut client = server.connect().await;
    client.send(post_bytes("/v1/chat/completions", &body.to_string(), fields)).await;
    let reply = client.reply().await.expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
}

fn use_of(reply: &Reply) -> Option<&str> {
    reply.header("x-cache")
}

fn n_made(server: &Server) -> u64 {
    server.engine.stats().scheduler.counters.output_tokens
}

/// How many questions had this result.
async fn look_ups(server: &Server, result: &str) -> u64 {
    let scrape = server.connect().await.get("/metrics").await;
    let start = format!("throng_semantic_cache_look_ups_total{{result=\"{result}\"}} ");
    let line = scrape.text().lines().find_map(|line| line.strip_prefix(&start)).expect("a counter");
    line.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_in_other_words_gets_the_same_answer() {
    let server = Server::start(setup(SemanticMode::Serve)).await;
    let first = ask(&server, &asking(QUESTION, json!({})), &[]).await;
    assert_eq!(use_of(&first), Some("miss"));
    let made = n_made(&server);
    let second = ask(&server, &asking(REWORDED, json!({})), &[]).await;
    assert_eq!(use_of(&second), Some("similar"));
    assert_eq!(second.json()["choices"], first.json()["choices"]);
    let usage = |reply: &Reply, part: &str| reply.json()["usage"][part].as_u64();
    assert_eq!(usage(&second, "completion_tokens"), Some(20));
    // Each prompt has its own length.
    assert!(usage(&second, "prompt_tokens") > usage(&first, "prompt_tokens"));
    let streamed = ask(&server, &asking(REWORDED, json!({"stream": true})), &[]).await;
    assert_eq!(use_of(&streamed), Some("similar"));
    let text: String = streamed
        .chunks()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(Value::from(text), first.json()["choices"][0]["message"]["content"]);
    assert_eq!(n_made(&server), made, "nothing was generated");
    let again = ask(&server, &asking(QUESTION, json!({})), &[]).await;
    assert_eq!(use_of(&again), Some("hit"));
    assert_eq!((look_ups(&server, "hit").await, look_ups(&server, "miss").await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_else_differs_is_another_question() {
    let server = Server::start(setup(SemanticMode::Serve)).await;
    assert_eq!(use_of(&ask(&server, &asking(QUESTION, json!({})), &[]).await), Some("miss"));
    let said = |system: &str, question: &str| json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]});
    let others = [
        (asking(OTHER, json!({})), "a question with other letters"),
        (asking(REWORDED, said("Be long.", REWORDED)), "another system prompt"),
        (asking(REWORDED, json!({"max_tokens": 21})), "another length"),
        (asking(REWORDED, json!({"temperature": 1, "seed": 1})), "another way of sampling"),
        (asking(REWORDED, json!({"logprobs": true})), "log-probabilities"),
        (asking(REWORDED, json!({"cache_salt": "x"})), "a salt"),
        (asking(REWORDED, json!({"n": 2})), "two answers"),
        (asking(REWORDED, json!({"stop": ["a"]})), "a stop string"),
    ];
    for (body, what) in others {
        assert_eq!(use_of(&ask(&server, &body, &[]).await), Some("miss"), "{what}");
    }
    for (body, what) in [
        (asking(REWORDED, json!({"prompt_logprobs": 0})), "log-probabilities of the prompt"),
        (asking(REWORDED, json!({"truncate_prompt_tokens": 60})), "a prompt that is cut"),
    ] {
        let before = look_ups(&server, "miss").await;
        assert_eq!(use_of(&ask(&server, &body, &[]).await), Some("miss"), "{what}");
        assert_eq!(look_ups(&server, "miss").await, before, "{what}");
    }
    let refreshed = ask(&server, &asking(REWORDED, json!({})), &["cache-control: no-cache"]).await;
    assert_eq!(use_of(&refreshed), Some("miss"));
    let alone = ask(&server, &asking(REWORDED, json!({"top_p": 0.9})), &["cache-control: no-store"]).await;
    assert_eq!(use_of(&alone), None);
    let drawn = ask(&server, &asking(REWORDED, json!({"temperature": 1})), &[]).await;
    assert_eq!(use_of(&drawn), None);
    assert_eq!(look_ups(&server, "hit").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_never_get_answers_of_one_another() {
    let mut setup = setup(SemanticMode::Serve);
    setup.config.access.api_keys = vec![Secret::new("key-one"), Secret::new("key-two")];
    let server = Server::start(setup).await;
    let as_one = ["authorization: Bearer key-one"];
    let as_two = ["authorization: Bearer key-two"];
    assert_eq!(use_of(&ask(&server, &asking(QUESTION, json!({})), &as_one).await), Some("miss"));
    assert_eq!(use_of(&ask(&server, &asking(REWORDED, json!({})), &as_two).await), Some("miss"));
    assert_eq!(use_of(&ask(&server, &asking(REWORDED, json!({})), &as_one).await), Some("similar"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_tried_without_an_effect() {
    let server = Server::start(setup(SemanticMode::Report)).await;
    for question in [QUESTION, REWORDED, OTHER] {
        assert_eq!(use_of(&ask(&server, &asking(question, json!({})), &[]).await), Some("miss"));
    }
    assert_eq!(look_ups(&server, "reported").await, 1);
    assert_eq!((look_ups(&server, "hit").await, look_ups(&server, "miss").await), (0, 2));
    let mut named = setup(SemanticMode::Serve);
    let semantic = named.config.semantic_cache.as_mut().expect("one");
    semantic.organisations = vec!["acme".to_owned()];
    let server = Server::start(named).await;
    for question in [QUESTION, REWORDED] {
        assert_eq!(use_of(&ask(&server, &asking(question, json!({})), &[]).await), Some("miss"));
    }
    assert_eq!((look_ups(&server, "hit").await, look_ups(&server, "miss").await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_embedding_in_time_the_request_is_computed() {
    let mut slow = setup(SemanticMode::Serve);
    slow.config.semantic_cache.as_mut().expect("one").timeout_ms = 1;
    let server = Server::start(slow).await;
    // The embedder takes a second for it.
    let long = "a ".repeat(600);
    assert_eq!(use_of(&ask(&server, &asking(&long, json!({})), &[]).await), Some("miss"));
    assert_eq!(look_ups(&server, "failed").await, 1);
    let mut unknown = setup(SemanticMode::Serve);
    unknown.has_embedder = false;
    let server = Server::start(unknown).await;
    assert_eq!(use_of(&ask(&server, &asking(QUESTION, json!({})), &[]).await), Some("miss"));
    assert_eq!(look_ups(&server, "failed").await, 1);
}
