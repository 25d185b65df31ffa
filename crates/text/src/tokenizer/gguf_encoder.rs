//! Converts GGUF vocabularies of encoders, WordPiece (`bert`) and unigram (`t5`), back to the
//! `tokenizer.json` they were made from (llama.cpp, conversion/bert.py). Does not parse that file.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::gguf_vocabulary::{CONTROL, GgufVocabulary, UNKNOWN, USER_DEFINED};
use super::pairs::PairFrame;
use crate::error::TokenizerError;

/// Character that the converter puts before a token that starts a word; it removes `##` from WordPiece's
/// other tokens.
/// `##`.
const WORD_START: char = '▁';
/// Ids in BERT's own vocabulary, which old files do not contain.
const CLS_OF_BERT: u32 = 101;
const SEP_OF_BERT: u32 = 102;
const UNKNOWN_OF_BERT: u32 = 100;

/// The `tokenizer.json` of a vocabulary of kind `bert`.
pub(super) fn word_piece(vocabulary: &GgufVocabulary) -> Result<Value, TokenizerError> {
    let keys = &vocabulary.encoder;
    let kind = |id: usize| vocabulary.token_types.get(id).copied().unwrap_or(1);
    let spelled = |(id, token): (usize, &String)| match token.strip_prefix(WORD_START) {
        _ if is_special(kind(id)) => token.clone(),
        Some(word) => word.to_owned(),
        None => format!("##{token}"),
    };
    let tokens: Vec<String> = vocabulary.tokens.iter().enumerate().map(spelled).collect();
    let text = |id: u32| token_text(&tokens, id);
    let cls = keys.cls_token_id.or(vocabulary.bos_token_id).unwrap_or(CLS_OF_BERT);
    let sep = keys.separator_token_id.or(vocabulary.eos_token_id).unwrap_or(SEP_OF_BERT);
    let unknown = text(vocabulary.unknown_token_id.unwrap_or(UNKNOWN_OF_BERT))?;
    let lowercase = keys.lowercase.unwrap_or(true);
    // Of several equal tokens the first is used, as in llama.cpp.
    let ids = tokens.iter().enumerate().rev().map(|(id, token)| (token.clone(), json!(id)));
    let ids: serde_json::Map<String, Value> = ids.collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(&tokens, kind),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": keys.strip_accents.unwrap_or(lowercase), "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": frame((cls, text(cls)?), (sep, text(sep)?), 1, false),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }))
}

/// The `tokenizer.json` of a vocabulary of kind `t5`: XLM-RoBERTa's or, without a token that starts a text,
/// T5's.
pub(super) fn unigram(vocabulary: &GgufVocabulary) -> Result<Value, TokenizerError> {
    let keys = &vocabulary.encoder;
    let tokens = &vocabulary.tokens;
    let kind = |id: usize| vocabulary.token_types.get(id).copied().unwrap_or(1);
    let unknown = vocabulary.unknown_token_id.or_else(|| {
        let unknown = (0..tokens.len()).find(|id| kind(*id) == UNKNOWN);
        unknown.map(|id| id as u32)
    });
    let unknown = unknown.unwrap_or(2);
    token_text(tokens, unknown)?;
    let score = |id: usize| vocabulary.scores.get(id).copied().unwrap_or(0.0);
    if let Some(id) = (0..tokens.len()).find(|id| !score(*id).is_finite()) {
        return Err(TokenizerError::Malformed(format!("the score of token {id} is not a number")));
    }
    let pieces: Vec<Value> =
        tokens.iter().enumerate().map(|(id, token)| json!([token, f64::from(score(id))])).collect();
    let normalizer = match keys.precompiled_charsmap.is_empty() {
        true => Value::Null,
        false => {
            let map = BASE64_STANDARD.encode(&keys.precompiled_charsmap);
            json!({"type": "Precompiled", "precompiled_charsmap": map})
        }
    };
    let prepends = if vocabulary.add_space_prefix.unwrap_or(true) { "always" } else { "never" };
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepends, "split": true});
    let pre_tokenizer = match keys.remove_extra_whitespaces.unwrap_or(true) {
        true => json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}),
        false => metaspace.clone(),
    };
    let end = vocabulary.eos_token_id.unwrap_or(1);
    let end = (end, token_text(tokens, end)?);
    let start = match vocabulary.bos_token_id.filter(|_| vocabulary.add_bos_token.unwrap_or(true)) {
        Some(start) => Some((start, token_text(tokens, start)?)),
        None => None,
    };
    let post_processor = match start {
        Some(start) => frame(start, end, 0, true),
        None => after_each(end),
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(tokens, kind),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": false},
    }))
}

/// Special tokens around a pair of texts for an encoder with byte-level BPE: ModernBERT has one separator
/// between them, RoBERTa two.
pub(super) fn pair_frame(vocabulary: &GgufVocabulary, prefix: &[u32], suffix: &[u32]) -> Option<PairFrame> {
    let separator = vocabulary.encoder.separator_token_id.filter(|_| !suffix.is_empty())?;
    let n_between = if vocabulary.pre.as_deref() == Some("modern-bert") { 1 } else { 2 };
    Some(PairFrame { infix: vec![(separator, 0); n_between], ..PairFrame::of_one(prefix, suffix) })
}

fn is_special(kind: i32) -> bool {
    kind == CONTROL || kind == UNKNOWN
}

fn token_text(tokens: &[String], id: u32) -> Result<&str, TokenizerError> {
    let text = tokens.get(id as usize).map(String::as_str);
    text.ok_or_else(|| TokenizerError::Malformed(format!("token {id} is not in the vocabulary")))
}

fn added_tokens(tokens: &[String], kind: impl Fn(usize) -> i32) -> Vec<Value> {
    let is_added = |id: usize| is_special(kind(id)) || kind(id) == USER_DEFINED;
    let added = tokens.iter().enumerate().filter(|(id, text)| is_added(*id) && !text.is_empty());
    added
        .map(|(id, text)| {
            json!({
                "id": id, "content": text, "special": is_special(kind(id)), "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect()
}

/// `start` text `end`; for a pair `start` first `end` second `end`. If `doubled`, another `end` precedes
/// the second text.
fn frame(start: (u32, &str), end: (u32, &str), second_segment: u8, doubled: bool) -> Value {
    let special = |text: &str, segment: u8| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let sequence = |name: &str, segment: u8| json!({"Sequence": {"id": name, "type_id": segment}});
    let single = [special(start.1, 0), sequence("A", 0), special(end.1, 0)];
    let between = doubled.then(|| special(end.1, 0));
    let second = [sequence("B", second_segment), special(end.1, second_segment)];
    let pair: Vec<Value> = single.iter().cloned().chain(between).chain(second).collect();
    json!({
        "type": "TemplateProcessing", "single": single, "pair": pair,
        "special_tokens": special_tokens(&[start, end]),
    })
}

/// A single `end` after each text.
fn after_each(end: (u32, &str)) -> Value {
    let special = json!({"SpecialToken": {"id": end.1, "type_id": 0}});
    let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    json!({
        "type": "TemplateProcessing", "single": [sequence("A"), special],
        "pair": [sequence("A"), special, sequence("B"), special], "special_tokens": special_tokens(&[end]),
    })
}

fn special_tokens(tokens: &[(u32, &str)]) -> Value {
    let entry =
        |(id, text): &(u32, &str)| ((*text).to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
    Value::Object(tokens.iter().map(entry).collect())
}
