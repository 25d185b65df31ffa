//! Prompts by which models fill in the middle, in the order of each family.

use std::sync::atomic::AtomicBool;

use throng_text::{GgufInfillKeys, GgufVocabulary, InfillText, Tokenizer};

/// Letters, and control tokens of these names.
fn tokenizer(names: &[&str], keys: GgufInfillKeys) -> Tokenizer {
    let letters = ('a'..='z').map(String::from).chain([".".to_owned(), "Ċ".to_owned()]);
    let tokens: Vec<String> = letters.chain(names.iter().map(|name| (*name).to_owned())).collect();
    let mut token_types = vec![1; 28];
    token_types.resize(tokens.len(), 3);
    let (model, pre) = ("gpt2".to_owned(), Some("gpt-2".to_owned()));
    let vocabulary = GgufVocabulary { model, pre, tokens, token_types, infill: keys, ..Default::default() };
    Tokenizer::from_gguf(&vocabulary).expect("a vocabulary")
}

fn prompt(tokenizer: &Tokenizer, files: &[(String, String)]) -> String {
    let tokens = tokenizer.infill_tokens().expect("a model that fills in the middle");
    let text = InfillText { before: "ab", behind: "yz", files };
    let ids = tokenizer.encode_infill_unless(tokens, text, true, &AtomicBool::new(false)).expect("short");
    tokenizer.decode(&ids, false)
}

#[test]
fn each_family_has_its_tokens_and_its_order() {
    for (names, expected) in [
        (
            &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"][..],
            "<|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|>",
        ),
        (&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<fim_prefix>ab<fim_suffix>yz<fim_middle>"),
        (
            &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
            "<｜fim▁begin｜>ab<｜fim▁hole｜>yz<｜fim▁end｜>",
        ),
        (&["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], "[SUFFIX]yz[PREFIX]ab"),
        (&["[PREFIX]", "[SUFFIX]"], "[SUFFIX]yz[PREFIX]ab"),
    ] {
        assert_eq!(prompt(&tokenizer(names, GgufInfillKeys::default()), &[]), expected);
    }
    for names in [&["<|fim_prefix|>", "<|fim_suffix|>"][..], &["<|fim_middle|>"], &[]] {
        assert!(tokenizer(names, GgufInfillKeys::default()).infill_tokens().is_none(), "{names:?}");
    }
}

#[test]
fn ids_of_the_file_count_before_names() {
    let ids = |before, behind, middle| GgufInfillKeys {
        before: Some(before),
        behind: Some(behind),
        middle: Some(middle),
        ..GgufInfillKeys::default()
    };
    assert_eq!(prompt(&tokenizer(&["<p>", "<s>", "<m>"], ids(28, 29, 30)), &[]), "<p>ab<s>yz<m>");
    // Ids that the vocabulary does not have name nothing.
    assert!(tokenizer(&["<p>"], ids(28, 29, 9_999)).infill_tokens().is_none());
}

#[test]
fn files_come_before_the_gap_and_end_its_text() {
    let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>"];
    let tokenizer = tokenizer(&names, GgufInfillKeys::default());
    let files = [("f.c".to_owned(), "cd".to_owned())];
    let expected = "<|repo_name|>repository\n<|file_sep|>f.c\ncd\n<|file_sep|>\
                    <|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|>";
    assert_eq!(prompt(&tokenizer, &files), expected);
    assert_eq!(tokenizer.infill_tokens().map(|tokens| tokens.ends().len()), Some(2));
}
