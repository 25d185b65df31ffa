//! Prose in doc comments: lines of at most 110 columns, and no fragments that continue the item's name. Looks
//! at `//!` and `///` only; plain comments and documents are not checked.

use super::{Finding, SourceFile};

/// Most columns of a line of prose, as `rustfmt.toml` says for code.
const MAX_COLUMNS: usize = 110;
/// First words of doc comments that continue the item's name instead of saying what it is.
const FRAGMENTS: &[&str] =
    &["Of", "As", "They", "It", "Who", "Those", "These", "So", "Then", "And", "Or", "But"];

/// Folders with longer lines. The list may only shrink.
const LONG_LINES_IN: &[&str] = &[];
/// Folders with fragments. The list may only shrink.
const FRAGMENTS_IN: &[&str] = &[];

/// This file, where exceptions are listed.
const HERE: &str = "xtask/src/tidy/prose.rs";

/// Finds long lines and fragments, and exceptions that are no longer needed.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (rule, exceptions) in [(long_lines as Rule, LONG_LINES_IN), (fragments, FRAGMENTS_IN)] {
        let mut is_needed = vec![false; exceptions.len()];
        for file in files {
            let found = rule(&file.text).into_iter();
            let mut found = found.map(|(line, rule)| Finding::new(format!("{}:{line}", file.path), rule));
            match exceptions.iter().position(|folder| file.path.starts_with(folder)) {
                Some(idx) => is_needed[idx] |= found.next().is_some(),
                None => findings.extend(found),
            }
        }
        let unneeded = exceptions.iter().zip(is_needed).filter(|(_, is_needed)| !is_needed);
        findings.extend(
            unneeded.map(|(folder, _)| Finding::new(HERE, format!("{folder} needs no exception any more"))),
        );
    }
    findings
}

type Rule = fn(&str) -> Vec<(usize, String)>;

/// The text of a line of a doc comment; none for other lines.
fn prose(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}

/// Lines with their numbers that are too long, except for code, tables and single words.
fn long_lines(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (idx, line) in text.lines().enumerate() {
        let Some(prose) = prose(line) else {
            is_code = false;
            continue;
        };
        is_code ^= prose.starts_with("```");
        let is_prose =
            !is_code && !prose.starts_with("    ") && !prose.starts_with('|') && prose.contains(' ');
        let n_columns = line.chars().count();
        if is_prose && n_columns > MAX_COLUMNS {
            found.push((idx + 1, format!("a comment of {n_columns} columns, at most {MAX_COLUMNS}")));
        }
    }
    found
}

/// First lines of doc comments of items that begin as fragments.
fn fragments(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_first) = (Vec::new(), true);
    for (idx, line) in text.lines().enumerate() {
        let Some(doc) = line.trim_start().strip_prefix("///") else {
            is_first = true;
            continue;
        };
        let word =
            doc.trim_start().split(|c: char| !c.is_alphanumeric() && c != '…').next().unwrap_or_default();
        if is_first && (FRAGMENTS.contains(&word) || word.starts_with('…')) {
            found.push((idx + 1, format!("\"{word} …\": begin with a noun or a verb in the third person")));
        }
        is_first = false;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_measured_and_code_is_not() {
        let long = "word ".repeat(30);
        let found = |text: String| long_lines(&text).len();
        assert_eq!(found(format!("//! {long}\n    /// {long}\n/// short")), 2);
        assert_eq!(
            found(format!("/// ```\n/// {long}\n/// ```\n// {long}\n///     {long}\n/// | {long}")),
            0
        );
        assert_eq!(found(format!("/// <https://{}>", "a".repeat(120))), 0);
    }

    #[test]
    fn only_first_lines_of_doc_comments_begin_sentences() {
        let texts = ["/// Of a layer.\nfn f() {}", "    /// … and its region.", "/// They must."];
        assert!(texts.iter().all(|text| fragments(text).len() == 1));
        assert!(fragments("/// Gain of a norm.\n/// It has one entry a column.\n//! Of modules.").is_empty());
        assert!(fragments("/// Order of tokens.\n/// Item of a list.").is_empty());
    }
}
