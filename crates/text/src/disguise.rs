//! Stand-ins for characters of users' text, so that it cannot spell a control token. Does not know
//! templates and tokenizers.

use std::borrow::Cow;

/// A one-to-one replacement of characters. Lengths in characters do not change, so that templates can
/// measure, cut and trim the text as usual.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Disguise {
    /// Pairs `(character, replacement)`; a few at most.
    pairs: Vec<(char, char)>,
}

impl Disguise {
    pub(crate) fn new(pairs: Vec<(char, char)>) -> Self {
        Self { pairs }
    }

    /// The stand-in of `real`.
    pub(crate) fn hide(&self, real: char) -> Option<char> {
        self.pairs.iter().find(|pair| pair.0 == real).map(|pair| pair.1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The character that `c` replaces.
    pub(crate) fn real(&self, c: char) -> Option<char> {
        self.pairs.iter().find(|pair| pair.1 == c).map(|pair| pair.0)
    }

    /// The original text.
    pub(crate) fn reveal<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_empty() || !text.contains(|c| self.real(c).is_some()) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.chars().map(|c| self.real(c).unwrap_or(c)).collect())
    }
}
