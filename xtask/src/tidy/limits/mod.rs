//! Writes `docs/limits.md` from the constants and defaults in the source, so that the page cannot differ from
//! the code.
//!
//! `xtask/limits.txt` has the rows that say what happens past a limit; values are placeholders there. All
//! other constants whose names say that they bound something follow in a table for each crate, with the first
//! sentence of their doc comments.

mod constants;
mod page;
mod value;

use std::path::Path;

use anyhow::{Context, Result};

use super::{Finding, SourceFile};

/// The generated page.
pub const PAGE: &str = "docs/limits.md";
/// Rows of the page that are written by hand, without their values.
const ROWS: &str = "xtask/limits.txt";

/// Makes the page.
///
/// # Errors
/// When a placeholder names no constant, or one whose value is not a number.
pub fn page(root: &Path, files: &[SourceFile]) -> Result<String> {
    let rows = std::fs::read_to_string(root.join(ROWS)).context(ROWS)?;
    page::write(&rows, &constants::collect(files)).context(ROWS)
}

/// Finds out whether the page is that of the present source.
pub fn check(root: &Path, files: &[SourceFile]) -> Vec<Finding> {
    let written = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    match page(root, files) {
        Ok(page) if page == written => Vec::new(),
        Ok(_) => vec![Finding::new(PAGE, "differs from the source: run cargo xtask limits")],
        Err(error) => vec![Finding::new(ROWS, format!("{error:#}"))],
    }
}
