//! What the tests could not check on this machine, gathered while they run and printed in the last lines.
//! Does not know why something is skipped.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell::workspace;

/// Variable with the path of the file in which tests write a line for each skipped check.
pub const VARIABLE: &str = "THRONG_SKIPPED_TESTS";

/// File in which tests write the checks that they skip.
pub fn file() -> PathBuf {
    workspace().join("target/skipped-tests.txt")
}

/// Deletes the skipped checks of an earlier run.
///
/// # Errors
/// When the file cannot be written.
pub fn forget() -> Result<()> {
    std::fs::create_dir_all(workspace().join("target"))?;
    std::fs::write(file(), "").context("cannot write target/skipped-tests.txt")
}

/// Notes that something is skipped.
///
/// # Errors
/// When the file cannot be written.
pub fn note(what: &str) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file())?;
    Ok(writeln!(file, "{what}")?)
}

/// Prints the skipped checks, each once.
pub fn print() {
    let notes = std::fs::read_to_string(file()).unwrap_or_default();
    let notes: BTreeSet<&str> = notes.lines().filter(|line| !line.is_empty()).collect();
    if notes.is_empty() {
        println!("Nothing was skipped.");
        return;
    }
    println!("Skipped:");
    notes.iter().for_each(|note| println!("  {note}"));
}
