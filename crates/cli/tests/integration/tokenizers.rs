//! Tokenizers of real models, from their GGUF vocabularies, compared with the token ids of llama.cpp
//! (`../shared/tokenizers`; skipped where that is absent).

use std::path::PathBuf;

use throng_checkpoint::gguf::Gguf;
use throng_cli::vocabulary::gguf_vocabulary;
use throng_testkit::shared_files::shared;
use throng_text::{EncodeOptions, Tokenizer};

const PLAIN: EncodeOptions = EncodeOptions { add_special_tokens: false, parse_special: false };

fn shared_tokenizer(name: &str) -> Option<(Tokenizer, PathBuf)> {
    let path = shared(&format!("tokenizers/ggml-vocab-{name}.gguf"))?;
    let vocabulary = gguf_vocabulary(&Gguf::open(&path).unwrap()).unwrap();
    Some((Tokenizer::from_gguf(&vocabulary).unwrap(), path))
}

/// Every text is encoded to llama.cpp's ids, and the ids are decoded to the text.
fn agrees_with_llama_cpp(name: &str) {
    let Some((tokenizer, path)) = shared_tokenizer(name) else { return };
    let texts = std::fs::read_to_string(format!("{}.inp", path.display())).unwrap();
    let lines = std::fs::read_to_string(format!("{}.out", path.display())).unwrap();
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").filter(|text| !text.is_empty()).collect();
    let expected: Vec<Vec<u32>> = lines
        .lines()
        .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect())
        .filter(|ids: &Vec<u32>| !ids.is_empty())
        .collect();
    assert!(texts.len() > 40);
    assert_eq!(texts.len(), expected.len());
    for (text, expected) in texts.iter().zip(expected) {
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, false), *text);
    }
}

#[test]
fn gpt_2() {
    agrees_with_llama_cpp("gpt-2");
}

#[test]
fn qwen2() {
    agrees_with_llama_cpp("qwen2");
}

#[test]
fn phi_3() {
    agrees_with_llama_cpp("phi-3");
}
