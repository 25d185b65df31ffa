//! Times texts and templates that are designed to be slow: `cargo bench -p throng-text`. Each text has 1 MiB;
//! the second figure is the ratio to the time of half of the text (2 is linear).

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use throng_text::{ChatTemplate, EncodeOptions, SpecialTokens, TemplateInput, Tokenizer};

const PLAIN: EncodeOptions = EncodeOptions { add_special_tokens: false, parse_special: false };

/// The shortest of a few runs, in milliseconds.
fn best_ms(mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..3).map(time).fold(f64::INFINITY, f64::min)
}

fn tokenizers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let prose = "The quick brown fox, in 2024, doesn't jump over 12 lazy dogs; naïve café. ";
    let units = [prose, "x", " ", "^", "_", "\n", "1", "<|", "👩\u{200d}👩\u{200d}👧", "e\u{301}\u{302}"];
    for name in
        ["byte_level_gpt2", "byte_level_llama3", "byte_level_odd_regex", "sentencepiece_legacy", "unigram"]
    {
        let file = std::fs::read(folder.join(format!("{name}.json"))).expect("a fixture");
        let tokenizer = Tokenizer::from_tokenizer_json(&file, None).expect("a tokenizer");
        for unit in units {
            let text = unit.repeat((1 << 20) / unit.len());
            let half = unit.repeat((1 << 19) / unit.len());
            let encode = |text: &str| drop(tokenizer.encode(text, PLAIN).expect("any text encodes"));
            let (whole_ms, half_ms) = (best_ms(|| encode(&text)), best_ms(|| encode(&half)));
            let shown = unit.escape_debug().to_string();
            println!("{name:24} {shown:12.12} {whole_ms:8.1} ms  x{:.2}", whole_ms / half_ms);
        }
    }
}

fn templates() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let tokens = SpecialTokens::default();
    for source in [
        "{% for a in range(10**9) %}{% endfor %}",
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    ] {
        let template = ChatTemplate::new(source).expect("a template");
        let refused = || assert!(template.render(&TemplateInput::new(&messages, &tokens)).is_err());
        println!("{:8.1} ms  {source}", best_ms(refused));
    }
}

fn main() {
    tokenizers();
    templates();
}
