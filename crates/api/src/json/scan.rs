//! The first check of a request body: syntax, nesting, and sizes of numbers. Afterwards readers may rely on
//! valid UTF-8, valid syntax, bounded depth, numbers that fit a double and strings that decode. Knows no
//! parameters except those that contain schemas.

use serde_json::value::RawValue;

use super::place::path_at;
use crate::error::ApiError;

/// Maximum nesting of arrays and objects in a body.
pub const MAX_DEPTH: usize = 64;

/// Maximum nesting inside of [`SCHEMAS`]. The scan does not recurse; the readers of schemas refuse a
/// nesting beyond [`super::MAX_TREE_DEPTH`].
const MAX_SCHEMA_DEPTH: usize = 10_000;

/// Members of a body that contain JSON schemas. If one is nested too deeply, its reader reports an error
/// that names the parameter.
const SCHEMAS: &[&str] =
    &["response_format", "structured_outputs", "guided_json", "json_schema", "structural_tag", "tools"];

/// Maximum characters of a number: a double in full precision has at most 25.
pub const MAX_NUMBER_CHARS: usize = 64;

/// Checks the whole body and returns the value in it.
///
/// # Errors
/// `invalid_utf8`; or, with line and column, `json_too_deep`, `invalid_unicode`, `number_too_long`,
/// `invalid_json`.
pub fn check(body: &[u8]) -> Result<&RawValue, ApiError> {
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(ApiError::invalid_json("unexpected byte order mark", 1, 1));
    }
    let text = std::str::from_utf8(body).map_err(|e| ApiError::invalid_utf8(e.valid_up_to()))?;
    Scanner { text, at: 0, depth: 0, member: "" }.run()?;
    serde_json::from_str(text).map_err(|error| {
        let sentence = error.to_string();
        let reason = sentence.split(" at line ").next().unwrap_or("syntax error");
        ApiError::invalid_json(reason, error.line().max(1), error.column().max(1))
    })
}

/// Finds faults that serde_json does not check in values that are skipped: depth, long or infinite numbers,
/// lone surrogates. Only distinguishes strings and numbers from the rest; serde_json checks the syntax.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// The last string directly in the body: inside of a nested value, the key of that value in the body.
    member: &'a str,
}

impl<'a> Scanner<'a> {
    fn run(mut self) -> Result<(), ApiError> {
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            self.at += 1;
            match byte {
                b'"' => self.string()?,
                b'[' | b'{' => self.nest()?,
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b'-' | b'0'..=b'9' => self.number()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn nest(&mut self) -> Result<(), ApiError> {
        self.depth += 1;
        let is_too_deep =
            self.depth > MAX_DEPTH && (self.depth > MAX_SCHEMA_DEPTH || !SCHEMAS.contains(&self.member));
        if is_too_deep {
            let (line, column) = self.place(self.at - 1);
            return Err(ApiError::json_too_deep(MAX_DEPTH, line, column));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), ApiError> {
        let start = self.at;
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            self.at += 1;
            match byte {
                b'"' => {
                    if self.depth == 1 {
                        self.member = &self.text[start..self.at - 1];
                    }
                    return Ok(());
                }
                b'\\' => self.escape()?,
                _ => {}
            }
        }
        Ok(()) // unterminated: the parser says so with a better sentence
    }

    fn escape(&mut self) -> Result<(), ApiError> {
        let start = self.at - 1;
        if self.text.as_bytes().get(self.at) != Some(&b'u') {
            self.at += 1;
            return Ok(());
        }
        let Some(unit) = self.hex(start) else { return Ok(()) };
        self.at = start + 6;
        match unit {
            0xdc00..=0xdfff => Err(self.lone_surrogate(start)),
            0xd800..=0xdbff => {
                let low = self.hex(self.at);
                self.at += 6;
                match low {
                    Some(0xdc00..=0xdfff) => Ok(()),
                    _ => Err(self.lone_surrogate(start)),
                }
            }
            _ => Ok(()),
        }
    }

    /// The code unit of the `\uXXXX` escape at `start`, if there is one.
    fn hex(&self, start: usize) -> Option<u32> {
        let escape = self.text.as_bytes().get(start..start + 6)?;
        if !escape.starts_with(b"\\u") || !escape[2..].iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digits = std::str::from_utf8(&escape[2..]).ok()?;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Result<(), ApiError> {
        let start = self.at - 1;
        let rest = &self.text.as_bytes()[start..];
        let is_part = |b: &&u8| matches!(**b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let n_chars = rest.iter().take(MAX_NUMBER_CHARS + 1).take_while(is_part).count();
        if n_chars > MAX_NUMBER_CHARS {
            let (line, column) = self.place(start);
            return Err(self.blame(ApiError::number_too_long(MAX_NUMBER_CHARS, line, column), start));
        }
        self.at = start + n_chars;
        let digits = std::str::from_utf8(&rest[..n_chars]).unwrap_or_default();
        match digits.parse::<f64>() {
            Ok(value) if !value.is_finite() => {
                let (line, column) = self.place(start);
                Err(self.blame(ApiError::invalid_json("number out of range", line, column), start))
            }
            _ => Ok(()),
        }
    }

    fn lone_surrogate(&self, offset: usize) -> ApiError {
        let (line, column) = self.place(offset);
        self.blame(ApiError::invalid_unicode(line, column), offset)
    }

    /// Adds the path of the value at `offset` to the error.
    fn blame(&self, error: ApiError, offset: usize) -> ApiError {
        let path = path_at(self.text, offset);
        if path.is_empty() { error } else { error.with_param(path) }
    }

    /// Line and column of a byte, both counted from 1.
    fn place(&self, offset: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|b| **b != b'\n').count();
        (line, column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(body: &[u8], code: &str, part: &str) {
        refused_at(None, body, code, part);
    }

    #[track_caller]
    fn refused_at(param: Option<&str>, body: &[u8], code: &str, part: &str) {
        let error = check(body).expect_err("must be refused");
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(part), "{error}");
        assert_eq!(error.param(), param);
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        refused(b"", "invalid_json", "line 1 column 1");
        refused(b"{\"a\":1,}", "invalid_json", "line 1 column 8");
        refused(b"{\n 'a': 1}", "invalid_json", "line 2 column 2");
        refused(b"{} x", "invalid_json", "trailing characters at line 1 column 4");
        refused(b"{/**/}", "invalid_json", "line 1 column 2");
        refused(b"\xef\xbb\xbf{}", "invalid_json", "byte order mark");
        refused(b"{\"x\":\"\xff\"}", "invalid_utf8", "byte 6");
        refused(br#"{"x":NaN}"#, "invalid_json", "column");
        refused_at(Some("x"), b"{\"x\":\n1e400}", "invalid_json", "number out of range at line 2 column 1");
        refused_at(
            Some("x"),
            format!("{{\"x\":{}}}", "1".repeat(65)).as_bytes(),
            "number_too_long",
            "column 6",
        );
        refused_at(Some("x"), br#"{"x":"\ud800"}"#, "invalid_unicode", "lone surrogate");
        refused_at(Some("x"), br#"{"x":"\ud800\u0041"}"#, "invalid_unicode", "lone surrogate");
        refused_at(Some("x"), br#"{"x":"\udc00"}"#, "invalid_unicode", "line 1 column 7");
    }

    /// A body with an array of `depth` levels under `key`.
    fn nested(key: &str, depth: usize) -> String {
        format!("{{\"{key}\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    }

    #[test]
    fn depth_is_bounded_and_in_schemas_their_readers_business() {
        refused("[".repeat(100_000).as_bytes(), "json_too_deep", "line 1 column 65");
        refused(nested("x", MAX_DEPTH + 1).as_bytes(), "json_too_deep", "more than 64 levels");
        refused(nested("tools", MAX_SCHEMA_DEPTH + 1).as_bytes(), "json_too_deep", "levels");
        let after =
            format!(r#"{{"tools":[["x"]],"response_format":{{"a":"tools"}},{}"#, &nested("x", 65)[1..]);
        refused(after.as_bytes(), "json_too_deep", "levels");
        for body in [nested("x", MAX_DEPTH), nested("tools", 1000), nested("response_format", 1000)] {
            check(body.as_bytes()).expect("deep enough for none to refuse");
        }
    }

    #[test]
    fn what_is_json_is_accepted() {
        for body in [
            r#" {"x":"\ud83d\ude00\u0000\\\""} "#,
            r#"{"x":[1.0,-1e-400,0.1e+3,"1e400 [[[ \\"]}"#,
            &format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)),
            &"1".repeat(MAX_NUMBER_CHARS),
        ] {
            assert_eq!(check(body.as_bytes()).expect("valid").get(), body.trim());
        }
    }
}
