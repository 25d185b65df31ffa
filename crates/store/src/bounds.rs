//! Bounds on data written to a database: lengths and characters of texts, sizes of numbers. Does not know
//! SQL.

use std::borrow::Cow;

/// Maximum bytes of a text in a ledger entry or an audit line; longer texts are truncated.
pub const MAX_TEXT_BYTES: usize = 512;
/// Maximum tokens of each kind in a ledger entry; larger counts cannot be real.
pub const MAX_ENTRY_TOKENS: u64 = 1 << 40;

/// The text in a form that all databases accept: without control characters (PostgreSQL refuses NUL), and
/// at most `max_bytes` long.
pub fn bounded_text(text: &str, max_bytes: usize) -> Cow<'_, str> {
    let has_control = text.chars().any(char::is_control);
    if !has_control && text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let mut bounded = String::with_capacity(text.len().min(max_bytes));
    for character in text.chars() {
        let character = if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
        if bounded.len() + character.len_utf8() > max_bytes {
            break;
        }
        bounded.push(character);
    }
    Cow::Owned(bounded)
}

/// Converts a number to the signed type of databases, saturating.
pub(crate) fn as_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lose_control_characters_and_what_is_too_long() {
        for (text, expected) in [
            ("", ""),
            ("plain é", "plain é"),
            ("a\0b", "a\u{fffd}b"),
            ("a\tb\u{7f}", "a\u{fffd}b\u{fffd}"),
            ("\u{85}c", "\u{fffd}c"),
            ("12345678901", "1234567890"),
            ("123456789é", "123456789"),
            ("\0\0\0\0", "\u{fffd}\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(bounded_text(text, 10), expected, "{text:?}");
        }
        assert_eq!((as_i64(7), as_i64(u64::MAX)), (7, i64::MAX));
    }
}
