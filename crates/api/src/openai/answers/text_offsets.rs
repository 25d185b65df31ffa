//! Character offsets of an echoed prompt's tokens in its text. Does not know answers.

/// A position in a prompt's text that advances token by token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TextPlace {
    n_bytes: usize,
    /// Number of characters of the text that end before this position.
    n_chars: usize,
}

impl TextPlace {
    /// Index of the character that starts at or contains this position.
    pub fn char_idx(self) -> usize {
        self.n_chars
    }

    /// Advances past a token with these bytes. A control token that the tokenizer added has no text, and
    /// the first word may lack the space of its token. Any other token that differs from the text counts
    /// with its own length.
    pub fn advance(&mut self, text: &str, token: &[u8], is_control: bool) {
        let rest = &text.as_bytes()[self.n_bytes..];
        let without_space = token.strip_prefix(b" ").filter(|_| self.n_bytes == 0);
        let n_bytes = if rest.starts_with(token) {
            token.len()
        } else if is_control {
            0
        } else if let Some(word) = without_space.filter(|word| rest.starts_with(word)) {
            word.len()
        } else {
            token.len().min(rest.len())
        };
        // A character ends where the next one begins, or the text ends.
        let end = self.n_bytes + n_bytes;
        let ends = (self.n_bytes + 1..=end).filter(|at| text.is_char_boundary(*at));
        *self = Self { n_bytes: end, n_chars: self.n_chars + ends.count() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(text: &str, tokens: &[(&[u8], bool)]) -> Vec<usize> {
        let mut place = TextPlace::default();
        let offset = |(token, is_control): &(&[u8], bool)| {
            let offset = place.char_idx();
            place.advance(text, token, *is_control);
            offset
        };
        tokens.iter().map(offset).collect()
    }

    #[test]
    fn tokens_begin_at_characters_of_the_text() {
        let text = "é🎉 a";
        let cut: [(&[u8], bool); 5] =
            [(b"\xc3", false), (b"\xa9\xf0", false), (b"\x9f\x8e", false), (b"\x89", false), (b" a", false)];
        assert_eq!(offsets(text, &cut), [0, 0, 1, 1, 2]);
        let added: [(&[u8], bool); 4] = [(b"<s>", true), (b" Hi", false), (b" you", false), (b"!", false)];
        assert_eq!(offsets("Hi you!", &added), [0, 0, 2, 6]);
        assert_eq!(offsets("<s>Hi", &[(b"<s>", true), (b"Hi", false)]), [0, 3]);
        let changed: [(&[u8], bool); 2] = [(b"hello", false), (b" there", false)];
        assert_eq!(offsets("Hello é", &changed), [0, 5]);
    }
}
