//! The project's own chores: `cargo xtask test` runs everything a change must pass.

use std::process::Command;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("test") => test(),
        other => bail!("usage: cargo xtask test (not {other:?})"),
    }
}

fn test() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    cargo(&["test", "--workspace"])
}

fn cargo(arguments: &[&str]) -> Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO")).args(arguments).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {} failed", arguments[0]);
    }
    Ok(())
}
