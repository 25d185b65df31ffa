//! Readers of the shared parameters with structured values. Does not know their effect on tokens.

use throng_core::request::TokenId;

use crate::error::ApiError;
use crate::field::{Range, ReadOptions, Shape};
use crate::json::{JsonType, Node};
use crate::spec::{GenerationOptions, StreamOptions};

pub(super) const MAX_LABEL_BYTES: usize = 512;
pub(super) const MAX_REQUEST_ID_BYTES: usize = 128;
pub(super) const MAX_STOP_BYTES: usize = 1024;
pub(super) const MAX_WORDS: usize = 1024;
pub(super) const MAX_STOP_TOKENS: usize = 1024;
pub(super) const MAX_ALLOWED_TOKENS: usize = 1 << 20;
pub(super) const MAX_LOGIT_BIAS: usize = 1024;
pub(super) const MAX_SCHEMA_VALUES: usize = 20_000;
pub(super) const MAX_TOKENS: i64 = i32::MAX as i64;

/// Whether a boolean parameter is false.
pub fn is_false(node: &Node<'_, '_>) -> bool {
    node.text() == "false"
}

pub(super) fn is_empty(node: &Node<'_, '_>) -> bool {
    node.is_empty_container()
}

pub(super) fn is_one(node: &Node<'_, '_>) -> bool {
    node.number().is_ok_and(|value| value == 1.0)
}

pub(super) fn read_stream_options(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    const KEYS: &[&str] =
        &["include_usage", "include_timings", "continuous_usage_stats", "include_obfuscation"];
    let mut options = StreamOptions::default();
    node.known_members(KEYS, |key, value| {
        let value = !value.is_null() && value.boolean()?;
        match key {
            "include_usage" => options.include_usage = value,
            "include_timings" => options.include_timings = value,
            "continuous_usage_stats" => options.continuous_usage_stats = value,
            _ => {}
        }
        Ok(())
    })?;
    r.stream_options = Some(options);
    Ok(())
}

pub(super) fn read_logit_bias(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let mut biases: Vec<(TokenId, f32)> = Vec::new();
    node.members(usize::MAX, |key, value| {
        if biases.len() == MAX_LOGIT_BIAS {
            return Err(ApiError::too_many(node.path(), MAX_LOGIT_BIAS));
        }
        let is_number = !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit());
        let token = key.parse().ok().filter(|_| is_number);
        let token = token.ok_or_else(|| ApiError::invalid_token(value.path(), None))?;
        biases.push((token, Range::closed(-100.0, 100.0).read_f32(&value)?));
        Ok(())
    })?;
    biases.sort_by_key(|(token, _)| *token);
    if let Some(pair) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ApiError::duplicate_key(node.path_of(&pair[0].0.to_string())));
    }
    r.logit_bias = biases;
    Ok(())
}

/// A list of token ids of any length.
pub(super) const TOKENS: Shape = Shape::Array(usize::MAX, &Shape::Integer(0, u32::MAX as i64));

pub(super) fn read_allowed_tokens(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let mut tokens = node.token_ids(MAX_ALLOWED_TOKENS)?;
    if tokens.is_empty() {
        return Err(ApiError::empty_array(node.path()));
    }
    tokens.sort_unstable();
    tokens.dedup();
    r.allowed_token_ids = Some(tokens);
    Ok(())
}

pub(super) fn read_word(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let word = node.string(MAX_STOP_BYTES)?;
    if word.is_empty() {
        let message = format!("Invalid '{}': the text must not be empty.", node.path());
        return Err(ApiError::invalid_value(node.path(), message));
    }
    Ok(word.into_owned())
}

pub(super) fn read_bad_words(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    node.elements(MAX_WORDS, |_, element| {
        r.bad_words.push(read_word(&element)?);
        Ok(())
    })
}

pub(super) fn read_stop(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    options: &ReadOptions,
) -> Result<(), ApiError> {
    match node.json_type() {
        JsonType::String => r.stop.push(read_word(node)?),
        JsonType::Array => node.elements(options.max_stop_strings, |_, element| {
            r.stop.push(read_word(&element)?);
            Ok(())
        })?,
        _ => return Err(node.wrong_type("a string or an array of strings")),
    }
    Ok(())
}

pub(super) fn read_request_id(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let id = node.string(MAX_REQUEST_ID_BYTES)?;
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_graphic()) {
        let reason = "Invalid 'request_id': expected printable ASCII characters without spaces.";
        return Err(ApiError::invalid_value("request_id", reason));
    }
    r.request_id = Some(id.into_owned());
    Ok(())
}

pub(super) fn read_user(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    r.user = Some(node.string(MAX_LABEL_BYTES)?.into_owned());
    Ok(())
}

pub(super) fn read_cache_salt(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let salt = node.string(MAX_LABEL_BYTES)?;
    if salt.is_empty() {
        return Err(ApiError::invalid_value("cache_salt", "Invalid 'cache_salt': it must not be empty."));
    }
    r.cache_salt = Some(salt.into_owned());
    Ok(())
}
