//! What a message says: a text, or a list of parts of which this server reads those of text. Does not know who
//! says it.

use std::borrow::Cow;

use super::image::check_image_url;
use crate::openai::error::ApiError;
use crate::openai::field::IgnoredParameters;
use crate::openai::json::{JsonType, Node};

/// Most parts of one message's content.
const MAX_PARTS: usize = 10_000;

/// Types of parts: those of text, then those that are refused.
const TYPES: &[&str] = &[
    "text",
    "input_text",
    "output_text",
    "refusal",
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
    "video",
    "file",
];
const N_TEXT_TYPES: usize = 4;

/// Reads `content`; parts are joined by line breaks.
///
/// # Errors
/// A 400 that names the path; `empty_array` for a list without parts.
pub(super) fn read_content(node: &Node<'_, '_>, ignored: &mut IgnoredParameters) -> Result<String, ApiError> {
    match node.json_type() {
        JsonType::String => Ok(node.string(usize::MAX)?.into_owned()),
        JsonType::Array => {
            if node.is_empty_container() {
                return Err(ApiError::empty_array(node.path()));
            }
            let mut content = String::with_capacity(node.text().len());
            node.elements(MAX_PARTS, |idx, part| {
                if idx > 0 {
                    content.push('\n');
                }
                content.push_str(&read_part(&part, ignored)?);
                Ok(())
            })?;
            content.shrink_to_fit();
            Ok(content)
        }
        _ => Err(node.wrong_type("a string or an array of content parts")),
    }
}

fn read_part<'a>(node: &Node<'a, '_>, ignored: &mut IgnoredParameters) -> Result<Cow<'a, str>, ApiError> {
    let (mut kind, mut text, mut refusal, mut unknown, mut image) = (None, None, None, None, None);
    node.members(usize::MAX, |key, value| match key {
        "type" if value.is_null() => value.put(&mut kind, None),
        "type" => value.put(&mut kind, Some(value.one_of(TYPES)?)),
        "text" if value.is_null() => value.put(&mut text, None),
        "text" => value.put(&mut text, Some(value.string(usize::MAX)?)),
        "refusal" if value.is_null() => value.put(&mut refusal, None),
        "refusal" => value.put(&mut refusal, Some(value.string(usize::MAX)?)),
        "image_url" => {
            unknown.get_or_insert_with(|| value.path());
            value.put(&mut image, Some(check_image_url(&value)))
        }
        // Marks of other servers, for caches and citations.
        "cache_control" | "annotations" => {
            ignored.add(&format!("messages[].content[].{key}"));
            Ok(())
        }
        _ => {
            unknown.get_or_insert_with(|| value.path());
            Ok(())
        }
    })?;
    let (text, refusal) = (text.flatten(), refusal.flatten());
    let kind = kind.flatten().ok_or_else(|| ApiError::missing_required_parameter(node.path_of("type")))?;
    if kind >= N_TEXT_TYPES {
        if let Some(Some(checked)) = image.filter(|_| TYPES[kind] == "image_url") {
            checked?;
        }
        let reason = "This model takes only text.";
        return Err(ApiError::unsupported_parameter(node.path_of(TYPES[kind]), reason));
    }
    let (key, said, other_key, other) = match TYPES[kind] {
        "refusal" => ("refusal", refusal, "text", text),
        _ => ("text", text, "refusal", refusal),
    };
    if let Some(path) = unknown.or_else(|| other.map(|_| node.path_of(other_key))) {
        return Err(ApiError::unknown_parameter(path));
    }
    said.ok_or_else(|| ApiError::missing_required_parameter(node.path_of(key)))
}
