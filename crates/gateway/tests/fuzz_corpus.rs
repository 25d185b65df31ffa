//! The seeds of the fuzz target and whatever once broke it, through the same check.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/checks/request.rs"]
mod request;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request")
}

#[test]
fn the_corpus_holds() {
    let mut n_inputs = 0;
    for path in fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()) {
        println!("{}", path.display());
        request::check(&fs::read(path).unwrap());
        n_inputs += 1;
    }
    assert!(n_inputs >= 4);
}

/// The seeds are good bodies, so that fuzzing begins behind the first checks.
#[test]
fn seeds_are_read() {
    use throng_gateway::openai::{
        ChatRequest, CompletionRequest, DetokenizeRequest, ReadOptions, TokenizeRequest,
    };
    let seed = |name: &str| fs::read(corpus().join(name)).unwrap();
    let options = ReadOptions::default();
    ChatRequest::parse(&seed("chat.json"), &options).unwrap();
    CompletionRequest::parse(&seed("completion.json"), &options).unwrap();
    TokenizeRequest::parse(&seed("tokenize.json"), &options).unwrap();
    DetokenizeRequest::parse(&seed("detokenize.json"), &options).unwrap();
}
