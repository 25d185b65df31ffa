//! Parts of a message's content that hold reasoning, in the forms of Anthropic, Mistral and OpenAI's
//! Responses. Does not know whose message it is.

use crate::error::ApiError;
use crate::json::{JsonType, Node};
use crate::spec::MAX_PARTS;

/// The keys under which the text stands, in the forms of different servers.
const TEXTS: &[&str] = &["thinking", "reasoning", "text", "summary"];

/// Reads the text of a part; it is empty where the part holds only what its writer can read.
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

/// A text, or a list of objects with one.
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
