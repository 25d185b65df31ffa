//! Files that some tests need and that are not part of the project: they lie in `../shared`, beside the
//! checkout. Does not know their content.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Variable with the path of the file in which `cargo xtask test` gathers skipped checks.
const SKIPPED: &str = "THRONG_SKIPPED_TESTS";

/// The file or folder `../shared/{name}`. If it is absent, prints a line, notes it for the end of
/// `cargo xtask test`, and returns `None`: the test is to be skipped.
///
/// # Panics
/// When it cannot be noted.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    note_skipped(&format!("tests that need ../shared/{name}, which is absent"));
    None
}

/// Prints that a test is skipped, and notes it for the end of `cargo xtask test`.
///
/// # Panics
/// When it cannot be noted.
pub fn note_skipped(what: &str) {
    println!("SKIPPED: {what}");
    if let Some(notes) = std::env::var_os(SKIPPED) {
        let mut notes = std::fs::OpenOptions::new().append(true).create(true).open(notes).expect("a file");
        writeln!(notes, "{what}").expect("room for a line");
    }
}
