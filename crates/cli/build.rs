//! Tells the program the commit that it is built from: the environment's `THRONG_COMMIT`, else what git says. Outside of a
//! repository there is none.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=THRONG_COMMIT");
    // Git appends to it at each commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
    let given = std::env::var("THRONG_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])) {
        println!("cargo::rustc-env=THRONG_COMMIT={commit}");
    }
}

/// What a git command answers, without the line break; nothing where it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
