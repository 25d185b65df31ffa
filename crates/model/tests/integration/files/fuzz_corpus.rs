//! Runs the checks of the fuzz targets on their seeds and on inputs that once failed.

use std::fs;

#[path = "../../../../../fuzz/checks/config.rs"]
mod config;
#[path = "../../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/checks/gguf.rs"]
mod gguf;
#[path = "../../../../../fuzz/checks/quantized.rs"]
mod quantized;
#[path = "../../../../../fuzz/checks/safetensors.rs"]
mod safetensors;

#[test]
fn the_checks_pass_on_the_corpora() {
    corpus::replay("gguf", 5, gguf::check);
    corpus::replay("safetensors", 2, safetensors::check);
    corpus::replay("config", 30, config::check);
    corpus::replay("quantized", 14, quantized::check);
}

/// The seeds are valid files, so that fuzzing starts past the first checks.
#[test]
fn seeds_are_accepted() {
    use throng_kernels::quant::Format;
    use throng_model::arch::Architecture;
    use throng_model::weights::TensorSource;
    use throng_model::weights::gguf::Gguf;
    let seed = |name: &str| fs::read(corpus::folder(name)).unwrap();
    let model = Gguf::parse(&seed("gguf/llama-v3.gguf")).unwrap();
    Architecture::from_gguf(model.metadata(), &model).unwrap();
    Gguf::parse(&seed("gguf/every-type-v3.gguf")).unwrap();
    let every_format = Gguf::parse(&seed("gguf/every-format-v3.gguf")).unwrap();
    for format in Format::ALL.into_iter().filter(|format| format.ggml_number().is_some()) {
        assert_eq!(every_format.tensor(format.name()).unwrap().format, format);
    }
    throng_model::weights::safetensors::parse_header(&seed("safetensors/three.safetensors")).unwrap();
    throng_model::weights::safetensors::parse_index(&seed("safetensors/index.json")).unwrap();
    Architecture::from_config_json(&seed("config/llama.json")).unwrap();
}
