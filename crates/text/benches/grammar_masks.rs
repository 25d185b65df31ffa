//! What constraints cost: `cargo bench -p throng-text --bench grammar_masks`. For a vocabulary of some
//! 150,000 tokens (`../shared/tokenizers`; the starter model's where that is absent), the time to prepare it,
//! to compile each constraint, and of the masks of random outputs.

#[path = "../tests/integration/grammar/vocabularies.rs"]
mod vocabularies;

use std::time::Instant;

use serde_json::json;
use throng_text::grammar::{ConstraintSpec, GrammarMatcher};
use vocabularies::{STARTER, compiler, released};

/// Outputs of each constraint, and tokens of each.
const N_OUTPUTS: usize = 16;
const N_TOKENS: usize = 128;

fn constraints() -> Vec<(&'static str, ConstraintSpec)> {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 60}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"}, "kind": {"enum": ["alpha", "beta", "gamma"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    }, "required": ["name", "age", "email", "kind", "tags"], "additionalProperties": false});
    let lark =
        "start: e\ne: e \"+\" t | t\nt: NUMBER | NAME | \"(\" e \")\"\nNUMBER: /[0-9]+/\nNAME: /[a-z_]+/\n";
    vec![
        ("any JSON object", ConstraintSpec::JsonObject),
        ("a JSON schema", ConstraintSpec::JsonSchema(schema)),
        ("a regular expression", ConstraintSpec::Regex(r"(\w+ ){3,40}\w+\.".to_owned())),
        ("free text", ConstraintSpec::Regex("(?s:.*)".to_owned())),
        ("a Lark grammar", ConstraintSpec::Lark(lark.to_owned())),
    ]
}

fn main() {
    let tokenizer = released("qwen2").unwrap_or_else(|| STARTER.clone());
    let begun = Instant::now();
    let compiler = compiler(&tokenizer);
    println!("{} tokens, prepared in {:.0?}", tokenizer.vocabulary_size(), begun.elapsed());
    let mut words = vec![0_u32; tokenizer.vocabulary_size().div_ceil(32)];
    for (name, spec) in constraints() {
        let begun = Instant::now();
        let grammar = compiler.compile(&spec).expect("valid");
        let compiled = begun.elapsed();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut times = Vec::new();
        for _ in 0..N_OUTPUTS {
            let matcher = GrammarMatcher::new(grammar.clone(), 1);
            let mut output = Vec::new();
            while output.len() < N_TOKENS {
                let begun = Instant::now();
                matcher.mask(&output, &mut words).expect("an output of the grammar");
                times.push(begun.elapsed().as_secs_f64() * 1e6);
                let is_set = |token: &u32| words[*token as usize / 32] >> (token % 32) & 1 == 1;
                let choices: Vec<u32> = (0..tokenizer.vocabulary_size() as u32).filter(is_set).collect();
                let token = choices[rng.usize(..choices.len())];
                if grammar.end_tokens().contains(&token) {
                    break;
                }
                output.push(token);
            }
        }
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!(
            "{name}: compiled in {compiled:.1?}; {} masks, µs: mean {mean:.0}, p50 {:.0}, p90 {:.0}, p99 {:.0}, max {:.0}",
            times.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
    }
}
