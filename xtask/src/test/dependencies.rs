//! What is checked about the dependencies: licences, sources, banned crates, advisories (`deny.toml`).
//! The nightly run installs cargo-deny if it is missing. Does not know the rules.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::{Extent, skipped};
use crate::shell::{cargo, exists, run, succeeds_within, workspace};

/// How long the database of advisories may take to be fetched.
const FETCH_LIMIT: Duration = Duration::from_secs(60);

/// Runs `cargo deny`, in the ordinary run only where it is already installed: building it takes minutes.
///
/// # Errors
/// When a dependency breaks a rule or has an advisory.
pub fn check(extent: Extent) -> Result<()> {
    let deny = match installed() {
        Some(deny) => deny,
        None if extent == Extent::Ordinary => {
            return skipped::note("cargo deny check: cargo-deny is not installed; --nightly installs it");
        }
        None => match install() {
            Ok(deny) => deny,
            Err(_) => {
                return skipped::note("cargo deny check: cargo-deny can neither be found nor installed");
            }
        },
    };
    run(&deny, &["check", "licenses", "bans", "sources"])?;
    if !succeeds_within(&deny, &["fetch", "db"], FETCH_LIMIT) {
        return skipped::note("cargo deny check advisories: the database of advisories cannot be reached");
    }
    run(&deny, &["--offline", "check", "advisories"])
}

/// The cargo-deny of the machine, or that of an earlier run.
fn installed() -> Option<PathBuf> {
    ["cargo-deny".into(), tools().join("bin/cargo-deny")].into_iter().find(|deny| exists(deny))
}

/// Builds a cargo-deny into `target/tools`.
fn install() -> Result<PathBuf> {
    println!("installing cargo-deny into target/tools: it is built once, which takes a minute or more");
    let tools = tools();
    // Unoptimized: it runs for seconds, and is built for minutes.
    let root: &str = &tools.to_string_lossy();
    cargo(&["install", "--quiet", "--debug", "cargo-deny", "--locked", "--root", root])?;
    Ok(tools.join("bin/cargo-deny"))
}

fn tools() -> PathBuf {
    workspace().join("target/tools")
}
