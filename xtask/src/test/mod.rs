//! Runs everything a change must pass, the fastest checks first.

mod clients;
mod machine;

use anyhow::Result;

pub use machine::python;

use crate::shell::{cargo, exists};
use crate::tidy;

/// The part of the tests to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    All,
    /// The tests that need only a Rust toolchain and a C compiler.
    Rust,
    /// The official client libraries and a browser against the real binary.
    EndToEnd,
}

/// Runs that part and fails at the first failure.
pub fn run(part: Part) -> Result<()> {
    if part != Part::EndToEnd {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        tidy::run()?;
        licences()?;
        cargo(&["test", "--workspace"])?;
    }
    if part != Part::Rust {
        clients::run()?;
    }
    Ok(())
}

/// Runs `cargo deny` if it is installed: building it takes longer than all the tests.
fn licences() -> Result<()> {
    if !exists("cargo-deny") {
        println!("skipped: cargo deny check (install it with: cargo install cargo-deny)");
        return Ok(());
    }
    cargo(&["deny", "check", "licenses", "bans", "sources"])
}
