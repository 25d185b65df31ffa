//! Expressions that this project once had words of its own for, where the field has a plain one. Looks at
//! code, comments and documents alike; does not know grammar.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Finding, SourceFile};

/// Forbidden expressions with their replacements.
const WORDS: &[(&str, &str)] = &[
    ("refuses to know", "does not know"),
    ("asker", "caller, client or tenant"),
    ("lets through", "accepts, or the value's name"),
    ("first cache", "L1"),
    ("second cache", "L2"),
    ("off the workers", "on a blocking thread"),
    ("in any company", "whatever else is in the batch"),
    ("the door", "the extension point"),
];

/// This list itself.
const EXCEPT: &str = "xtask/src/tidy/wording.rs";

/// Finds such expressions in Rust files and in the documents.
pub fn check(root: &Path, files: &[SourceFile]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path != EXCEPT) {
        findings.extend(in_text(&file.path, &file.text));
    }
    for folder in ["", "docs"] {
        for entry in std::fs::read_dir(root.join(folder)).with_context(|| folder.to_owned())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let place = path.strip_prefix(root)?.to_string_lossy().into_owned();
                findings.extend(in_text(&place, &text));
            }
        }
    }
    Ok(findings)
}

/// An expression may be broken over two lines of a comment, or be part of a name.
fn in_text(place: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!', '#']));
    let text = lines.collect::<Vec<_>>().join(" ").to_lowercase().replace('_', " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_word = |neighbour: Option<char>| neighbour.is_none_or(|c| !c.is_alphanumeric());
    let holds = |expression: &str| {
        text.match_indices(expression).any(|(at, _)| {
            is_word(text[..at].chars().next_back()) && is_word(text[at + expression.len()..].chars().next())
        })
    };
    let found = WORDS.iter().filter(|(expression, _)| holds(expression));
    found.map(|(not, but)| Finding::new(place, format!("\"{not}\": write {but}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_found_over_lines_and_in_names() {
        let texts = ["//! Refuses\n//! to know X.", "fn off_the_workers() {}", "It lets   through."];
        assert!(texts.iter().all(|text| in_text("x.rs", text).len() == 1));
        assert!(in_text("x.rs", "tasker; the first, cached; L1").is_empty());
    }
}
