//! The settings of speculation, as vLLM writes them.

use throng_cli::speculation::parse;
use throng_core::scheduling::scheduler::SpeculationMethod;

#[test]
fn the_json_of_vllm() {
    let text = r#"{"method":"ngram","num_speculative_tokens":8,"prompt_lookup_min":2,"prompt_lookup_max":5}"#;
    let section = parse(text).expect("valid");
    assert_eq!((section.num_speculative_tokens, section.prompt_lookup_min), (Some(8), Some(2)));
    assert_eq!(section.scheduler_method(), SpeculationMethod::PromptLookup);
    let methods = [
        (r#"{"model":"org/small","num_speculative_tokens":4}"#, SpeculationMethod::DraftModelAndPromptLookup),
        (r#"{"model":"org/small","method":"draft_model"}"#, SpeculationMethod::DraftModel),
        (r#"{"model":"org/head","method":"eagle3"}"#, SpeculationMethod::DraftModel),
    ];
    for (text, method) in methods {
        assert_eq!(parse(text).map(|section| section.scheduler_method()), Ok(method));
    }
    assert_eq!(parse(r#"{"method":"none"}"#).map(|s| s.scheduler_method()), Ok(SpeculationMethod::None));
}

#[test]
fn what_is_refused_is_named() {
    for (text, words) in [
        (r#"{"method":"eagle","model":null}"#, "\"eagle\" is not supported yet"),
        (r#"{"method":"eagle3","model":null}"#, "\"eagle3\" needs \"model\""),
        (r#"{"method":"draft_model"}"#, "needs \"model\""),
        (r#"{"method":"ngram","model":"org/small"}"#, "\"ngram\" has no model"),
        (r#"{"method":"guess"}"#, "\"guess\" is not known"),
        (r#"{"num_speculative_tokens":0}"#, "num_speculative_tokens must be a number from 1 to 64"),
        (r#"{"prompt_lookup_min":0}"#, "prompt_lookup_min must be a number from 1 to 32"),
        (r#"{"prompt_lookup_min":4,"prompt_lookup_max":3}"#, "must not be above"),
        (r#"{"draft_tensor_parallel_size":1}"#, "unknown field `draft_tensor_parallel_size`"),
        ("ngram", "expected ident"),
    ] {
        let fault = parse(text).expect_err(text);
        assert!(fault.contains(words), "{text}: {fault}");
    }
}
