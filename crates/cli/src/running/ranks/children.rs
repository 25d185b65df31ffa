//! The processes of the ranks after the first one: started with a handle of the shared memory, watched, and
//! ended with the group. Does not know their computation.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_comm::shared::SharedHost;
use throng_model::parallel::Grid;

/// Descriptor of the shared memory in a rank's process.
pub(super) const MEMORY_FD: i32 = 3;
/// Interval between checks of a process, which bounds the time until its end is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// Processes that end with this value.
#[derive(Debug)]
pub(super) struct Children {
    processes: Vec<Arc<Mutex<Child>>>,
    is_ending: Arc<AtomicBool>,
    watching: Vec<JoinHandle<()>>,
}

impl Children {
    /// Starts a process for each rank but the first.
    ///
    /// # Errors
    /// When one cannot be started; the others are ended then.
    pub(super) fn start(grid: Grid, host: &Arc<SharedHost>) -> Result<Self> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let mut children = Self { processes: Vec::new(), is_ending, watching: Vec::new() };
        for rank in 1..grid.n_all() {
            let process = start(rank, grid, host).with_context(|| format!("cannot start rank {rank}"))?;
            children.watch(rank, process, host).context("cannot start a thread")?;
        }
        Ok(children)
    }

    /// Watches for the end of a process and reports it to all ranks.
    fn watch(&mut self, rank: usize, process: Child, host: &Arc<SharedHost>) -> std::io::Result<()> {
        let process = Arc::new(Mutex::new(process));
        self.processes.push(Arc::clone(&process));
        let (host, is_ending) = (Arc::clone(host), Arc::clone(&self.is_ending));
        let watch = move || {
            while !is_ending.load(Ordering::Relaxed) {
                let ended = process.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
                if !matches!(ended, Ok(None)) {
                    if let Ok(Some(status)) = ended {
                        tracing::warn!("rank {rank} ended: {status}");
                    }
                    return host.note_end(rank);
                }
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name(format!("throng-rank-{rank}"));
        self.watching.push(thread.spawn(watch)?);
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for process in &self.processes {
            let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
        self.watching.drain(..).for_each(|thread| {
            let _ = thread.join();
        });
    }
}

/// Starts the process of a rank: this program again.
#[cfg(target_os = "linux")]
fn start(rank: usize, grid: Grid, host: &SharedHost) -> Result<Child> {
    use command_fds::{CommandFdExt, FdMapping};
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;

    let parent_fd = host.file().as_fd().try_clone_to_owned()?;
    // Not by its path, where another version may be by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg("rank");
    for (flag, value) in [("--rank", rank), ("--ranks", grid.n_ranks), ("--stages", grid.n_stages)] {
        command.args([flag, &value.to_string()]);
    }
    // In a process group of its own: an interrupt on the terminal is for the server, which ends gently.
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command.fd_mappings(vec![FdMapping { parent_fd, child_fd: MEMORY_FD }])?;
    Ok(command.spawn()?)
}

#[cfg(not(target_os = "linux"))]
fn start(_rank: usize, _grid: Grid, _host: &SharedHost) -> Result<Child> {
    anyhow::bail!("models are divided on Linux only")
}
