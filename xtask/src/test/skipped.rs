//! What the tests could not check on this machine, gathered while they run and printed in the last lines.
//! Does not know why something is skipped.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell::workspace;

/// The variable that names the file in which tests note a line for what they skip.
pub const VARIABLE: &str = "THRONG_SKIPPED_TESTS";

/// The file in which tests note what they skip.
pub fn file() -> PathBuf {
    workspace().join("target/skipped-tests.txt")
}

/// Forgets what an earlier run skipped.
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

/// Prints what was skipped, each thing once.
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
