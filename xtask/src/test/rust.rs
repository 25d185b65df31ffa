//! Runs the Rust tests of the workspace: with cargo-nextest where it is installed, otherwise the test
//! programs themselves, several at once.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use super::{Extent, tests_at_once};
use crate::shell::{output_of, run_with, waiting};

/// The tests of all crates, without those in documentation. Python's tests run the binary that this builds.
const ALL: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];

/// A built test program.
struct Program {
    name: String,
    executable: PathBuf,
    /// The folder of its crate, in which cargo starts it.
    folder: PathBuf,
}

/// Builds and runs the tests. One run names every failure, not the first alone.
///
/// # Errors
/// When one of them fails.
pub fn run(extent: Extent) -> Result<()> {
    let variables: Vec<_> = extent.variables().collect();
    if has_nextest() {
        let n_threads = format!("--test-threads={}", tests_at_once());
        let line = [&["nextest", "run", "--no-fail-fast", &n_threads], &ALL[..]].concat();
        return run_with(env!("CARGO"), &line, &variables);
    }
    let programs = Mutex::new(VecDeque::from(build()?));
    let failed = Mutex::new(Vec::new());
    let n_workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                loop {
                    let next = programs.lock().expect("no panic").pop_front();
                    let Some(program) = next else { break };
                    if !program.passes(&variables).unwrap_or(false) {
                        failed.lock().expect("no panic").push(program.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Builds the binary and the test programs as [`run`] does, so that no dependency is compiled twice with
/// other features.
///
/// # Errors
/// When they do not compile.
pub fn build_only() -> Result<()> {
    crate::shell::cargo(&[&["test", "--no-run"], &ALL[..]].concat())
}

fn has_nextest() -> bool {
    let mut version = Command::new(env!("CARGO"));
    version.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Builds the test programs; those of integration tests, which run longest, come first.
fn build() -> Result<Vec<Program>> {
    let line = [&["test", "--no-run", "--message-format=json-render-diagnostics"], &ALL[..]].concat();
    let messages = output_of(env!("CARGO"), &line)?;
    let mut programs = Vec::new();
    for message in messages.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(message).context("a message of cargo")?;
        let (true, Some(executable)) =
            (message["profile"]["test"] == true, message["executable"].as_str().map(PathBuf::from))
        else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().context("no manifest")?;
        let folder = Path::new(manifest).parent().context("no folder")?.to_path_buf();
        let of_crate = folder.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{of_crate} {}", message["target"]["name"].as_str().unwrap_or_default());
        programs.push(Program { name, executable, folder });
    }
    programs.sort_by_key(|program| !program.name.ends_with(" integration"));
    Ok(programs)
}

impl Program {
    /// Runs it and prints its output, which would be mixed with others', when it has ended.
    fn passes(&self, variables: &[(&str, PathBuf)]) -> Result<bool> {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = waiting(&self.name, || command.output())?;
        let text = [output.stdout, output.stderr].concat();
        println!("$ {}\n{}", self.name, String::from_utf8_lossy(&text));
        Ok(output.status.success())
    }
}
