//! Everything a change must pass, in the order in which it fails soonest.

use anyhow::Result;

use crate::shell::{cargo, exists};
use crate::tidy;

/// Runs all of it and fails at the first failure.
pub fn run() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    tidy::run()?;
    licences()?;
    cargo(&["test", "--workspace"])
}

/// `cargo deny` where it is installed: building it takes longer than all the tests.
fn licences() -> Result<()> {
    if !exists("cargo-deny") {
        println!("skipped: cargo deny check (install it with: cargo install cargo-deny)");
        return Ok(());
    }
    cargo(&["deny", "check", "licenses", "bans", "sources"])
}
