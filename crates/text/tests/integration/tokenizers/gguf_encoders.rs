//! WordPiece and unigram vocabularies as llama.cpp's converter writes them into GGUF files: the same tokens
//! as from the `tokenizer.json` that they were made of.

use std::path::Path;

use serde_json::{Map, Value, json};
use throng_text::{EncodeOptions, GgufEncoderKeys, GgufVocabulary, Tokenizer, TokenizerError};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The texts of a fixture, and more white space.
fn texts(name: &str) -> Vec<String> {
    let expected = read(&format!("{name}.expected.json"));
    let cases = expected["cases"].as_array().unwrap();
    let texts = cases.iter().map(|case| case["text"].as_str().unwrap().to_owned());
    let more = ["Ünïcode Élan", "  two   spaces\tand\na line ", "[SEP] in text", &"long".repeat(40)];
    texts.chain(more.map(str::to_owned)).collect()
}

/// A fixture with the control tokens alone: files have no flags of others.
fn plain(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> (Value, Tokenizer) {
    let mut json = read(&format!("{name}.json"));
    let is_named = |token: &Value| {
        ["[UNK]", "[CLS]", "[SEP]", "<unk>", "<s>", "</s>"].map(Value::from).contains(&token["content"])
    };
    json["added_tokens"].as_array_mut().unwrap().retain(is_named);
    change(json.as_object_mut().unwrap());
    let tokenizer = Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None).unwrap();
    (json, tokenizer)
}

fn frame(start: &str, end: &str, ids: [u32; 2], between: usize, second: u32) -> Value {
    let special = |text: &str, segment: u32| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let text = |name: &str, segment: u32| json!({"Sequence": {"id": name, "type_id": segment}});
    let mut pair = vec![special(start, 0), text("A", 0)];
    pair.extend((0..between).map(|_| special(end, 0)));
    pair.extend([text("B", second), special(end, second)]);
    json!({
        "type": "TemplateProcessing",
        "single": [special(start, 0), text("A", 0), special(end, 0)], "pair": pair,
        "special_tokens": {
            start: {"id": start, "ids": [ids[0]], "tokens": [start]},
            end: {"id": end, "ids": [ids[1]], "tokens": [end]},
        },
    })
}

fn assert_same(from_gguf: &Tokenizer, from_json: &Tokenizer, texts: &[String]) {
    for text in texts {
        for add_special_tokens in [false, true] {
            for parse_special in [false, true] {
                let options = EncodeOptions { add_special_tokens, parse_special };
                let (found, expected) =
                    (from_gguf.encode(text, options).unwrap(), from_json.encode(text, options).unwrap());
                assert_eq!(found, expected, "{text:?}");
                assert_eq!(from_gguf.decode(&found, true), from_json.decode(&found, true), "{text:?}");
            }
        }
    }
    assert_eq!(from_gguf.around_one(), from_json.around_one());
    assert_eq!(from_gguf.around_pair(), from_json.around_pair());
}

/// Tokens that begin a word get `▁`, others lose their `##`.
fn word_piece(json: &Value) -> GgufVocabulary {
    let vocabulary = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocabulary.len()];
    let mut token_types = vec![NORMAL; tokens.len()];
    for (text, id) in vocabulary {
        let id = id.as_u64().unwrap() as usize;
        let is_control = ["[UNK]", "[CLS]", "[SEP]"].contains(&text.as_str());
        token_types[id] = if is_control { CONTROL } else { NORMAL };
        tokens[id] = match text.strip_prefix("##") {
            _ if is_control => text.clone(),
            Some(rest) => rest.to_owned(),
            None => format!("▁{text}"),
        };
    }
    GgufVocabulary {
        model: "bert".to_owned(),
        tokens,
        token_types,
        bos_token_id: Some(1),
        unknown_token_id: Some(0),
        encoder: GgufEncoderKeys { separator_token_id: Some(2), ..Default::default() },
        ..Default::default()
    }
}

#[test]
fn word_piece_reads_texts_as_the_tokenizer_json_does() {
    let (json, from_json) = plain("wordpiece", |json| {
        json.insert("post_processor".to_owned(), frame("[CLS]", "[SEP]", [1, 2], 1, 1));
        json["decoder"]["cleanup"] = json!(true);
    });
    let from_gguf = Tokenizer::from_gguf(&word_piece(&json)).unwrap();
    assert_same(&from_gguf, &from_json, &texts("wordpiece"));
}

#[test]
fn case_and_accents_are_kept_where_the_file_says_so() {
    let (json, from_json) = plain("wordpiece", |json| {
        json.insert("post_processor".to_owned(), frame("[CLS]", "[SEP]", [1, 2], 1, 1));
        json["normalizer"]["lowercase"] = json!(false);
        json["decoder"]["cleanup"] = json!(true);
    });
    let mut vocabulary = word_piece(&json);
    vocabulary.encoder.lowercase = Some(false);
    assert_same(&Tokenizer::from_gguf(&vocabulary).unwrap(), &from_json, &texts("wordpiece"));
}

fn unigram(json: &Value) -> GgufVocabulary {
    let pieces = json["model"]["vocab"].as_array().unwrap();
    let tokens: Vec<String> = pieces.iter().map(|piece| piece[0].as_str().unwrap().to_owned()).collect();
    let mut token_types = vec![NORMAL; tokens.len()];
    token_types[..3].copy_from_slice(&[UNKNOWN, CONTROL, CONTROL]);
    GgufVocabulary {
        model: "t5".to_owned(),
        pre: Some("default".to_owned()),
        scores: pieces.iter().map(|piece| piece[1].as_f64().unwrap() as f32).collect(),
        tokens,
        token_types,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        unknown_token_id: Some(0),
        add_space_prefix: Some(true),
        encoder: GgufEncoderKeys { remove_extra_whitespaces: Some(false), ..Default::default() },
        ..Default::default()
    }
}

fn without_normalizer(json: &mut Map<String, Value>) {
    json.insert("normalizer".to_owned(), Value::Null);
    json.insert("post_processor".to_owned(), frame("<s>", "</s>", [1, 2], 2, 0));
}

#[test]
fn unigrams_read_texts_as_the_tokenizer_json_does() {
    let (json, from_json) = plain("unigram", without_normalizer);
    let from_gguf = Tokenizer::from_gguf(&unigram(&json)).unwrap();
    assert_same(&from_gguf, &from_json, &texts("unigram"));
    let (json, from_json) = plain("unigram", |json| {
        without_normalizer(json);
        let steps = json!([{"type": "WhitespaceSplit"}, json["pre_tokenizer"]]);
        json.insert("pre_tokenizer".to_owned(), json!({"type": "Sequence", "pretokenizers": steps}));
    });
    let mut vocabulary = unigram(&json);
    vocabulary.encoder.remove_extra_whitespaces = Some(true);
    assert_same(&Tokenizer::from_gguf(&vocabulary).unwrap(), &from_json, &texts("unigram"));
}

/// A double array (darts-clone) that replaces `Q` by `e`.
fn characters() -> Vec<u8> {
    const ROOT_OFFSET: u32 = 0x100;
    const LEAF_OFFSET: u32 = 0x200;
    const HAS_LEAF: u32 = 1 << 8;
    let letter = u32::from(b'Q');
    let node = ROOT_OFFSET ^ letter;
    let mut units = vec![0u32; 0x400];
    units[0] = ROOT_OFFSET << 10;
    units[node as usize] = LEAF_OFFSET << 10 | HAS_LEAF | letter;
    units[(node ^ LEAF_OFFSET) as usize] = 1 << 31;
    let mut bytes = ((units.len() * 4) as u32).to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(b"e\0");
    bytes
}

#[test]
fn characters_are_replaced_as_the_file_says() {
    let (json, _) = plain("unigram", without_normalizer);
    let mut vocabulary = unigram(&json);
    vocabulary.encoder.precompiled_charsmap = characters();
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    let options = EncodeOptions { add_special_tokens: true, parse_special: true };
    let encode = |text: &str| tokenizer.encode(text, options).unwrap();
    assert_eq!(encode("thQ letQr"), encode("the leter"));
    assert_ne!(encode("thq"), encode("the"));
}

#[test]
fn broken_vocabularies_are_refused_or_harmless() {
    let (words, _) = plain("wordpiece", |_| {});
    let (pieces, _) = plain("unigram", |_| {});
    let refused = |vocabulary: GgufVocabulary| {
        let error = Tokenizer::from_gguf(&vocabulary).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed(_)), "{error}");
    };
    refused(GgufVocabulary { unknown_token_id: Some(9_999), ..word_piece(&words) });
    refused(GgufVocabulary { bos_token_id: Some(9_999), ..word_piece(&words) });
    refused(GgufVocabulary { eos_token_id: Some(9_999), ..unigram(&pieces) });
    refused(GgufVocabulary { scores: vec![f32::NAN; 3], ..unigram(&pieces) });
    let map = characters();
    for end in [1, 3, 4, 5, 100, map.len() - 3] {
        let mut cut = unigram(&pieces);
        cut.encoder.precompiled_charsmap = map[..end].to_vec();
        if let Ok(tokenizer) = Tokenizer::from_gguf(&cut) {
            let options = EncodeOptions { add_special_tokens: true, parse_special: false };
            let _ = tokenizer.encode("QQ and Q", options);
        }
    }
}
