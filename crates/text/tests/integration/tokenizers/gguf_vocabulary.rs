//! GGUF vocabularies that are incomplete, lack token types or are broken.

use throng_text::{EncodeOptions, GgufVocabulary, Tokenizer, TokenizerError};

const PLAIN: EncodeOptions = EncodeOptions { add_special_tokens: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_special_tokens: true, parse_special: true };

/// GPT-2's spelling of a byte.
fn byte_letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|byte| !is_printable(*byte)).count() as u32;
    char::from_u32(256 + n_before).unwrap()
}

/// All bytes but `without`, a few merges, and two control tokens at the end.
fn byte_level(without: &[u8]) -> GgufVocabulary {
    let bytes = (0..=255).filter(|byte| !without.contains(byte));
    let mut tokens: Vec<String> = bytes.map(|byte| byte_letter(byte).to_string()).collect();
    tokens.extend(["he", "ll", "hell", "hello", "Ġhello", "🚀"].map(str::to_owned));
    let mut token_types = vec![1; tokens.len()];
    tokens.extend(["<think>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    token_types.extend([4, 3, 3]);
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        eos_token_id: Some(tokens.len() as u32 - 1),
        tokens,
        token_types,
        merges: ["h e", "l l", "he ll", "hell o", "Ġ hello"].map(str::to_owned).to_vec(),
        ..GgufVocabulary::default()
    }
}

fn sentencepiece() -> GgufVocabulary {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let mut token_types = vec![2, 3, 3];
    token_types.resize(tokens.len(), 6);
    let mut scores = vec![0.0; tokens.len()];
    for (rank, piece) in ["▁a", "ab", "▁", "a", "b", "c"].iter().enumerate() {
        tokens.push((*piece).to_owned());
        token_types.push(1);
        scores.push(-(rank as f32));
    }
    GgufVocabulary { model: "llama".to_owned(), tokens, scores, token_types, ..GgufVocabulary::default() }
}

fn texts(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<String> {
    let ids = tokenizer.encode(text, options).unwrap();
    ids.into_iter().map(|id| tokenizer.vocabulary_text(id).unwrap()).collect()
}

#[test]
fn merges_apply_in_their_order() {
    let tokenizer = Tokenizer::from_gguf(&byte_level(&[])).unwrap();
    assert_eq!(texts(&tokenizer, "hello hello", PLAIN), ["hello", "Ġhello"]);
    assert_eq!(texts(&tokenizer, "hel", PLAIN), ["he", "l"]);
}

#[test]
fn a_token_outside_the_byte_alphabet_never_matches() {
    let tokenizer = Tokenizer::from_gguf(&byte_level(&[])).unwrap();
    assert_eq!(tokenizer.encode("🚀", PLAIN).unwrap().len(), 4);
}

#[test]
fn bytes_without_a_token_are_left_out_and_become_no_other_token() {
    let tokenizer = Tokenizer::from_gguf(&byte_level(&[b'x', b'y', 0xf1])).unwrap();
    assert_eq!(texts(&tokenizer, "axyb", PLAIN), ["a", "b"]);
    assert!(tokenizer.encode("xyxyxy", SPECIAL).unwrap().is_empty());
}

#[test]
fn control_tokens_are_parsed_only_if_requested() {
    let tokenizer = Tokenizer::from_gguf(&byte_level(&[])).unwrap();
    let text = "<think>a<|im_end|>";
    assert_eq!(texts(&tokenizer, text, SPECIAL), ["<think>", "a", "<|im_end|>"]);
    assert_eq!(
        texts(&tokenizer, text, PLAIN)[..2],
        ["<think>", "a"],
        "anyone may write a user-defined token"
    );
    assert_eq!(texts(&tokenizer, text, PLAIN).len(), 2 + "<|im_end|>".len());
    let ids = tokenizer.encode(text, SPECIAL).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "<think>a");
    assert_eq!(tokenizer.end_of_generation_token_ids(), [ids[2]]);
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = Tokenizer::from_gguf(&sentencepiece()).unwrap();
    assert_eq!(texts(&tokenizer, "ab", SPECIAL), ["<s>", "▁a", "b"], "the better score first");
    assert_eq!(texts(&tokenizer, "cab é", PLAIN), ["▁", "c", "ab", "▁", "<0xC3>", "<0xA9>"]);
    assert_eq!(texts(&tokenizer, "<0x41>", PLAIN).len(), 7, "the spelling of a byte token is text");
    for text in ["ab", " ab", "  a\n", "é🙂", "<s>"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, PLAIN).unwrap(), false), text);
    }
    assert_eq!(tokenizer.token_bytes(3 + 0xc3), Some(&[0xc3][..]));
    let without_prefix = GgufVocabulary { add_space_prefix: Some(false), ..sentencepiece() };
    let tokenizer = Tokenizer::from_gguf(&without_prefix).unwrap();
    assert_eq!(texts(&tokenizer, "ab", PLAIN), ["ab"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode(" ab", PLAIN).unwrap(), false), " ab");
}

#[test]
fn bos_and_eos_follow_the_metadata() {
    let n_tokens = |change: fn(&mut GgufVocabulary)| {
        let mut vocabulary = sentencepiece();
        change(&mut vocabulary);
        Tokenizer::from_gguf(&vocabulary).unwrap().encode("a", SPECIAL).unwrap().len()
    };
    assert_eq!(n_tokens(|_| {}), 2, "SentencePiece opens with BOS by default");
    assert_eq!(n_tokens(|vocabulary| vocabulary.add_bos_token = Some(false)), 1);
    assert_eq!(n_tokens(|vocabulary| vocabulary.add_eos_token = Some(true)), 3);
    let tokenizer = Tokenizer::from_gguf(&sentencepiece()).unwrap();
    assert_eq!(texts(&tokenizer, "<s>a", SPECIAL), ["<s>", "▁a"], "never two");
}

#[test]
fn broken_metadata_is_refused_or_harmless() {
    let refused = |vocabulary: GgufVocabulary| Tokenizer::from_gguf(&vocabulary).unwrap_err();
    assert!(matches!(refused(GgufVocabulary::default()), TokenizerError::Malformed(_)));
    let unknown_kind = GgufVocabulary { model: "rwkv".to_owned(), ..byte_level(&[]) };
    assert!(matches!(refused(unknown_kind), TokenizerError::Unsupported(_)));
    let unknown_pre = GgufVocabulary { pre: Some("nonsense".to_owned()), ..byte_level(&[]) };
    assert!(matches!(refused(unknown_pre), TokenizerError::Unsupported(_)));

    let odd = GgufVocabulary {
        token_types: vec![3; 4],
        scores: vec![f32::NAN],
        bos_token_id: Some(u32::MAX),
        eos_token_id: Some(u32::MAX),
        unknown_token_id: Some(u32::MAX),
        add_bos_token: Some(true),
        merges: ["", " ", "x", "no such", "h e l", "é"].map(str::to_owned).to_vec(),
        ..byte_level(&[])
    };
    for vocabulary in [odd.clone(), GgufVocabulary { model: "llama".to_owned(), ..odd }] {
        let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
        let ids = tokenizer.encode("hello", SPECIAL).unwrap();
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()));
    }
}
