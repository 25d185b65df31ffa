//! What is checked about the dependencies: licences, sources, banned crates, advisories (`deny.toml`).
//! Installs cargo-deny if it is missing. Does not know the rules.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::skipped;
use crate::shell::{cargo, exists, run, succeeds_within, workspace};

/// How long the database of advisories may take to be fetched.
const FETCH_LIMIT: Duration = Duration::from_secs(60);

/// Runs `cargo deny`.
///
/// # Errors
/// When a dependency breaks a rule or has an advisory.
pub fn check() -> Result<()> {
    let Ok(deny) = cargo_deny() else {
        return skipped::note("cargo deny check: cargo-deny can neither be found nor installed");
    };
    run(&deny, &["check", "licenses", "bans", "sources"])?;
    if !succeeds_within(&deny, &["fetch", "db"], FETCH_LIMIT) {
        return skipped::note("cargo deny check advisories: the database of advisories cannot be reached");
    }
    run(&deny, &["--offline", "check", "advisories"])
}

/// The cargo-deny of the machine, or one that is built once into `target/tools`.
fn cargo_deny() -> Result<PathBuf> {
    if exists("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    let tools = workspace().join("target/tools");
    let deny = tools.join("bin/cargo-deny");
    if !exists(&deny) {
        println!("installing cargo-deny into target/tools: it is built once, which takes a minute or more");
        let tools = tools.to_string_lossy();
        // Unoptimized: it runs for seconds, and is built for minutes.
        cargo(&["install", "--quiet", "--debug", "cargo-deny", "--locked", "--root", &tools])?;
    }
    Ok(deny)
}
