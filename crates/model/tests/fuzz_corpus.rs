//! The seeds of the fuzz targets and whatever once broke them, through the same checks.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/checks/config.rs"]
mod config;
#[path = "../../../fuzz/checks/gguf.rs"]
mod gguf;
#[path = "../../../fuzz/checks/safetensors.rs"]
mod safetensors;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut n_inputs = 0;
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
        n_inputs += 1;
    }
    assert!(n_inputs >= 2);
}

#[test]
fn corpora_hold() {
    replay("gguf", gguf::check);
    replay("safetensors", safetensors::check);
    replay("config", config::check);
}

/// The seeds are good files, so that fuzzing begins behind the first checks.
#[test]
fn seeds_load() {
    use throng_model::arch::Architecture;
    use throng_model::weights::gguf::Gguf;
    let seed = |name: &str| {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name)).unwrap()
    };
    let model = Gguf::parse(&seed("gguf/llama-v3.gguf")).unwrap();
    Architecture::from_gguf(model.metadata(), &model).unwrap();
    Gguf::parse(&seed("gguf/every-type-v3.gguf")).unwrap();
    throng_model::weights::safetensors::parse_header(&seed("safetensors/three.safetensors")).unwrap();
    throng_model::weights::safetensors::parse_index(&seed("safetensors/index.json")).unwrap();
    Architecture::from_config_json(&seed("config/llama.json")).unwrap();
}
