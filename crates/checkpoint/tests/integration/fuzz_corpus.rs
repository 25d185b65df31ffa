//! Runs the checks of the fuzz targets on their seeds and on inputs that once failed.

use std::fs;

use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::safetensors::{parse_header, parse_index};
use throng_kernels::quant::Format;

#[path = "../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/checks/quantized.rs"]
mod quantized;
#[path = "../../../../fuzz/checks/safetensors.rs"]
mod safetensors;

#[test]
fn the_checks_pass_on_the_corpora() {
    corpus::replay("safetensors", 2, safetensors::check);
    corpus::replay("quantized", 14, quantized::check);
}

/// The seeds are valid files, so that fuzzing starts past the first checks.
#[test]
fn seeds_are_accepted() {
    let seed = |name: &str| fs::read(corpus::folder(name)).unwrap();
    Gguf::parse(&seed("gguf/every-type-v3.gguf")).unwrap();
    let every_format = Gguf::parse(&seed("gguf/every-format-v3.gguf")).unwrap();
    for format in Format::ALL.into_iter().filter(|format| format.ggml_number().is_some()) {
        assert_eq!(every_format.tensor(format.name()).unwrap().format, format);
    }
    parse_header(&seed("safetensors/three.safetensors")).unwrap();
    parse_index(&seed("safetensors/index.json")).unwrap();
}
