//! Runs the checks of the fuzz targets on their seeds and on inputs that once failed.

use std::fs;

use throng_checkpoint::gguf::Gguf;
use throng_model::arch::Architecture;

#[path = "../../../../../fuzz/checks/config.rs"]
mod config;
#[path = "../../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/checks/gguf.rs"]
mod gguf;

#[test]
fn the_checks_pass_on_the_corpora() {
    corpus::replay("gguf", 5, gguf::check);
    corpus::replay("config", 30, config::check);
}

/// The seeds are valid files, so that fuzzing starts past the first checks.
#[test]
fn seeds_are_accepted() {
    let seed = |name: &str| fs::read(corpus::folder(name)).unwrap();
    let model = Gguf::parse(&seed("gguf/llama-v3.gguf")).unwrap();
    Architecture::from_gguf(model.metadata(), &model).unwrap();
    Architecture::from_config_json(&seed("config/llama.json")).unwrap();
}
