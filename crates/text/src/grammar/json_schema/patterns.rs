//! Finds unenforceable constructs in regular expressions. Does not parse the rest of their syntax.

use serde_json::{Map, Value};

use crate::grammar::GrammarError;

/// Checks the patterns of one schema, those for the names of properties included.
///
/// # Errors
/// [`GrammarError::Unsupported`] with the keyword and `path`.
pub(super) fn check(schema: &Map<String, Value>, path: &str) -> Result<(), GrammarError> {
    let own = schema.get("pattern").and_then(Value::as_str).map(|pattern| ("pattern", pattern));
    let names = schema.get("patternProperties").and_then(Value::as_object);
    let names = names.into_iter().flatten().map(|(pattern, _)| ("patternProperties", pattern.as_str()));
    for (keyword, pattern) in own.into_iter().chain(names) {
        if let Some(part) = unsupported(pattern) {
            let reason = format!("{part} in the keyword '{keyword}' at '{path}' is not supported");
            return Err(GrammarError::Unsupported(reason));
        }
    }
    Ok(())
}

/// Finds a construct of ECMA-262 that is not regular.
fn unsupported(pattern: &str) -> Option<&'static str> {
    let (mut rest, mut in_class) = (pattern, false);
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => {
                let escaped = after.chars().next();
                let is_named = escaped == Some('k') && after[1..].starts_with('<');
                if !in_class && (escaped.is_some_and(|c| ('1'..='9').contains(&c)) || is_named) {
                    return Some("a back-reference");
                }
                escaped.map_or(after, |c| &after[c.len_utf8()..])
            }
            '[' => {
                in_class = true;
                after
            }
            ']' => {
                in_class = false;
                after
            }
            '(' if !in_class && ["?=", "?!", "?<=", "?<!"].iter().any(|begin| after.starts_with(begin)) => {
                return Some("look-around");
            }
            _ => after,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_around_and_back_references_are_found() {
        for pattern in [r"^(?=.*\d).{3,8}$", "(?!x)y", "(?<=a)b", "a|(?<!a)b", r"((?=a))", r"[\]](?=a)"] {
            assert_eq!(unsupported(pattern), Some("look-around"), "{pattern}");
        }
        for pattern in [r"(a)\1", r"(?<n>a)\k<n>"] {
            assert_eq!(unsupported(pattern), Some("a back-reference"), "{pattern}");
        }
        for pattern in [r"\(?=", "[(?=]", "(?:a)", "(?<n>a)", r"\d\\(a)", r"[\1]", "\\", "(", "é(?"] {
            assert_eq!(unsupported(pattern), None, "{pattern}");
        }
    }
}
