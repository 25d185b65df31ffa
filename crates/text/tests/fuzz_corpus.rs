//! The seeds of the fuzz targets and whatever once broke them, through the same checks.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/checks/chat_template.rs"]
mod chat_template;
#[path = "../../../fuzz/checks/tokenizer.rs"]
mod tokenizer;

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
    replay("tokenizer", tokenizer::check);
    replay("chat_template", chat_template::check);
}

/// The seeds are good files, so that fuzzing begins behind the first checks.
#[test]
fn seeds_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tokenizer");
    for name in ["byte-level.json", "byte-fallback.json", "split-nfc.json"] {
        let json = fs::read(folder.join(name)).unwrap();
        if let Err(error) = throng_text::Tokenizer::from_tokenizer_json(&json, None) {
            panic!("{name}: {error}");
        }
    }
    let folder = folder.join("../chat_template");
    for name in ["chatml.jinja", "namespace.jinja", "refusal.jinja"] {
        throng_text::ChatTemplate::new(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
    }
}
