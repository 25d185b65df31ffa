//! Runs other programs: prints their command lines and fails when they fail. Does not know why they run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies inside the workspace").to_path_buf()
}

/// Runs a program in the workspace and fails when it does.
pub fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Result<()> {
    let program = program.as_ref();
    let line: Vec<_> = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect();
    println!("$ {} {}", program.to_string_lossy(), line.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .current_dir(workspace())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
    if !status.success() {
        bail!("{} {} failed ({status})", program.to_string_lossy(), line.join(" "));
    }
    Ok(())
}

/// Runs cargo itself in the workspace.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(env!("CARGO"), arguments)
}

/// Whether a program of that name can be started (with `--version`).
pub fn exists(program: &str) -> bool {
    let answer = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}
