//! Tokenizer files whose normalizers or decoders turn a few bytes into gigabytes are refused when they are
//! loaded, or when a text would grow too much; those of real models are accepted.

use serde_json::{Value, json};
use throng_text::{EncodeOptions, TextError, Tokenizer};

const OPTIONS: EncodeOptions = EncodeOptions { add_special_tokens: false, parse_special: false };

fn tokenizer(normalizer: &Value, decoder: &Value) -> Result<Tokenizer, String> {
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 5, "content": "aaaaaaaa", "special": false, "normalized": true,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": normalizer, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2, "<unk>": 3, "aa": 4}, "merges": [["a", "a"]],
                  "unk_token": "<unk>", "byte_fallback": false, "fuse_unk": true},
    });
    Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), None).map_err(|error| error.to_string())
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn sequence(normalizers: impl IntoIterator<Item = Value>) -> Value {
    json!({"type": "Sequence", "normalizers": normalizers.into_iter().collect::<Vec<_>>()})
}

#[test]
fn normalizers_that_write_too_much_are_refused_with_the_file() {
    let long = "x".repeat(100_000);
    for normalizer in [
        replace(json!({"String": "b"}), &long),
        replace(json!({"Regex": ""}), &long),
        json!({"type": "Prepend", "prepend": long}),
        sequence((0..60).map(|_| replace(json!({"String": "b"}), &"b".repeat(40)))),
        sequence((0..1000).map(|_| json!({"type": "Lowercase"}))),
        // The added token is normalized as well.
        sequence((0..40).map(|_| replace(json!({"String": "a"}), "aaaa"))),
    ] {
        let error = tokenizer(&normalizer, &Value::Null).map(|_| ()).unwrap_err();
        assert!(error.starts_with("malformed tokenizer: "), "{error}");
    }
}

#[test]
fn a_text_that_grows_too_much_is_refused_while_it_grows() {
    let doubling = |pattern: Value| sequence((0..40).map(move |_| replace(pattern.clone(), "bb")));
    for normalizer in [
        doubling(json!({"String": "b"})),
        doubling(json!({"Regex": "b"})),
        sequence([
            replace(json!({"Regex": "(?=b)"}), &"b".repeat(500)),
            replace(json!({"String": "b"}), &"b".repeat(500)),
        ]),
        sequence([
            replace(json!({"String": "b"}), &"b ".repeat(250)),
            replace(json!({"Regex": "[b ]"}), &"b".repeat(500)),
        ]),
    ] {
        let tokenizer = tokenizer(&normalizer, &Value::Null).unwrap();
        let refused = tokenizer.encode("bbbbbbbb", OPTIONS);
        assert!(matches!(refused, Err(TextError::Encode(_))), "{normalizer}");
        assert!(tokenizer.encode("a a", OPTIONS).is_ok(), "{normalizer}");
        // Long texts are bounded by their own length.
        let refused = tokenizer.encode(&"b".repeat(1 << 14), OPTIONS);
        assert!(matches!(refused, Err(TextError::Encode(_))), "{normalizer}");
    }
}

#[test]
fn decoders_that_write_too_much_are_refused() {
    let decoders = |content: &str, n: usize| {
        let steps = vec![replace(json!({"String": "a"}), content); n];
        json!({"type": "Sequence", "decoders": steps})
    };
    for decoder in [decoders("aaaa", 40), decoders(&"a".repeat(10_000), 2), decoders("a", 1000)] {
        let error = tokenizer(&Value::Null, &decoder).map(|_| ()).unwrap_err();
        assert!(error.contains("decoder"), "{error}");
    }
    assert!(tokenizer(&Value::Null, &decoders("▁", 3)).is_ok());
}

#[test]
fn normalizers_of_real_models_are_accepted() {
    let normalizer = sequence([
        json!({"type": "NFKC"}),
        json!({"type": "Prepend", "prepend": "▁"}),
        replace(json!({"String": " "}), "▁"),
    ]);
    let tokenizer = tokenizer(&normalizer, &Value::Null).unwrap();
    // The character with the longest compatibility mapping, and spaces, each of which triples.
    for text in ["\u{fdfa}".repeat(300_000), " ".repeat(1 << 20), "a".repeat(1 << 20)] {
        assert!(tokenizer.encode(&text, OPTIONS).is_ok());
    }
}

#[test]
fn a_map_of_characters_that_points_out_of_itself_is_refused_with_the_file() {
    use base64::Engine;
    let map = |n_units: u32| {
        let units = vec![0_u8; 4 * n_units as usize];
        let bytes = [&(4 * n_units).to_le_bytes()[..], &units, b"x\0"].concat();
        let charsmap = base64::prelude::BASE64_STANDARD.encode(bytes);
        json!({"type": "Precompiled", "precompiled_charsmap": charsmap})
    };
    for n_units in [0, 1, 100] {
        let error = tokenizer(&map(n_units), &Value::Null).map(|_| ()).unwrap_err();
        assert!(error.contains("points out of itself"), "{error}");
    }
    let sound = tokenizer(&map(256), &Value::Null).unwrap();
    assert!(sound.encode("ab \u{e9}\u{10ffff}", OPTIONS).is_ok());
}
