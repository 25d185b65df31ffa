//! Bodies of text completions, tokenize and detokenize. Does not know how they are tested.

use super::Endpoint::{Completion, Detokenize, Tokenize};
use super::{Expected, MODEL, Table};

fn asking(prompt: &str, more: &str) -> String {
    format!(r#"{{"model":"{MODEL}","prompt":{prompt}{more}}}"#)
}

impl Table {
    fn prompt(&mut self, row: u32, prompt: &str, code: &'static str) {
        self.refused(row, Completion, asking(prompt, ""), "prompt", code);
    }

    fn prompt_ok(&mut self, row: u32, prompt: &str, more: &str) {
        self.case(row, Completion, asking(prompt, more), Expected::Accepted);
    }
}

pub(super) fn add(t: &mut Table) {
    t.refused(0, Completion, format!(r#"{{"model":"{MODEL}"}}"#), "prompt", "missing_required_parameter");
    for prompt in ["[]", "[[]]", "[[1],[]]"] {
        t.prompt(41, prompt, "empty_array");
    }
    for prompt in ["[1000]", "[-1]", "[4294967296]", "[[1],[1,1000]]"] {
        t.prompt(41, prompt, "invalid_token");
    }
    for prompt in [
        "5",
        "{}",
        "true",
        r#"[1,"a"]"#,
        r#"["a",1]"#,
        "[[1],2]",
        "[[1],[\"a\"]]",
        "[null]",
        "[1.5]",
        "[[[1]]]",
    ] {
        t.prompt(41, prompt, "invalid_type");
    }
    t.prompt(0, &format!("[{}]", vec!["\"a\""; 2000].join(",")), "array_above_max_length");
    t.prompt(37, &format!("[{}]", vec!["1"; 600].join(",")), "context_length_exceeded");
    t.prompt_ok(0, "[1,2,3]", "");
    t.prompt_ok(0, "[[1,2],[3]]", r#","n":2"#);
    t.prompt_ok(0, "[1.0]", "");
    t.prompt_ok(0, "[1,2,3]", r#","max_tokens":0,"echo":true,"logprobs":2"#);
    t.prompt_ok(0, "[1,2,3]", r#","suffix":null,"best_of":1"#);
    let long = format!("[{}]", vec!["1"; 510].join(","));
    t.prompt_ok(0, &long, "");
    let mut refuse = |row, more: &str, param: &str, code| {
        t.refused(row, Completion, asking("[1,2,3]", &format!(",{more}")), param, code);
    };
    refuse(38, r#""max_tokens":510"#, "max_tokens", "context_length_exceeded");
    refuse(0, r#""max_tokens":0"#, "max_tokens", "integer_below_min_value");
    refuse(44, r#""min_tokens":17"#, "min_tokens", "invalid_value");
    refuse(0, r#""suffix":"x""#, "suffix", "unsupported_parameter");
    refuse(0, r#""prompt_embeds":"AA==""#, "prompt_embeds", "unsupported_parameter");
    refuse(0, r#""logprobs":21"#, "logprobs", "integer_above_max_value");
    refuse(0, r#""logprobs":-1"#, "logprobs", "integer_below_min_value");
    refuse(0, r#""logprobs":true"#, "logprobs", "invalid_type");
    refuse(0, r#""echo":"yes""#, "echo", "invalid_type");
    refuse(46, r#""n":2,"best_of":1"#, "best_of", "invalid_value");
    refuse(8, r#""prompt":[1]"#, "prompt", "duplicate_key");
    add_tokenize(t);
}

fn add_tokenize(t: &mut Table) {
    t.refused(0, Tokenize, "{}", "prompt", "missing_required_parameter");
    t.refused(0, Tokenize, r#"{"prompt":[1]}"#, "prompt", "invalid_type");
    let both = r#"{"prompt":"a","messages":[{"role":"user","content":"a"}]}"#;
    t.refused(0, Tokenize, both, "prompt", "mutually_exclusive");
    t.refused(
        0,
        Tokenize,
        r#"{"messages":[{"role":"x","content":"a"}]}"#,
        "messages[0].role",
        "invalid_value",
    );
    t.refused(2, Tokenize, r#"{"prompt":"a",}"#, "", "invalid_json");
    t.refused(0, Detokenize, "{}", "tokens", "missing_required_parameter");
    t.refused(0, Detokenize, r#"{"tokens":"a"}"#, "tokens", "invalid_type");
    t.refused(0, Detokenize, r#"{"tokens":["a"]}"#, "tokens[0]", "invalid_type");
    t.refused(0, Detokenize, r#"{"tokens":[1,1000]}"#, "tokens[1]", "invalid_token");
}
