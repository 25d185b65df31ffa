//! A rendered prompt, passed from the chat template to the tokenizer. Does not know how it is rendered and
//! encoded.

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

    /// Whether the text begins with `prefix` as the template itself wrote it.
    pub fn begins_with(&self, prefix: &str) -> bool {
        self.disguised.starts_with(prefix)
    }

    /// Number of bytes at the beginning of the text that another prompt has too.
    pub fn common_bytes(&self, other: &Self) -> usize {
        let own = self.disguised.chars().map(|c| self.disguise.real(c).unwrap_or(c));
        let others = other.disguised.chars().map(|c| other.disguise.real(c).unwrap_or(c));
        own.zip(others).take_while(|(own, other)| own == other).map(|(own, _)| own.len_utf8()).sum()
    }

    /// Replaces each occurrence of `marker` in the template's own text by the text of `replacements` in
    /// order, which is the server's own too: control tokens in it count. Users' text is never replaced if
    /// `marker` is a control token.
    ///
    /// # Errors
    /// The number of occurrences, if it is not that of the replacements.
    pub fn expand(&mut self, marker: &str, replacements: &[String]) -> Result<(), usize> {
        let found = if marker.is_empty() { 0 } else { self.disguised.matches(marker).count() };
        if found != replacements.len() {
            return Err(found);
        }
        let n_bytes: usize = replacements.iter().map(String::len).sum();
        let mut expanded = String::with_capacity(self.disguised.len() + n_bytes);
        let mut replacements = replacements.iter();
        for (idx, text) in self.disguised.split(marker).enumerate() {
            if idx > 0 {
                expanded.push_str(replacements.next().map_or("", String::as_str));
            }
            expanded.push_str(text);
        }
        self.disguised = expanded;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_beginning_is_that_of_the_texts() {
        let disguise = Arc::new(Disguise::new(vec![('<', '\u{f0000}')]));
        let prompt = |disguised: &str, disguise: &Arc<Disguise>| RenderedPrompt {
            disguised: disguised.to_owned(),
            disguise: disguise.clone(),
        };
        let long = prompt("<a>é\u{f0000}b", &disguise);
        assert_eq!(long.common_bytes(&prompt("<a>é\u{f0000}c", &disguise)), 6);
        assert_eq!(long.common_bytes(&prompt("<a>é<b and more", &Arc::default())), 7);
        assert_eq!(long.common_bytes(&prompt("", &disguise)), 0);
    }

    #[test]
    fn markers_of_the_template_are_expanded_and_those_of_users_are_not() {
        let disguise = Arc::new(Disguise::new(vec![('<', '\u{f0000}')]));
        let disguised = "a<image>b\u{f0000}image><image>c".to_owned();
        let mut prompt = RenderedPrompt { disguised, disguise };
        let replacements = ["<image><image>".to_owned(), "<row>".to_owned()];
        assert_eq!(prompt.expand("<image>", &replacements[..1]), Err(2));
        assert_eq!(prompt.expand("<image>", &replacements), Ok(()));
        assert_eq!(prompt.text(), "a<image><image>b<image><row>c");
        assert_eq!(prompt.disguised, "a<image><image>b\u{f0000}image><row>c");
    }
}
