//! Lark texts: checks clients' grammars before llguidance reads them, and writes other kinds of constraints
//! as Lark. Does not compile Lark.

use llguidance::regex_to_lark;
use serde_json::Value;

use super::json_schema::MAX_TEXT_BYTES;
use super::{GrammarError, lark_terminals};

pub(super) use super::lark_terminals::with_schemas;

/// Maximum nesting of brackets in a client's grammar or regular expression: llguidance recurses over it.
const MAX_BRACKETS: usize = 64;
/// Maximum number of lines of a client's grammar: rules may refer to each other in a chain, over which
/// llguidance recurses.
const MAX_LINES: usize = 1000;
/// Maximum number of texts of a choice.
const MAX_CHOICES: usize = 2000;

/// Checks a client's grammar.
///
/// # Errors
/// [`GrammarError::Invalid`] if it is empty, [`GrammarError::TooComplex`].
pub(super) fn check(grammar: &str) -> Result<(), GrammarError> {
    if grammar.trim().is_empty() {
        return Err(GrammarError::Invalid("the grammar is empty".to_owned()));
    }
    if grammar.lines().count() > MAX_LINES {
        return Err(GrammarError::TooComplex(format!("more than {MAX_LINES} lines")));
    }
    // A string or an expression cannot span lines.
    if grammar.lines().any(|line| line.len() > MAX_TEXT_BYTES) {
        return Err(GrammarError::TooComplex(format!("a line of more than {MAX_TEXT_BYTES} bytes")));
    }
    check_brackets(grammar)?;
    lark_terminals::check(grammar)
}

/// Checks the nesting of brackets. Those inside of strings and classes count too: this only bounds
/// recursion.
pub(super) fn check_brackets(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0_usize;
    let mut is_escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACKETS {
            return Err(GrammarError::TooComplex(format!("brackets more than {MAX_BRACKETS} deep")));
        }
    }
    Ok(())
}

/// A text as a Lark string: JSON's syntax, with an escape for the control character DEL too.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The grammar of all texts that a regular expression matches as a whole.
///
/// # Errors
/// [`GrammarError::TooComplex`] beyond the limit on nesting, [`GrammarError::Invalid`] for a `\\` at the
/// end; other faults of the expression are found when the grammar is compiled.
pub(super) fn of_regex(regex: &str) -> Result<String, GrammarError> {
    check_brackets(regex)?;
    let mut body = regex.strip_prefix('^').unwrap_or(regex);
    if let Some(rest) = body.strip_suffix('$').filter(|rest| !ends_in_escape(rest)) {
        body = rest;
    }
    if ends_in_escape(body) {
        return Err(GrammarError::Invalid("the regular expression ends within an escape".to_owned()));
    }
    // Digits and word characters are ASCII's, as in the patterns of JSON schemas and in other servers: who
    // asks for digits does not expect those of all scripts.
    let body = regex_to_lark(body, "dw");
    // `//` would start a comment.
    Ok(if body.is_empty() { "start: \"\"".to_owned() } else { format!("start: /{body}/") })
}

/// Whether a backslash at the end would escape the next character.
pub(super) fn ends_in_escape(regex: &str) -> bool {
    regex.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// The grammar of a list of texts.
///
/// # Errors
/// [`GrammarError::Unsatisfiable`] without any, [`GrammarError::TooComplex`] with too many.
pub(super) fn of_choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError::Unsatisfiable("there is nothing to choose from".to_owned()));
    }
    if choices.len() > MAX_CHOICES {
        return Err(GrammarError::TooComplex(format!("more than {MAX_CHOICES} choices")));
    }
    if choices.iter().any(|text| text.len() > MAX_TEXT_BYTES) {
        return Err(GrammarError::TooComplex(format!("a choice of more than {MAX_TEXT_BYTES} bytes")));
    }
    let list = choices.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | ");
    Ok(format!("start: CHOICE\nCHOICE: {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_around_a_whole_expression_go() {
        for (regex, lark) in [
            ("a|b", "start: /a|b/"),
            ("^a/b$", "start: /a\\/b/"),
            (r"a\$", r"start: /a\$/"),
            (r"a\\$", r"start: /a\\/"),
            (r"\d[\D]\s\\d", r"start: /[0-9][[^0-9]]\s\\d/"),
            ("$", "start: \"\""),
            ("", "start: \"\""),
            ("^", "start: \"\""),
        ] {
            assert_eq!(of_regex(regex).expect("shallow"), lark, "{regex}");
        }
    }

    #[test]
    fn texts_are_quoted_as_lark_reads_them() {
        assert_eq!(quoted("a\"\\\n\u{1}\u{7f}é"), "\"a\\\"\\\\\\n\\u0001\\u007fé\"");
    }
}
