//! A rendered prompt, passed from the chat template to the tokenizer. Does not know either.

use std::borrow::Cow;
use std::sync::Arc;

use crate::disguise::Disguise;

/// A prompt as text with users' text marked: [`crate::Tokenizer::encode_rendered`] recognizes control
/// tokens only in the template's own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    pub(crate) disguised: String,
    pub(crate) disguise: Arc<Disguise>,
}

impl RenderedPrompt {
    /// The prompt as transformers would render it. Encoding this text instead of the prompt would turn
    /// users' text into control tokens.
    pub fn text(&self) -> Cow<'_, str> {
        self.disguise.reveal(&self.disguised)
    }

    /// Whether the text ends with `suffix`, ignoring white space at the end.
    pub fn ends_with(&self, suffix: &str) -> bool {
        let chars = self.disguised.chars().rev().map(|c| self.disguise.real(c).unwrap_or(c));
        chars.skip_while(|c| c.is_whitespace()).take(suffix.chars().count()).eq(suffix.chars().rev())
    }
}
