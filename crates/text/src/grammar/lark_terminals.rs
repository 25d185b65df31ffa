//! Counts the expressions in the intersections (`&`) of a Lark grammar, including those in terminals that
//! they name, and checks the JSON schemas within the grammar. Parses only as much syntax as necessary, like
//! llguidance's lexer; llguidance refuses what cannot be parsed here.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::GrammarError;
use super::intersection::Operands;
use super::json_schema::{self, Numbers};
use crate::exact_number;

/// Parts of a rule or terminal.
#[derive(Debug, Default)]
struct Definition<'g> {
    /// Number of `&`.
    n_ands: usize,
    /// Bytes of strings and expressions.
    n_bytes: usize,
    /// Names that the definition refers to.
    names: Vec<&'g str>,
}

/// Checks all intersections of a grammar.
///
/// # Errors
/// [`GrammarError::TooComplex`].
pub(super) fn check(grammar: &str) -> Result<(), GrammarError> {
    if !grammar.contains('&') {
        return Ok(());
    }
    let definitions = read(grammar);
    let mut totals = HashMap::new();
    for (name, definition) in &definitions {
        if definition.n_ands > 0 {
            total(name, &definitions, &mut totals).check()?;
        }
    }
    Ok(())
}

/// Number and bytes of the operands of a definition's intersections, counted as if the definition and all
/// definitions that it names were one intersection.
fn total<'g>(
    name: &'g str,
    definitions: &HashMap<&'g str, Definition<'g>>,
    totals: &mut HashMap<&'g str, Operands>,
) -> Operands {
    if let Some(known) = totals.get(name) {
        return *known;
    }
    // A name that refers to itself adds nothing.
    totals.insert(name, Operands { n: 1, n_bytes: 0 });
    let Some(definition) = definitions.get(name) else { return Operands { n: 1, n_bytes: 0 } };
    let mut sum = Operands { n: 1 + definition.n_ands, n_bytes: definition.n_bytes };
    for name in &definition.names {
        let named = total(name, definitions, totals);
        sum = sum.and(Operands { n: named.n - 1, n_bytes: named.n_bytes });
    }
    totals.insert(name, sum);
    sum
}

fn read(grammar: &str) -> HashMap<&str, Definition<'_>> {
    let mut definitions: HashMap<&str, Definition<'_>> = HashMap::new();
    let (mut current, mut rest, mut is_line_start) = ("", grammar, true);
    while let Some(first) = rest.bytes().next() {
        let n_bytes = token_bytes(rest);
        let (token, after) = rest.split_at(n_bytes);
        rest = after;
        if is_line_start && is_name(first) && is_definition(after) {
            current = token.trim_start_matches(['!', '?']);
        }
        let definition = definitions.entry(current).or_default();
        match first {
            b'&' => definition.n_ands += 1,
            b'"' | b'/' if n_bytes > 1 => definition.n_bytes += n_bytes,
            b'%' => rest = json(token, after).map_or(after, |(_, rest)| rest),
            _ if is_name(first) => definition.names.push(token.trim_start_matches(['!', '?'])),
            _ => {}
        }
        is_line_start = first == b'\n' || (is_line_start && matches!(first, b' ' | b'\t' | b'\r' | b'#'));
    }
    definitions
}

fn is_name(first: u8) -> bool {
    first.is_ascii_alphabetic() || matches!(first, b'_' | b'!' | b'?')
}

/// Whether a name is defined here: a colon follows on its line, before anything that only occurs in
/// expressions.
fn is_definition(after: &str) -> bool {
    after.find([':', '\n', '"', '/', '|', '&']).is_some_and(|at| after[at..].starts_with(':'))
}

/// Length in bytes of the token at the start of a non-empty text.
fn token_bytes(text: &str) -> usize {
    let until = |end: fn(char) -> bool| text.find(end).unwrap_or(text.len());
    match text.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => until(|c| c == '\n'),
        [quote @ (b'"' | b'/'), ..] => literal_bytes(text.as_bytes(), *quote),
        [b'<', ..] => {
            let end = text[1..].find(|c: char| matches!(c, '<' | '>') || c.is_whitespace());
            end.filter(|at| *at > 0 && text[1 + at..].starts_with('>')).map_or(1, |at| at + 2)
        }
        [b'%', ..] => 1 + text[1..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len() - 1),
        [first, ..] if is_name(*first) => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            1 + text[1..].find(|c| !is_part(c)).unwrap_or(text.len() - 1)
        }
        _ => text.chars().next().map_or(1, char::len_utf8),
    }
}

/// Length in bytes of a string or an expression with its delimiters, or 1 if it does not end.
fn literal_bytes(text: &[u8], delimiter: u8) -> usize {
    let mut is_escaped = false;
    for (idx, byte) in text.iter().enumerate().skip(1) {
        match *byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'\n' if delimiter == b'"' => return 1,
            byte if byte == delimiter => return idx + 1,
            _ => {}
        }
    }
    1
}

/// The JSON value after a directive that has one, and the rest. Compiling refuses values that do not parse.
fn json<'g>(directive: &str, after: &'g str) -> Option<(&'g str, &'g str)> {
    if !matches!(directive, "%json" | "%regex" | "%llguidance") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(after).into_iter::<&RawValue>();
    values.next()?.ok()?;
    Some(after.split_at(values.byte_offset()))
}

/// The grammar with its schemas checked and prepared for compilation.
///
/// # Errors
/// The errors of [`json_schema::checked`].
pub(super) fn with_schemas(grammar: &str, numbers: &mut Numbers) -> Result<String, GrammarError> {
    let (mut written, mut rest) = (String::with_capacity(grammar.len()), grammar);
    while !rest.is_empty() {
        let (token, after) = rest.split_at(token_bytes(rest));
        written.push_str(token);
        rest = after;
        let Some((value, after)) = json(token, after).filter(|_| token == "%json") else { continue };
        let Ok(schema) = exact_number::parse(value) else { continue };
        let lowered = numbers.lower(json_schema::checked(&schema)?)?;
        written.push_str(&format!(" {lowered}"));
        rest = after;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(grammar: &str) -> bool {
        matches!(check(grammar), Err(GrammarError::TooComplex(_)))
    }

    #[test]
    fn expressions_of_an_intersection_are_counted() {
        let ands = |n: usize| (0..n).map(|idx| format!("/a{idx}.*/")).collect::<Vec<_>>().join(" & ");
        for (grammar, expected) in [
            (format!("start: X\nX: {}", ands(3)), false),
            (format!("start: X\nX: {}", ands(4)), true),
            (format!("start: X\nX: {} // & & &", ands(3)), false),
            (format!("start: X # & & &\nX: {}", ands(3)), false),
            (format!("start: {}", ands(4)), true),
            ("start: X\nX: /a&b&c&d/ & \"&&&\\\"&\" & /\\/&\\\\&/".to_owned(), false),
            ("start: <|a&b&c&d|> X\nX: /a/ & /b/ & /c/".to_owned(), false),
            ("start: X\nX: Y & Z\nY: /a/ & /b/\nZ: /c/ & /d/".to_owned(), true),
            ("start: X\nX: Y & Z\nY: /a/ & /b/\nZ: W\nW.2[lazy]: /c/ & /d/".to_owned(), true),
            ("start: X Y Z\nX: /a/ & /b/\nY: /a/ & /b/ & /c/\nZ: /c/ & /d/".to_owned(), false),
            ("start: X\nX: /a/\n | /b/ & /c/\n | /d/ & /e/\n | /f/ & /g/".to_owned(), true),
            ("start: X\nX: X & X".to_owned(), false),
        ] {
            assert_eq!(is_refused(&grammar), expected, "{grammar}");
        }
    }

    #[test]
    fn schemas_in_a_grammar_are_checked() {
        let is_refused = |grammar: &str| {
            let lowered = with_schemas(grammar, &mut Numbers::default());
            matches!(lowered, Err(GrammarError::TooComplex(_)))
        };
        let schema = |n: usize| {
            let all: Vec<_> = (0..n).map(|idx| serde_json::json!({"pattern": format!("a&{idx}")})).collect();
            format!("start: %json {{\"type\": \"string\", \"allOf\": {}}} X\nX: /a/", serde_json::json!(all))
        };
        assert!(!is_refused(&schema(3)));
        assert!(is_refused(&schema(4)));
        assert!(!is_refused("start: %regex {\"substring_chars\": \"a & b & c & d & e\"}"));
    }

    #[test]
    fn any_text_is_read_to_its_end() {
        for text in
            ["&", "\"&", "/&", "<&", "%json{&", "X", "!", "é & é & é & é", "%", "\\\"&", "a:&\n?b:&&&"]
        {
            let _ = check(text);
        }
        assert!(is_refused("é & é & é & é"));
    }
}
