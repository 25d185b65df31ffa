//! Texts of tools with at most this number of bytes.

/// The beginning of `text`, at most `max_bytes` long, with a note where something is cut.
pub(crate) fn bound(mut text: String, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text;
    }
    text.truncate(text.floor_char_boundary(max_bytes));
    text.push_str(&format!("\n[cut after {} bytes]", text.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(bound("abc".to_owned(), 3), "abc");
        assert_eq!(bound("aöö".to_owned(), 4), "aö\n[cut after 3 bytes]");
    }
}
