//! Runs the checks of the fuzz targets on their seeds and on inputs that once failed.

use std::fs;

#[path = "../../../../fuzz/checks/answer.rs"]
mod answer;
#[path = "../../../../fuzz/checks/chat_template.rs"]
mod chat_template;
#[path = "../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/checks/schema.rs"]
mod schema;
#[path = "../../../../fuzz/checks/tokenizer.rs"]
mod tokenizer;

#[test]
fn the_checks_pass_on_the_corpora() {
    corpus::replay("tokenizer", 2, tokenizer::check);
    corpus::replay("chat_template", 2, chat_template::check);
    corpus::replay("answer", 16, answer::check);
    corpus::replay("schema", 9, schema::check);
}

/// The seeds are valid files, so that fuzzing starts past the first checks.
#[test]
fn seeds_are_accepted() {
    let folder = corpus::folder("tokenizer");
    for name in ["byte-level.json", "byte-fallback.json", "split-nfc.json"] {
        let json = fs::read(folder.join(name)).unwrap();
        if let Err(error) = throng_text::Tokenizer::from_tokenizer_json(&json, None) {
            panic!("{name}: {error}");
        }
    }
    let folder = corpus::folder("chat_template");
    for name in ["chatml.jinja", "namespace.jinja", "refusal.jinja"] {
        throng_text::ChatTemplate::new(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
    }
}
