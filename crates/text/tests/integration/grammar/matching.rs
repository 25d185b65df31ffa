//! Matchers are pure functions of the output, whatever was asked before.

use std::sync::Arc;

use serde_json::json;
use throng_text::grammar::{
    CacheLimits, CompileLimits, ConstraintSpec, GrammarCache, GrammarCompiler, GrammarError, GrammarMatcher,
};
use throng_text::{EncodeOptions, Tokenizer};

use super::vocabularies::{COMPILER, STARTER, compiler, released};
use super::walk::{allowed, matcher, next, seed, walk};

const PLAIN: EncodeOptions = EncodeOptions { add_special_tokens: false, parse_special: false };

fn specs() -> Vec<ConstraintSpec> {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "kind": {"enum": ["alpha", "beta"]},
        "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    }, "required": ["name", "kind", "list"], "additionalProperties": false});
    let lark = "start: \"begin\" x* \"end\"\nx: /[a-z]+/ \";\" | \"(\" x \")\"\n";
    vec![
        ConstraintSpec::JsonObject,
        ConstraintSpec::JsonSchema(schema),
        ConstraintSpec::Regex(r"(ab|a)*c{3}\d+".to_owned()),
        ConstraintSpec::Regex(r"The answer is (yes|no)\. Thank you for asking, (sir|madam)!".to_owned()),
        ConstraintSpec::Gbnf("root ::= \"(\" root \")\" | [a-z]+ \"!\"".to_owned()),
        ConstraintSpec::Lark(lark.to_owned()),
        ConstraintSpec::Lark("start: t \"!\"\nt[stop=\".\"]: /[a-z ]*/".to_owned()),
    ]
}

#[test]
fn masks_do_not_depend_on_what_was_asked_before() {
    let mut rng = fastrand::Rng::with_seed(seed("masks_do_not_depend_on_what_was_asked_before"));
    for spec in specs() {
        let grammar = COMPILER.compile(&spec).unwrap();
        let asked = GrammarMatcher::new(grammar.clone(), 2);
        let outputs: Vec<Vec<u32>> = (0..4)
            .map(|_| {
                walk(&GrammarMatcher::new(grammar.clone(), 1), &STARTER, &mut rng, 20, 60).unwrap().tokens
            })
            .collect();
        for _ in 0..80 {
            let output = &outputs[rng.usize(..outputs.len())];
            let output = &output[..rng.usize(..=output.len())];
            let fresh = GrammarMatcher::new(grammar.clone(), 1);
            assert_eq!(next(&asked, output).unwrap(), next(&fresh, output).unwrap(), "{spec:?} {output:?}");
            if rng.bool() {
                let (mut one, mut other) = (vec![7], vec![7]);
                asked.forced(output, &mut one).unwrap();
                fresh.forced(output, &mut other).unwrap();
                assert_eq!(one, other, "{spec:?} {output:?}");
            }
        }
    }
}

#[test]
fn rejected_drafts_leave_no_trace() {
    let mut rng = fastrand::Rng::with_seed(seed("rejected_drafts_leave_no_trace"));
    for spec in specs() {
        let drafted = matcher(spec.clone());
        let plain = matcher(spec.clone());
        let mut output = Vec::new();
        for _ in 0..40 {
            let draft = walk(&plain, &STARTER, &mut rng, 30, 60).unwrap().tokens;
            let tail: Vec<u32> = output.iter().chain(draft.iter().skip(output.len())).copied().collect();
            for n in output.len()..tail.len().min(output.len() + 5) {
                // A draft may leave the grammar: then there is no mask, and nothing else changes.
                let _ = next(&drafted, &tail[..n]);
            }
            let choices = next(&drafted, &output).unwrap();
            assert_eq!(choices, next(&plain, &output).unwrap(), "{spec:?} {output:?}");
            let token = choices[rng.usize(..choices.len())];
            output.push(token);
            if plain.grammar().end_tokens().contains(&token) {
                break;
            }
        }
    }
}

#[test]
fn forced_tokens_are_those_that_masks_allow_alone() {
    let mut rng = fastrand::Rng::with_seed(seed("forced_tokens_are_those_that_masks_allow_alone"));
    let mut n_forced = 0;
    for spec in specs() {
        let (forcing, masking) = (matcher(spec.clone()), matcher(spec.clone()));
        for n in 0..32 {
            let output = walk(&masking, &STARTER, &mut rng, 10, 60).unwrap().tokens;
            let output = &output[..rng.usize(..=output.len()).min(n % 8)];
            let mut longer = output.to_vec();
            let mut forced = Vec::new();
            forcing.forced(output, &mut forced).unwrap();
            assert!(forced.len() <= 64);
            for &token in &forced {
                assert_eq!(next(&masking, &longer).unwrap(), [token], "{spec:?} {longer:?}");
                longer.push(token);
            }
            n_forced += forced.len();
        }
    }
    assert!(n_forced > 20, "only {n_forced} tokens were forced");
    let whole = matcher(ConstraintSpec::Regex(r#"The answer is (yes|no)\."#.to_owned()));
    let mut forced = Vec::new();
    whole.forced(&[], &mut forced).unwrap();
    assert!("The answer is ".starts_with(&STARTER.decode(&forced, false)) && forced.len() > 1, "{forced:?}");
    let canonical = STARTER.encode("The answer is yes.", PLAIN);
    assert!(canonical.unwrap().starts_with(&forced));
}

#[test]
fn a_complete_output_may_only_end() {
    let matcher = matcher(ConstraintSpec::Choice(vec!["a".to_owned()]));
    let ends = matcher.grammar().end_tokens().to_vec();
    let a = next(&matcher, &[]).unwrap();
    assert_eq!(a.len(), 1);
    assert!(!matcher.is_complete(&[]).unwrap() && matcher.is_complete(&a).unwrap());
    let mut sorted = ends.clone();
    sorted.sort_unstable();
    assert_eq!(next(&matcher, &a).unwrap(), sorted);
    let ended = [a[0], ends[0]];
    assert_eq!(next(&matcher, &ended).unwrap(), sorted);
    assert_eq!(next(&matcher, &[a[0], ends[0], ends[0]]).unwrap(), sorted);
    let mut forced = Vec::new();
    matcher.forced(&a, &mut forced).unwrap();
    matcher.forced(&ended, &mut forced).unwrap();
    assert!(forced.is_empty());
}

#[test]
fn an_output_outside_of_the_grammar_is_an_error_and_no_more() {
    let matcher = matcher(ConstraintSpec::JsonObject);
    let wrong = STARTER.encode("no JSON", PLAIN);
    let wrong = wrong.unwrap();
    assert!(matches!(next(&matcher, &wrong), Err(GrammarError::Mismatch(_))));
    assert!(matches!(next(&matcher, &[u32::MAX]), Err(GrammarError::Mismatch(_))));
    let again = GrammarMatcher::new(matcher.grammar().clone(), 1);
    assert_eq!(next(&matcher, &[]).unwrap(), next(&again, &[]).unwrap());
}

#[test]
fn control_tokens_never_come_from_a_grammars_text() {
    let spelled: Vec<String> = STARTER.special_tokens().control.clone();
    assert!(!spelled.is_empty());
    let mut rng = fastrand::Rng::with_seed(seed("control_tokens_never_come_from_a_grammars_text"));
    for spec in [ConstraintSpec::Choice(spelled), ConstraintSpec::Regex("(?s:.{0,40})".to_owned())] {
        let matcher = matcher(spec);
        for _ in 0..10 {
            let walked = walk(&matcher, &STARTER, &mut rng, 10, 60).unwrap();
            let n_inside = walked.tokens.len() - usize::from(walked.is_ended);
            assert!(walked.tokens[..n_inside].iter().all(|token| !STARTER.is_special(*token)));
        }
    }
}

#[test]
fn several_threads_may_ask_at_once() {
    let grammar = COMPILER.compile(&specs()[1]).unwrap();
    let shared = Arc::new(GrammarMatcher::new(grammar.clone(), 4));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (shared, grammar) = (shared.clone(), grammar.clone());
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                let walked = walk(&shared, &STARTER, &mut rng, 20, 100).unwrap();
                let alone = GrammarMatcher::new(grammar, 1);
                for n in 0..walked.tokens.len() {
                    let output = &walked.tokens[..n];
                    assert_eq!(next(&shared, output).unwrap(), next(&alone, output).unwrap());
                }
            });
        }
    });
}

#[test]
fn a_cache_gives_one_grammar_for_one_content_and_forgets_the_oldest() {
    let compiler = GrammarCompiler::new(
        STARTER.clone(),
        STARTER.end_of_generation_token_ids(),
        CompileLimits::default(),
    );
    let limits = CacheLimits { max_grammars: 3, max_bytes: usize::MAX };
    let cache = GrammarCache::new(compiler.unwrap(), limits);
    let spec = |n: usize| ConstraintSpec::Regex(format!("a{{{n}}}"));
    let first = cache.get(&spec(1)).unwrap();
    assert!(Arc::ptr_eq(&first, &cache.get(&spec(1)).unwrap()));
    for n in 2..=3 {
        cache.get(&spec(n)).unwrap();
    }
    cache.get(&spec(1)).unwrap();
    cache.get(&spec(4)).unwrap();
    assert_eq!(cache.len(), 3);
    assert!(Arc::ptr_eq(&first, &cache.get(&spec(1)).unwrap()), "it was used after the second");
    assert!(cache.n_bytes() > 0);
    let compiler = GrammarCompiler::new(
        STARTER.clone(),
        STARTER.end_of_generation_token_ids(),
        CompileLimits::default(),
    );
    let small = GrammarCache::new(compiler.unwrap(), CacheLimits { max_grammars: 64, max_bytes: 1 });
    small.get(&spec(1)).unwrap();
    small.get(&spec(2)).unwrap();
    assert_eq!(small.len(), 1, "the last is kept whatever it takes");
}

#[test]
fn a_model_without_end_tokens_cannot_be_constrained() {
    for ends in [&[][..], &[u32::MAX][..]] {
        let compiler = GrammarCompiler::new(STARTER.clone(), ends, CompileLimits::default());
        assert_eq!(compiler.err(), Some(GrammarError::NoEndToken));
    }
}

fn json_on(tokenizer: &Arc<Tokenizer>, rng: &mut fastrand::Rng) {
    let compiler = compiler(tokenizer);
    for spec in [&specs()[0], &specs()[1]] {
        let grammar = compiler.compile(spec).unwrap();
        let mut n_ended = 0;
        for n in 0..6 {
            let walked = walk(&GrammarMatcher::new(grammar.clone(), 1), tokenizer, rng, 8 * n, 400).unwrap();
            if walked.is_ended {
                let parsed = serde_json::from_str::<serde_json::Value>(&walked.text);
                assert!(parsed.is_ok_and(|value| value.is_object()), "{}", walked.text);
                n_ended += 1;
            }
        }
        assert!(n_ended >= 4, "{n_ended} of 6 ended");
    }
    let mut words = vec![0; tokenizer.vocabulary_size().div_ceil(32)];
    let regex = compiler.compile(&ConstraintSpec::Regex("Hello, world! .*".to_owned())).unwrap();
    let matcher = GrammarMatcher::new(regex, 1);
    let mut forced = Vec::new();
    matcher.forced(&[], &mut forced).unwrap();
    assert!(
        !forced.is_empty() && "Hello, world! ".starts_with(&tokenizer.decode(&forced, false)),
        "{forced:?}"
    );
    matcher.mask(&forced, &mut words).unwrap();
    assert!(!allowed(&words).is_empty());
}

#[test]
fn the_tokenizers_of_released_models_can_be_constrained() {
    let mut rng = fastrand::Rng::with_seed(seed("the_tokenizers_of_released_models_can_be_constrained"));
    for name in ["gpt-2", "phi-3", "qwen2"] {
        if let Some(tokenizer) = released(name) {
            json_on(&tokenizer, &mut rng);
        }
    }
}
