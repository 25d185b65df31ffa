//! Finds the path of a byte in a body, like `messages[2].content`. Does not check that the body is valid
//! JSON.

use crate::error::echo;

/// Maximum bytes of a path in an error.
const MAX_PATH_BYTES: usize = 256;

/// An object or array that contains the byte.
enum Open<'a> {
    /// An array, at the element with this index.
    Array(usize),
    /// An object, at the value of this key; `None` inside of the key.
    Object(Option<&'a str>),
}

/// The path of the value that contains the byte at `offset`; for a byte of a key, that of the object. Empty
/// for the body itself.
pub(super) fn path_at(text: &str, offset: usize) -> String {
    let mut open: Vec<Open<'_>> = Vec::new();
    let (bytes, mut at, mut is_key) = (text.as_bytes(), 0, false);
    while at < offset.min(bytes.len()) {
        match bytes[at] {
            b'{' => {
                open.push(Open::Object(None));
                is_key = true;
            }
            b'[' => {
                open.push(Open::Array(0));
                is_key = false;
            }
            b'}' | b']' => drop(open.pop()),
            b',' => match open.last_mut() {
                Some(Open::Array(index)) => *index += 1,
                Some(Open::Object(key)) => {
                    *key = None;
                    is_key = true;
                }
                None => {}
            },
            b'"' => {
                let end = end_of_string(bytes, at + 1);
                if let (true, Some(Open::Object(key)), true) = (is_key, open.last_mut(), end < offset) {
                    *key = text.get(at + 1..end);
                    is_key = false;
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    written(&open)
}

/// The offset of the quote that closes the string whose text starts at `at`, or of the end of the body.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

fn written(open: &[Open<'_>]) -> String {
    let mut path = String::new();
    for step in open {
        let n_before = path.len();
        match step {
            Open::Array(index) => path.push_str(&format!("[{index}]")),
            Open::Object(Some(key)) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&echo(key));
            }
            Open::Object(None) => {}
        }
        if path.len() > MAX_PATH_BYTES {
            path.truncate(n_before);
            break;
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_paths_of_their_values() {
        let at = |text: &str| path_at(text, text.find('#').expect("a mark"));
        for (text, path) in [
            (r##"{"a":"#"}"##, "a"),
            (
                r##"{"x":[1,{"b":"]}"}],"messages":[{"content":"a"},{"role":"user","content":"x #"}]}"##,
                "messages[1].content",
            ),
            (r##"{"m":[{"c":[{"t":1},{"t":"\"\\","u":"#"}]}]}"##, "m[0].c[1].u"),
            (r##"{"a":{"b#":1}}"##, "a"),
            (r##"{"a":[[1,2],["x","#"]]}"##, "a[1][1]"),
            (r##""#""##, ""),
            (r##"{"a" "#"##, "a"),
            (r##"]]}},"#"##, ""),
        ] {
            assert_eq!(at(text), path, "{text}");
        }
        let deep = format!("{}\"#", r#"{"key":["#.repeat(5_000));
        assert!(at(&deep).len() <= MAX_PATH_BYTES);
    }
}
