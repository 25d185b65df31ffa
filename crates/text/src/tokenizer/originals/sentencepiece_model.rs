//! `tokenizer.model` of SentencePiece: a protobuf message (`sentencepiece_model.proto`) with pieces and their
//! scores. Models of pairs without normalization are converted, as Llama, Mistral and InternLM have them.

use serde_json::{Map, Value, json};

use super::{Own, added_token, begins_with};
use crate::error::TokenizerError;
use crate::tokenizer::MAX_VOCABULARY;
use crate::tokenizer::gguf_vocabulary::{BYTE, CONTROL, UNKNOWN, USER_DEFINED};
use crate::tokenizer::sentencepiece::merges_from_scores;

/// `TrainerSpec.model_type` of a model of pairs.
const PAIRS: u64 = 2;
/// Maximum bytes of a piece; the search for its parts takes the square of them.
const MAX_PIECE_BYTES: usize = 1024;

/// The parts of the message that are read.
#[derive(Debug)]
struct Model {
    pieces: Vec<Piece>,
    model_type: u64,
    adds_space: bool,
    /// Whether texts are changed before they are split: characters replaced, or blanks removed.
    normalizes: bool,
}

#[derive(Debug)]
struct Piece {
    text: String,
    score: f32,
    /// The values are those of `tokenizer.ggml.token_type`, which were taken from here.
    kind: i32,
}

/// Converts the file.
pub(super) fn convert(file: &[u8]) -> Result<Own, TokenizerError> {
    let malformed = |reason: &str| TokenizerError::Malformed(format!("tokenizer.model: {reason}"));
    let model = read(file).ok_or_else(|| malformed("it is no SentencePiece model"))?;
    if model.pieces.is_empty() || model.pieces.len() > MAX_VOCABULARY {
        return Err(malformed(&format!("a vocabulary of {} tokens", model.pieces.len())));
    }
    if model.pieces.iter().any(|piece| piece.text.len() > MAX_PIECE_BYTES) {
        return Err(malformed(&format!("a piece has more than {MAX_PIECE_BYTES} bytes")));
    }
    if model.model_type != PAIRS || model.normalizes {
        let kind = if model.normalizes { "with normalization" } else { "of another kind than pairs" };
        return Err(TokenizerError::Unsupported(format!(
            "SentencePiece models {kind} without a tokenizer.json"
        )));
    }
    let is_control = |piece: &Piece| piece.kind == CONTROL || piece.kind == UNKNOWN;
    let rows = || model.pieces.iter().enumerate();
    let normal: Vec<(&str, u32, f32)> = rows()
        .filter(|(_, piece)| !is_control(piece) && piece.kind != BYTE)
        .map(|(id, piece)| (piece.text.as_str(), id as u32, piece.score))
        .collect();
    let merges: Vec<Value> =
        merges_from_scores(&normal).into_iter().map(|(left, right)| json!([left, right])).collect();
    // The first one of equal pieces counts.
    let vocab: Map<String, Value> = rows().rev().map(|(id, piece)| (piece.text.clone(), json!(id))).collect();
    let added: Vec<Value> = rows()
        .filter(|(_, piece)| is_control(piece) || piece.kind == USER_DEFINED)
        .map(|(id, piece)| added_token(id, &piece.text, is_control(piece)))
        .collect();
    let of_kind =
        |kind: i32| model.pieces.iter().find(|piece| piece.kind == kind).map(|piece| piece.text.clone());
    let has =
        |name: &str| rows().find(|(_, piece)| piece.kind == CONTROL && piece.text == name).map(|(id, _)| id);
    let root = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer(model.adds_space),
        "pre_tokenizer": null,
        "post_processor": has("<s>").map(|id| begins_with("<s>", id)),
        "decoder": decoder(model.adds_space),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": of_kind(UNKNOWN),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": model.pieces.iter().filter(|piece| piece.kind == BYTE).count() == 256,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        },
    });
    let named = |name: &str| has(name).map(|_| name.to_owned());
    let config =
        json!({"bos_token": named("<s>"), "eos_token": named("</s>"), "unk_token": of_kind(UNKNOWN)});
    Ok(Own { root, config: Some(config), chat_template: None })
}

fn normalizer(adds_space: bool) -> Value {
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let all: Vec<Value> = adds_space.then_some(prepend).into_iter().chain([replace]).collect();
    json!({"type": "Sequence", "normalizers": all})
}

fn decoder(adds_space: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let all = [replace, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})].into_iter();
    json!({"type": "Sequence", "decoders": all.chain(adds_space.then_some(strip)).collect::<Vec<_>>()})
}

/// Reads the message; `None` where it is not one.
fn read(file: &[u8]) -> Option<Model> {
    let mut model = Model { pieces: Vec::new(), model_type: 1, adds_space: true, normalizes: true };
    for field in fields(file) {
        match field? {
            (1, Wire::Bytes(message)) => model.pieces.push(piece(message)?),
            (2, Wire::Bytes(trainer)) => {
                for field in fields(trainer) {
                    if let (3, Wire::Number(value)) = field? {
                        model.model_type = value;
                    }
                }
            }
            (3, Wire::Bytes(normalizer)) => {
                let (mut has_map, mut removes_blanks) = (false, true);
                for field in fields(normalizer) {
                    match field? {
                        (2, Wire::Bytes(map)) => has_map = !map.is_empty(),
                        (3, Wire::Number(value)) => model.adds_space = value != 0,
                        (4, Wire::Number(value)) => removes_blanks = value != 0,
                        _ => {}
                    }
                }
                model.normalizes = has_map || removes_blanks;
            }
            _ => {}
        }
    }
    Some(model)
}

fn piece(message: &[u8]) -> Option<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: 1 };
    for field in fields(message) {
        match field? {
            (1, Wire::Bytes(text)) => piece.text = std::str::from_utf8(text).ok()?.to_owned(),
            (2, Wire::Four(bits)) => piece.score = f32::from_bits(bits),
            (3, Wire::Number(value)) => piece.kind = i32::try_from(value).ok()?,
            _ => {}
        }
    }
    Some(piece)
}

/// The value of a field, by its wire type.
enum Wire<'a> {
    Number(u64),
    Four(u32),
    Eight,
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers; `None` and the end at the first that cannot be read.
fn fields(mut message: &[u8]) -> impl Iterator<Item = Option<(u64, Wire<'_>)>> {
    std::iter::from_fn(move || {
        if message.is_empty() {
            return None;
        }
        let field = field(&mut message);
        if field.is_none() {
            message = &[];
        }
        Some(field)
    })
}

fn field<'a>(message: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let tag = varint(message)?;
    let value = match tag & 7 {
        0 => Wire::Number(varint(message)?),
        1 => take(message, 8).map(|_| Wire::Eight)?,
        2 => {
            let n_bytes = usize::try_from(varint(message)?).ok()?;
            Wire::Bytes(take(message, n_bytes)?)
        }
        5 => Wire::Four(u32::from_le_bytes(take(message, 4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(message: &mut &'a [u8], n_bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(n_bytes)?;
    *message = rest;
    Some(taken)
}
