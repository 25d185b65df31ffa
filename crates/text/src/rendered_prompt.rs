//! A rendered prompt, between the chat template that writes it and the tokenizer that encodes it. Does not
//! know either.

use std::borrow::Cow;
use std::sync::Arc;

use crate::disguise::Disguise;

/// A prompt as text, in which user text is marked: [`crate::Tokenizer::encode_rendered`] reads control tokens
/// only where the template wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    pub(crate) disguised: String,
    pub(crate) disguise: Arc<Disguise>,
}

impl RenderedPrompt {
    /// The prompt as transformers would render it. Encoding this text instead of the prompt would turn what
    /// users wrote into control tokens.
    pub fn text(&self) -> Cow<'_, str> {
        self.disguise.reveal(&self.disguised)
    }

    /// Whether the text ends with `suffix`, but for white space.
    pub fn ends_with(&self, suffix: &str) -> bool {
        let chars = self.disguised.chars().rev().map(|c| self.disguise.real(c).unwrap_or(c));
        chars.skip_while(|c| c.is_whitespace()).take(suffix.chars().count()).eq(suffix.chars().rev())
    }
}
