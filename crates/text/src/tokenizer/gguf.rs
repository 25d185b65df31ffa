//! Builds the tokenizer from a GGUF file's metadata. Does not know the GGUF container: the caller fills a
//! [`GgufVocabulary`] from it.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use super::added_tokens::{AddedEntry, added_vocabulary};
use super::byte_pairs::BytePairs;
use super::gguf_encoder;
use super::gguf_vocabulary::{BYTE, CONTROL, GgufVocabulary, UNKNOWN, USER_DEFINED};
use super::pieces::{PieceRule, TokenEntry, byte_token};
use super::pre_tokenizers::Convention;
use super::sentencepiece::merges_from_scores;
use super::{GgufInfillKeys, MAX_VOCABULARY, Parts, TokenRoles, tokenizer_json};
use crate::error::TokenizerError;

/// Spellings of tokens that always end a turn or a text, even if the metadata does not name them.
const ENDS_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "<|endofturn|>",
];

/// Control tokens of Phi-3 that do not strip the white space after them.
const PHI3_WITHOUT_RSTRIP: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// Builds the tokenizer.
pub(crate) fn read(vocabulary: &GgufVocabulary) -> Result<Parts, TokenizerError> {
    if vocabulary.tokens.is_empty() || vocabulary.tokens.len() > MAX_VOCABULARY {
        return Err(TokenizerError::Malformed(format!("a vocabulary of {} tokens", vocabulary.tokens.len())));
    }
    let is_sentencepiece = match vocabulary.model.as_str() {
        "llama" => true,
        "gpt2" => false,
        "bert" => return of_encoder(&gguf_encoder::word_piece(vocabulary)?),
        "t5" => return of_encoder(&gguf_encoder::unigram(vocabulary)?),
        other => {
            return Err(TokenizerError::Unsupported(format!(
                "GGUF vocabularies of kind {other:?} (supported: gpt2, llama, bert, t5)"
            )));
        }
    };
    let roles = roles(vocabulary, is_sentencepiece);
    let types = token_types(vocabulary, &roles);
    let added = added_entries(vocabulary, &types);
    let control: HashSet<&str> =
        added.iter().filter(|entry| entry.token.special).map(|entry| entry.token.content.as_str()).collect();
    let (model, frame_json, rule, adds_bos) = if is_sentencepiece {
        let prefixed = vocabulary.add_space_prefix.unwrap_or(true);
        let model = sentencepiece(vocabulary, &types);
        (model, sentencepiece_frame(prefixed), PieceRule::sentencepiece(prefixed), true)
    } else {
        let convention = Convention::named(vocabulary.pre.as_deref())?;
        let model = byte_level(vocabulary, &convention);
        (model, frame(Value::Null, convention.to_json()), PieceRule::byte_level(), convention.adds_bos())
    };
    let model = model.build(&control, vocabulary.tokens.len())?;
    let frame = tokenizers::from_json(&frame_json.to_string())
        .map_err(|error| TokenizerError::Unsupported(error.to_string()))?;
    let run = |wanted: bool, id: Option<u32>| if wanted { id.into_iter().collect() } else { Vec::new() };
    let prefix: Vec<u32> = run(vocabulary.add_bos_token.unwrap_or(adds_bos), roles.bos);
    let suffix: Vec<u32> = run(vocabulary.add_eos_token.unwrap_or(false), roles.eos);
    Ok(Parts {
        added: added_vocabulary(&added, frame.get_normalizers())?,
        n_late_normalizers: 0,
        frame,
        model: Some(model),
        entries: entries(vocabulary, &types),
        rule,
        pair: gguf_encoder::pair_frame(vocabulary, &prefix, &suffix),
        prefix,
        suffix,
        named: named_tokens(vocabulary, &roles),
        roles,
    })
}

fn of_encoder(json: &Value) -> Result<Parts, TokenizerError> {
    tokenizer_json::read(json.to_string().as_bytes(), None)
}

/// The special tokens as template variables.
fn named_tokens(vocabulary: &GgufVocabulary, roles: &TokenRoles) -> Vec<(String, String)> {
    let ids = [
        ("bos_token", roles.bos),
        ("eos_token", roles.eos),
        ("unk_token", vocabulary.unknown_token_id),
        ("pad_token", vocabulary.padding_token_id),
    ];
    let named = ids.into_iter().filter_map(|(name, id)| Some((name, vocabulary.tokens.get(id? as usize)?)));
    named.map(|(name, text)| (name.to_owned(), text.clone())).collect()
}

fn roles(vocabulary: &GgufVocabulary, is_sentencepiece: bool) -> TokenRoles {
    let exists = |id: &u32| (*id as usize) < vocabulary.tokens.len();
    let default = |id: u32| is_sentencepiece.then_some(id);
    let bos = vocabulary.bos_token_id.or(default(1)).filter(exists);
    let eos = vocabulary.eos_token_id.or(default(2)).filter(exists);
    let spelled = |text: &str| vocabulary.tokens.iter().any(|token| token == text);
    // In the harmony format `<|end|>` only ends a message; `<|return|>` and `<|call|>` end the turn.
    let is_harmony = spelled("<|return|>") && spelled("<|call|>");
    let declared = [eos, vocabulary.eot_token_id, vocabulary.eom_token_id];
    let mut ends: Vec<u32> = declared.into_iter().flatten().filter(exists).collect();
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        let ends_here = ENDS_GENERATION.contains(&text.as_str()) && !(is_harmony && text == "<|end|>");
        if ends_here && !ends.contains(&(id as u32)) {
            ends.push(id as u32);
        }
    }
    TokenRoles { bos, eos, ends_generation: ends, infill: infill_keys(vocabulary) }
}

/// The fill-in-the-middle tokens that the file names and the vocabulary has.
fn infill_keys(vocabulary: &GgufVocabulary) -> GgufInfillKeys {
    let exists = |id: &u32| (*id as usize) < vocabulary.tokens.len();
    let GgufInfillKeys { before, behind, middle, repository, file, end } = vocabulary.infill.clone();
    let [before, behind, middle, repository, file, end] =
        [before, behind, middle, repository, file, end].map(|id| id.filter(exists));
    GgufInfillKeys { before, behind, middle, repository, file, end }
}

/// The type of each token; tokens with a role are control tokens even if the file does not mark them.
fn token_types(vocabulary: &GgufVocabulary, roles: &TokenRoles) -> Vec<i32> {
    let mut types = vocabulary.token_types.clone();
    types.resize(vocabulary.tokens.len(), 1);
    for &id in roles.ends_generation.iter().chain(&roles.bos) {
        if let Some(kind) = types.get_mut(id as usize) {
            *kind = CONTROL;
        }
    }
    types
}

fn is_control(kind: i32) -> bool {
    kind == CONTROL || kind == UNKNOWN
}

fn added_entries(vocabulary: &GgufVocabulary, types: &[i32]) -> Vec<AddedEntry> {
    let name = vocabulary.model_name.as_deref().unwrap_or_default().to_lowercase();
    let is_phi3 = name.contains("phi-3") || name.contains("phi3");
    let rows = vocabulary.tokens.iter().zip(types).enumerate();
    rows.filter(|(_, (text, kind))| !text.is_empty() && (is_control(**kind) || **kind == USER_DEFINED))
        .map(|(id, (text, kind))| {
            let rstrip = is_phi3 && !PHI3_WITHOUT_RSTRIP.contains(&text.as_str());
            let token = AddedToken::from(text.as_str(), is_control(*kind)).normalized(false).rstrip(rstrip);
            AddedEntry { id: id as u32, token }
        })
        .collect()
}

fn entries(vocabulary: &GgufVocabulary, types: &[i32]) -> Vec<Option<TokenEntry>> {
    let rows = vocabulary.tokens.iter().zip(types);
    rows.map(|(text, &kind)| {
        let special = is_control(kind);
        Some(TokenEntry { text: text.clone(), added: special || kind == USER_DEFINED, special })
    })
    .collect()
}

/// Ids by text; the first of several tokens with the same text is used for encoding.
fn ids(vocabulary: &GgufVocabulary) -> HashMap<String, u32> {
    let rows = vocabulary.tokens.iter().enumerate().rev();
    rows.map(|(id, text)| (text.clone(), id as u32)).collect()
}

fn byte_level(vocabulary: &GgufVocabulary, convention: &Convention) -> BytePairs {
    // The first character may be a space itself, so the separator is searched for after it.
    let cut = |merge: &String| {
        let start = merge.chars().next()?.len_utf8();
        let at = start + merge[start..].find(' ')?;
        Some((merge[..at].to_owned(), merge[at + 1..].to_owned()))
    };
    BytePairs {
        vocab: ids(vocabulary),
        merges: vocabulary.merges.iter().filter_map(cut).collect(),
        byte_level: true,
        ignore_merges: convention.ignores_merges(),
        ..BytePairs::default()
    }
}

fn sentencepiece(vocabulary: &GgufVocabulary, types: &[i32]) -> BytePairs {
    let score = |id: usize| vocabulary.scores.get(id).copied().unwrap_or(0.0);
    let rows = vocabulary.tokens.iter().zip(types).enumerate();
    let pieces: Vec<(&str, u32, f32)> = rows
        .filter(|(_, (_, kind))| !is_control(**kind) && **kind != BYTE)
        .map(|(id, (text, _))| (text.as_str(), id as u32, score(id)))
        .collect();
    let unknown = vocabulary.unknown_token_id.unwrap_or(0) as usize;
    let n_bytes: HashSet<u8> = vocabulary.tokens.iter().filter_map(|text| byte_token(text)).collect();
    BytePairs {
        merges: merges_from_scores(&pieces),
        vocab: ids(vocabulary),
        byte_fallback: n_bytes.len() == 256,
        fuse_unknown: true,
        unknown: vocabulary.tokens.get(unknown).cloned(),
        ..BytePairs::default()
    }
}

fn sentencepiece_frame(prefixed: bool) -> Value {
    let mut normalizers = Vec::new();
    if prefixed {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
    }
    normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    frame(json!({"type": "Sequence", "normalizers": normalizers}), Value::Null)
}

/// A `tokenizer.json` without its model, which is built separately.
fn frame(normalizer: Value, pre_tokenizer: Value) -> Value {
    json!({
        "version": "2.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"},
        "post_processor": null,
        "decoder": null,
    })
}
