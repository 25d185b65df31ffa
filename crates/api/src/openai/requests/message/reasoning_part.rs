//! Reasoning parts of a message's content, in the forms of Anthropic, Mistral and OpenAI's Responses API.
//! Does not know the message.

use crate::error::ApiError;
use crate::json::{JsonType, Node};
use crate::spec::MAX_PARTS;

/// Keys of the text in the forms of different servers.
const TEXTS: &[&str] = &["thinking", "reasoning", "text", "summary"];

/// Reads the text of a part. The text is empty if the part is encrypted.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_reasoning(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let mut texts: Vec<String> = Vec::new();
    node.members(usize::MAX, |key, value| match key {
        "type" => Ok(()),
        _ if TEXTS.contains(&key) => read_texts(&value, &mut texts),
        _ => value.ignore_unknown(),
    })?;
    Ok(texts.join("\n"))
}

/// Reads a string, or a list of objects that contain one.
fn read_texts(node: &Node<'_, '_>, texts: &mut Vec<String>) -> Result<(), ApiError> {
    match node.json_type() {
        JsonType::Null => Ok(()),
        JsonType::String => {
            texts.push(node.string(usize::MAX)?.into_owned());
            Ok(())
        }
        JsonType::Array => node.elements(MAX_PARTS, |_, part| {
            part.known_members(&["type", "text"], |key, value| {
                if key == "text" && !value.is_null() {
                    texts.push(value.string(usize::MAX)?.into_owned());
                }
                Ok(())
            })
        }),
        _ => Err(node.wrong_type("a string or an array of parts with a text")),
    }
}
