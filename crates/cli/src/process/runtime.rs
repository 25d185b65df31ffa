//! The threads that serve connections and do blocking work. Does not know what they serve.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// Number of threads that serve connections.
const N_TALKING: usize = 2;
/// Minimum number of threads for blocking work; at least one per core. The allocator keeps a few megabytes
/// for each.
const N_WORKING: usize = 8;
/// Time until an idle thread for blocking work exits.
const WORKING_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Starts the runtime. Two threads serve all connections: a token takes them microseconds, and their
/// priority is high. Longer work runs on other threads, at a lower priority than the compute threads.
///
/// # Errors
/// When a thread cannot be started.
pub fn start() -> Result<tokio::runtime::Runtime> {
    has_threads(N_TALKING).context("cannot start a thread")?;
    let n_started = AtomicUsize::new(0);
    let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_TALKING)
        .on_thread_start(move || {
            // The runtime starts the threads for connections first, all of them at once.
            if n_started.fetch_add(1, Ordering::Relaxed) < N_TALKING {
                throng_os::priority::set_latency_slice();
            } else {
                throng_os::priority::lower_priority();
            }
        })
        .max_blocking_threads(N_WORKING.max(n_processors))
        .thread_keep_alive(WORKING_KEEP_ALIVE)
        .enable_all()
        .build();
    built.context("cannot start the runtime")
}

/// Whether this many threads can be started at once. tokio's builder does not return if it cannot start its
/// own threads.
fn has_threads(n: usize) -> io::Result<()> {
    let all_started = Mutex::new(());
    let held = all_started.lock();
    std::thread::scope(|scope| {
        let wait = || drop(all_started.lock());
        let started =
            (0..n).try_for_each(|_| std::thread::Builder::new().spawn_scoped(scope, wait).map(drop));
        drop(held);
        started
    })
}
