//! `throng handover --pid PID`: asks a server to start a successor process, and waits for the outcome.
//! Sends the signal only to a process that handles it. Does not know what the server serves.

use anyhow::Result;

use crate::args::HandoverArgs;

/// Runs the command.
///
/// # Errors
/// When the process is not a server, or its successor does not become ready.
#[cfg(target_os = "linux")]
pub fn run(arguments: &HandoverArgs) -> Result<()> {
    of_linux::run(arguments)
}

/// Fails: only Linux provides the necessary information about processes.
///
/// # Errors
/// Always: this system has no signal for a handover.
#[cfg(not(target_os = "linux"))]
pub fn run(arguments: &HandoverArgs) -> Result<()> {
    anyhow::bail!("not supported on this system; send SIGUSR2 to process {}", arguments.pid)
}

#[cfg(target_os = "linux")]
mod of_linux {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use anyhow::{Context, Result, bail};
    use rustix::process::{Pid, Signal, kill_process};

    use crate::args::HandoverArgs;
    use crate::process::{handover, output};

    /// Interval of checks on the successor process.
    const POLL: Duration = Duration::from_millis(50);
    /// Interval and limit of the search for the successor process, which may exit at once.
    const START_POLL: Duration = Duration::from_millis(5);
    const START_LIMIT: Duration = Duration::from_secs(10);
    /// The bit of SIGUSR2 in a signal mask.
    const USR2_BIT: u64 = 1 << 11;

    pub fn run(arguments: &HandoverArgs) -> Result<()> {
        let pid = arguments.pid;
        check(pid)?;
        let before = successors_of(pid);
        let process = Pid::from_raw(pid).context("not the number of a process")?;
        kill_process(process, Signal::USR2).with_context(|| format!("cannot signal process {pid}"))?;
        let started = Instant::now();
        let is_new = |(child, _): &(i32, PathBuf)| before.iter().all(|(other, _)| other != child);
        let (child, socket) = loop {
            if let Some(found) = successors_of(pid).into_iter().find(is_new) {
                break found;
            }
            if started.elapsed() >= START_LIMIT {
                bail!("no new process was seen, and process {pid} goes on; its log says why");
            }
            std::thread::sleep(START_POLL);
        };
        // The server removes the socket's folder when the outcome is known.
        let folder = socket.parent().unwrap_or(&socket);
        while seen_by(pid, folder).exists() && is_running(child) {
            if started.elapsed() >= Duration::from_secs(arguments.timeout) {
                bail!(
                    "process {child}, which process {pid} started, does not answer yet; process {pid} goes on"
                );
            }
            std::thread::sleep(POLL);
        }
        if is_running(child) {
            Ok(output::line(format!("process {child} goes on in the place of process {pid}"))?)
        } else {
            bail!("the new process {child} did not get ready, and process {pid} goes on; the log says why")
        }
    }

    /// Checks that the process is a Throng server that handles SIGUSR2: the signal would end other
    /// programs.
    fn check(pid: i32) -> Result<()> {
        let status = status(pid).with_context(|| format!("there is no process {pid}"))?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).with_context(|| {
            // A process that has ended and that its parent has not waited for has no program any more.
            if field(&status, "State:").is_some_and(|state| state.starts_with('Z')) {
                format!("process {pid} has ended")
            } else {
                format!("cannot look at process {pid}; use its user, or root")
            }
        })?;
        let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mask = field(&status, "SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        if !name.starts_with("throng") || mask.is_none_or(|mask| mask & USR2_BIT == 0) {
            bail!("process {pid} ({name}) is no server of Throng's that can hand over");
        }
        Ok(())
    }

    /// Successor processes that this process has started, with the sockets for their readiness messages.
    fn successors_of(pid: i32) -> Vec<(i32, PathBuf)> {
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_child = |child: &i32| {
            status(*child).is_some_and(|status| {
                field(&status, "PPid:").and_then(|parent| parent.parse().ok()) == Some(pid)
            })
        };
        numbers.filter(is_child).filter_map(|child| Some((child, socket_of(child)?))).collect()
    }

    fn socket_of(child: i32) -> Option<PathBuf> {
        let environment = fs::read(format!("/proc/{child}/environ")).ok()?;
        let value = environment.split(|&byte| byte == 0).find_map(|entry| {
            std::str::from_utf8(entry).ok()?.strip_prefix(handover::VARIABLE)?.strip_prefix('=')
        })?;
        Some(PathBuf::from(value))
    }

    /// A path in the process's own root directory: a service may have a private folder for temporary files.
    fn seen_by(pid: i32, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new(&format!("/proc/{pid}/root")).join(inside)
    }

    fn is_running(pid: i32) -> bool {
        let state = status(pid).and_then(|status| field(&status, "State:").map(str::to_owned));
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    }

    fn status(pid: i32) -> Option<String> {
        fs::read_to_string(format!("/proc/{pid}/status")).ok()
    }

    fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }
}
