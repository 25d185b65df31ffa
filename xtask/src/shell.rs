//! Runs other programs: prints their command lines, says when they take long, and fails when they fail. Does
//! not know why they run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a program that runs is said to be running.
const PROGRESS: Duration = Duration::from_secs(30);
/// Interval of checks whether a program with a time limit has ended.
const POLL: Duration = Duration::from_millis(100);

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies inside the workspace").to_path_buf()
}

/// Runs a program in the workspace and fails when it does.
pub fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Result<()> {
    run_with(program, arguments, &[])
}

/// The same with variables of the environment.
pub fn run_with<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    variables: &[(&str, PathBuf)],
) -> Result<()> {
    let program = program.as_ref();
    let line: Vec<_> = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect();
    let line = format!("{} {}", program.to_string_lossy(), line.join(" "));
    println!("$ {line}");
    let mut child = Command::new(program)
        .args(arguments)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(workspace())
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
    let status = waiting(&line, || child.wait())?;
    if !status.success() {
        bail!("{line} failed ({status})");
    }
    Ok(())
}

/// Returns what `wait` does; until then a line every [`PROGRESS`] says that `what` still runs.
pub fn waiting<T>(what: &str, wait: impl FnOnce() -> T) -> T {
    let (begun, (end, ended)) = (Instant::now(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
                println!("  [{} s] {what}", begun.elapsed().as_secs());
            }
        });
        let result = wait();
        drop(end);
        result
    })
}

/// Runs a program in the workspace without its output; whether it succeeded within `limit`, after which it is
/// killed.
pub fn succeeds_within(program: &Path, arguments: &[&str], limit: Duration) -> bool {
    let (quiet, begun) = (Stdio::null, Instant::now());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace()).stdin(quiet()).stdout(quiet()).stderr(quiet());
    let Ok(mut child) = command.spawn() else { return false };
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(POLL),
            Ok(Some(status)) => return status.success(),
            _ => {
                let _ = child.kill().and_then(|()| child.wait());
                return false;
            }
        }
    }
}

/// What a program prints to standard output.
///
/// # Errors
/// When it cannot be started or fails; its messages are shown.
pub fn output_of(program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<Vec<u8>> {
    let program = program.as_ref();
    let named = || format!("{} {}", program.to_string_lossy(), arguments.join(" "));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(named)?;
    if !output.status.success() {
        bail!("{} failed ({})", named(), output.status);
    }
    Ok(output.stdout)
}

/// Runs cargo itself in the workspace.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(env!("CARGO"), arguments)
}

/// Whether a program of that name can be started (with `--version`).
pub fn exists(program: impl AsRef<OsStr>) -> bool {
    let answer = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}
