//! `tokenizer.json` files of many kinds give the same results as in Hugging Face's library
//! (`fixtures/tokenizers`, made by the script there), and broken files are refused.

use std::path::{Path, PathBuf};

use serde_json::Value;
use throng_text::{EncodeOptions, TextError, Tokenizer};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares all cases; returns the differences as text.
fn disagreements(name: &str) -> Vec<String> {
    let tokenizer = Tokenizer::from_tokenizer_json(&read(&format!("{name}.json")), None).unwrap();
    let expected: Value = serde_json::from_slice(&read(&format!("{name}.expected.json"))).unwrap();
    let mut found = Vec::new();
    let mut compare = |what: &str, text: &str, is: String, should_be: String| {
        if is != should_be {
            found.push(format!("{name}: {what} of {text:?}\n    is {is}\n   not {should_be}"));
        }
    };
    compare("size", "", tokenizer.vocabulary_size().to_string(), expected["vocabulary_size"].to_string());
    for case in expected["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        for (key, add_special_tokens) in [("ids", false), ("with_special", true)] {
            let options = EncodeOptions { add_special_tokens, parse_special: true };
            let got = tokenizer.encode(text, options).unwrap();
            let mut wanted = ids(&case[key]);
            // Never a second BOS: Throng differs here on purpose.
            if add_special_tokens
                && wanted.len() > 1
                && wanted[0] == wanted[1]
                && tokenizer.is_special(wanted[0])
            {
                wanted.remove(0);
            }
            compare(key, text, format!("{got:?}"), format!("{wanted:?}"));
        }
        for (key, skip_special) in [("decoded", false), ("decoded_plain", true)] {
            let got = tokenizer.decode(&ids(&case["ids"]), skip_special);
            compare(key, text, format!("{got:?}"), format!("{:?}", case[key].as_str().unwrap()));
        }
    }
    found
}

#[test]
fn every_kind_agrees_with_the_tokenizers_library() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            entry
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .strip_suffix(".expected.json")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    assert_eq!(names.len(), 10);
    let found: Vec<String> = names.iter().flat_map(|name| disagreements(name)).collect();
    assert!(found.is_empty(), "{} disagreements\n{}", found.len(), found.join("\n"));
}

/// Damaged files are refused or load as some tokenizer, which can be used without a panic.
#[test]
fn damaged_files_never_panic() {
    for name in ["byte_level_llama3", "sentencepiece_metaspace_first", "unigram", "wordpiece"] {
        let file = read(&format!("{name}.json"));
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut damaged = file.clone();
            match random.u8(..4) {
                0 => damaged.truncate(random.usize(..file.len())),
                1 => damaged[random.usize(..file.len())] ^= 1 << random.u8(..8),
                2 => {
                    let start = random.usize(..file.len());
                    damaged.drain(start..(start + random.usize(1..40)).min(file.len()));
                }
                _ => {
                    let (from, to) = (random.usize(..file.len() - 30), random.usize(..file.len() - 30));
                    damaged.copy_within(from..from + random.usize(1..30), to);
                }
            }
            let Ok(tokenizer) = Tokenizer::from_tokenizer_json(&damaged, None) else { continue };
            let options = EncodeOptions { add_special_tokens: true, parse_special: true };
            if let Ok(ids) = tokenizer.encode("The quick <s> brown fox, 123!", options) {
                tokenizer.decode(&ids, false);
            }
        }
    }
}

#[test]
fn memory_is_bounded_by_the_number_of_tokens_in_a_file() {
    let mut file: Value = serde_json::from_slice(&read("byte_level_gpt2.json")).unwrap();
    file["added_tokens"][0]["id"] = 9_000_000.into();
    assert!(Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), None).is_err());
}

#[test]
fn texts_too_long_for_any_context_are_refused_before_they_are_tokenized() {
    let mut tokenizer = Tokenizer::from_tokenizer_json(&read("byte_level_gpt2.json"), None).unwrap();
    tokenizer.limit_to_context(16);
    let limit = tokenizer.max_text_bytes();
    let options = EncodeOptions { add_special_tokens: false, parse_special: false };
    assert!(tokenizer.encode(&"x".repeat(limit), options).is_ok());
    assert!(matches!(tokenizer.encode(&"x".repeat(limit + 1), options), Err(TextError::TooLong { .. })));
}

#[test]
fn the_configuration_decides_about_bos_and_eos() {
    let file = read("byte_level_llama3.json");
    let ids = |config: &str| {
        let tokenizer = Tokenizer::from_tokenizer_json(&file, Some(config.as_bytes())).unwrap();
        tokenizer.encode("a", EncodeOptions { add_special_tokens: true, parse_special: true }).unwrap().len()
    };
    let tokens = r#""bos_token": {"content": "<s>"}, "eos_token": "</s>""#;
    assert_eq!(ids(&format!("{{{tokens}}}")), 2, "BOS, as the file has it");
    assert_eq!(ids(&format!(r#"{{{tokens}, "add_bos_token": false}}"#)), 1);
    assert_eq!(ids(&format!(r#"{{{tokens}, "add_bos_token": true, "add_eos_token": true}}"#)), 3);
    // Only in some tokenizer classes of transformers does the configuration override tokenizer.json.
    let of_class = |class: &str| {
        let switches = r#""add_bos_token": false, "add_eos_token": true"#;
        ids(&format!(r#"{{{tokens}, "tokenizer_class": "{class}", {switches}}}"#))
    };
    assert_eq!((of_class("LlamaTokenizerFast"), of_class("GemmaTokenizer")), (2, 2), "EOS alone");
    let tokenizer = |class: &str| {
        let config = format!(r#"{{{tokens}, "tokenizer_class": "{class}", "add_bos_token": false}}"#);
        let tokenizer = Tokenizer::from_tokenizer_json(&file, Some(config.as_bytes())).unwrap();
        tokenizer.encode("a", EncodeOptions { add_special_tokens: true, parse_special: true }).unwrap().len()
    };
    assert_eq!(tokenizer("CodeLlamaTokenizer"), 1);
    for class in ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2TokenizerFast", "TokenizersBackend"] {
        assert_eq!(tokenizer(class), 2, "{class}: BOS, as the file has it");
    }
}
