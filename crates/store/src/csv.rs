//! Comma-separated values as in RFC 4180.

use std::borrow::Cow;

/// A field, quoted if necessary. Text that a spreadsheet would treat as a formula is prefixed with an
/// apostrophe, because users choose their own names.
pub fn csv_field(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if !is_formula && !text.contains([',', '"', '\n', '\r']) {
        return Cow::Borrowed(text);
    }
    let guard = if is_formula { "'" } else { "" };
    Cow::Owned(format!("\"{guard}{}\"", text.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_need_to_be() {
        assert_eq!(csv_field("key_1"), "key_1");
        assert_eq!(csv_field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(csv_field("=1+1"), "\"'=1+1\"");
    }
}
