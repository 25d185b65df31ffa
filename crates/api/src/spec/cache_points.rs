//! Places in a conversation up to which a client asks to keep what is computed of it. Does not know
//! templates.

use serde_json::Value;
use throng_core::request::{CacheMark, TokenId};
use throng_text::{RenderedPrompt, Tokenizer};

use super::ContentPart;

/// Maximum number of places of a request, as in Anthropic's API.
pub const MAX_CACHE_POINTS: usize = 4;

/// Time in seconds for which a prefix is kept that a client asks to keep in memory.
pub const KEEP_SHORT_S: u32 = 300;

/// A place in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePoint {
    /// Number of messages before it, the one that it is in included.
    pub n_messages: usize,
    /// Part of the last of these messages that is before it; `None` for all.
    pub within: Option<PartsBefore>,
    /// Time for which the blocks before it are kept after each use, in seconds.
    pub keep_s: u32,
}

/// The beginning of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartsBefore {
    /// Number of parts.
    pub n_parts: usize,
    /// Bytes of their texts, each with a line break after it.
    pub n_bytes: usize,
}

/// A text that was replaced.
#[derive(Debug)]
pub struct ReplacedText {
    message_idx: usize,
    content: Value,
}

/// A conversation as a prompt.
#[derive(Debug)]
pub struct RenderedConversation<'a> {
    /// The messages in the form of the template.
    pub messages: &'a mut Value,
    /// Number of messages of the conversation.
    pub n_messages: usize,
    /// The prompt.
    pub rendered: &'a RenderedPrompt,
    /// Tokens of the prompt.
    pub tokens: &'a [TokenId],
}

impl RenderedConversation<'_> {
    /// The prefixes of the prompt before these places. `render` renders other messages alike; a place whose
    /// messages it cannot render is left out.
    pub fn cache_marks(
        &mut self,
        points: &[CachePoint],
        tokenizer: &Tokenizer,
        mut render: impl FnMut(&Value) -> Option<RenderedPrompt>,
    ) -> Vec<CacheMark> {
        let mut mark = |point: &CachePoint| {
            let Some(replaced) = point.replace_next(self.messages, self.n_messages) else {
                return Some(self.tokens.len());
            };
            let other = render(self.messages);
            replaced.put_back(self.messages);
            let n_bytes = self.rendered.common_bytes(&other?);
            Some(tokenizer.n_tokens_within(self.tokens, n_bytes))
        };
        let marks = points.iter().filter_map(|point| {
            Some(CacheMark { n_tokens: mark(point)?.try_into().ok()?, keep_s: point.keep_s })
        });
        marks.collect()
    }
}

impl CachePoint {
    /// The place behind the first `n_parts` of the parts of the last of `n_messages` messages. If it has no
    /// more, the place is behind the whole message.
    pub fn behind(n_messages: usize, parts: &[ContentPart], n_parts: usize, keep_s: u32) -> Self {
        let n_bytes =
            |parts: &[ContentPart]| parts.iter().map(|part| part.text().map_or(0, str::len) + 1).sum();
        let within =
            (n_parts < parts.len()).then(|| PartsBefore { n_parts, n_bytes: n_bytes(&parts[..n_parts]) });
        Self { n_messages, within, keep_s }
    }

    /// Replaces the first text behind the place by another one that begins differently, in the messages of a
    /// conversation of `n_messages` in the form of a template. What both render alike is before the place.
    /// `None` if nothing is behind it.
    pub fn replace_next(&self, messages: &mut Value, n_messages: usize) -> Option<ReplacedText> {
        let list = messages.as_array_mut()?;
        // Tools may stand in a message before the conversation.
        let n_before = list.len().checked_sub(n_messages)?;
        let message_idx = n_before + self.n_messages - usize::from(self.within.is_some());
        let content = list.get_mut(message_idx)?.get_mut("content")?;
        let (n_parts, n_bytes) = self.within.map_or((0, 0), |within| (within.n_parts, within.n_bytes));
        let changed = match &*content {
            Value::Array(parts) => {
                let idx = (n_parts..parts.len()).find(|&idx| parts[idx]["text"].is_string())?;
                let mut parts = parts.clone();
                parts[idx]["text"] = other_text(parts[idx]["text"].as_str()?).into();
                Value::Array(parts)
            }
            Value::String(text) => {
                let (before, behind) = text.split_at_checked(n_bytes)?;
                Value::String(before.to_owned() + other_text(behind))
            }
            _ => Value::String(other_text("").to_owned()),
        };
        Some(ReplacedText { message_idx, content: std::mem::replace(content, changed) })
    }
}

impl ReplacedText {
    /// Puts the text back.
    pub fn put_back(self, messages: &mut Value) {
        messages[self.message_idx]["content"] = self.content;
    }
}

/// A text that begins with another character.
fn other_text(text: &str) -> &'static str {
    if text.trim_start().starts_with('~') { "=" } else { "~" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn point(n_messages: usize, within: Option<(usize, usize)>) -> CachePoint {
        let within = within.map(|(n_parts, n_bytes)| PartsBefore { n_parts, n_bytes });
        CachePoint { n_messages, within, keep_s: 1 }
    }

    #[test]
    fn the_text_behind_a_place_is_replaced_and_put_back() {
        let image = json!([{"type": "image"}, {"type": "text", "text": "~c"}]);
        let messages =
            json!([{"content": "tools"}, {"content": "a"}, {"content": "long\nb"}, {"content": image}]);
        for (place, pointer, expected) in [
            (point(0, None), "/1/content", "~"),
            (point(1, None), "/2/content", "~"),
            (point(2, Some((1, 5))), "/2/content", "long\n~"),
            (point(2, None), "/3/content/1/text", "="),
            (point(3, Some((1, 1))), "/3/content/1/text", "="),
        ] {
            let mut changed = messages.clone();
            let replaced = place.replace_next(&mut changed, 3).expect("there is text behind it");
            assert_eq!(changed.pointer(pointer), Some(&expected.into()), "{place:?}");
            replaced.put_back(&mut changed);
            assert_eq!(changed, messages);
        }
        for place in [point(3, None), point(3, Some((2, 4))), point(2, Some((1, 99)))] {
            assert!(place.replace_next(&mut messages.clone(), 3).is_none(), "{place:?}");
        }
    }
}
