//! However a body is changed, parsing it gives a request or a 4xx error: never a panic, never an internal
//! error. The original bodies are those of the table of invalid input.

use std::sync::LazyLock;

use crate::bad_input::{Case, Endpoint};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngSeed, TestRunner};
use throng_api::openai::{DetokenizeRequest, TokenizeRequest, chat, completion};
use throng_api::spec::{ModelFacts, ModelLimits};
use throng_api::{ApiError, ReadOptions};
use throng_core::request::GenerationDefaults;

/// Bodies that are short enough to be changed often.
static SEEDS: LazyLock<Vec<Case>> =
    LazyLock::new(|| crate::bad_input::cases().into_iter().filter(|case| case.body.len() < 2000).collect());

/// Pieces that are inserted in place of a value, a key or anything else.
const PIECES: &[&str] = &[
    "null",
    "true",
    "0",
    "-1",
    "1.0",
    "1.5",
    "1e400",
    "-0",
    "4294967296",
    "9223372036854775808",
    "1e308",
    "NaN",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "[]",
    "{}",
    "[null]",
    "[[]]",
    "[{}]",
    "{\"a\":1}",
    "{\"type\":\"text\"}",
    "\"stream\":true",
    "\"n\":2",
    "\"logprobs\":true",
    "\"stop\":[\"\"]",
    "\"tools\":[]",
    "\"prompt\":[1]",
    "\"messages\":[]",
    "\"role\":\"tool\"",
    "\"tool_call_id\":\"a\"",
    "\"tool_choice\":\"none\"",
    "1e-50",
    "\"content\":null",
    "\"echo\":true",
    "\"max_tokens\":0",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    " ",
    "\n",
    "\u{feff}",
    "\u{202e}",
];

#[derive(Debug, Clone)]
enum Change {
    Cut(Index, Index),
    Insert(Index, Index),
    ReplaceValue(Index, Index),
    CopyWithin(Index, Index, Index),
    Byte(Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        1 => (index(), index()).prop_map(|(a, b)| Change::Cut(a, b)),
        1 => (index(), index()).prop_map(|(at, piece)| Change::Insert(at, piece)),
        4 => (index(), index()).prop_map(|(at, piece)| Change::ReplaceValue(at, piece)),
        1 => (index(), index(), index()).prop_map(|(a, b, to)| Change::CopyWithin(a, b, to)),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
    ]
}

fn range(a: &Index, b: &Index, len: usize) -> std::ops::Range<usize> {
    let (a, b) = (a.index(len + 1), b.index(len + 1));
    a.min(b)..a.max(b)
}

fn apply(body: &mut Vec<u8>, change: &Change) {
    let len = body.len();
    match change {
        Change::Cut(a, b) => drop(body.drain(range(a, b, len))),
        Change::Insert(at, piece) => {
            let at = at.index(len + 1);
            body.splice(at..at, piece.get(PIECES).bytes());
        }
        Change::ReplaceValue(at, piece) => {
            // From one separator to the next: often just a value, a key or an element.
            let is_edge = |b: &u8| matches!(b, b',' | b':' | b'[' | b']' | b'{' | b'}');
            let start = at.index(len + 1);
            let start = body[..start].iter().rposition(is_edge).map_or(0, |edge| edge + 1);
            let end = body[start..].iter().position(is_edge).map_or(len, |n| start + n);
            body.splice(start..end, piece.get(PIECES).bytes());
        }
        Change::CopyWithin(a, b, to) => {
            let copy = body[range(a, b, len)].to_vec();
            let to = to.index(len + 1);
            body.splice(to..to, copy);
        }
        Change::Byte(at, byte) if len > 0 => body[at.index(len)] = *byte,
        Change::Byte(..) => {}
    }
}

fn read(endpoint: Endpoint, body: &[u8]) -> Result<(), ApiError> {
    let limits = ModelLimits { vocabulary_size: 1000, max_model_len: 512, max_logprobs: Some(20) };
    let defaults = GenerationDefaults::default();
    let facts = ModelFacts { limits, defaults: &defaults, eos_token_ids: &[0] };
    let mut encode = |word: &str| Ok(word.bytes().map(u32::from).collect());
    let options = ReadOptions::default();
    match endpoint {
        Endpoint::Chat => {
            let mut request = chat::parse(body, &options)?;
            request.ignore_unread_variables(|_| false);
            request.conversation_mut().unwrap().take_messages_for_template(false);
            request.options.sampling_params(10, &facts, 1, &mut encode).map(drop)
        }
        Endpoint::Completion => {
            let request = completion::parse(body, &options)?.spec;
            let _ = request.options.truncated(&[1; 700], &limits);
            request.options.sampling_params(10, &facts, 1, &mut encode).map(drop)
        }
        Endpoint::Tokenize => TokenizeRequest::parse(body, &options).map(drop),
        Endpoint::Detokenize => DetokenizeRequest::parse(body, &options)?.check(1000),
    }
}

#[test]
fn any_body_is_a_request_or_a_client_error() {
    let seed =
        std::env::var("THRONG_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().expect("a number"));
    let config = ProptestConfig {
        cases: 8_000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    };
    let changed = (any::<Index>(), prop::collection::vec(change(), 0..6));
    let outcome = TestRunner::new(config).run(&changed, |(seed, changes)| {
        let case = seed.get(&SEEDS);
        let mut body = case.body.clone();
        changes.iter().for_each(|change| apply(&mut body, change));
        if let Err(error) = read(case.endpoint, &body) {
            prop_assert!(error.status() == 400, "{error:?}");
            prop_assert!(error.message().len() < 600 && !error.message().chars().any(char::is_control));
            let object: serde_json::Value =
                serde_json::from_slice(&error.to_json()).expect("an error is JSON");
            prop_assert_eq!(&object["error"]["type"], "invalid_request_error");
            prop_assert!(object["error"]["code"].is_string());
        }
        Ok(())
    });
    if let Err(fault) = outcome {
        panic!("THRONG_SEED={seed} cargo test -p throng-gateway --test integration wire_properties\n{fault}");
    }
}
