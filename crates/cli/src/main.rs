//! The `throng` binary: runs the command and sets the exit status.

use std::io;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use throng_cli::args::{Command, CommandLine, LogFormat};
use throng_cli::commands::{
    bench, chat, config, explain, fleet, gateway, generate, handover, inspect, keys, models, pull, serve,
    shell, store, usage, worker,
};
use throng_cli::process::line_queue::LineFormat;
use throng_cli::process::logging;
use throng_cli::process::output::OutputError;
use throng_cli::process::signals;
use throng_cli::usage_error::UsageError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let line = CommandLine::read();
    let is_server =
        matches!(line.command, None | Some(Command::Serve(_) | Command::Worker(_) | Command::Gateway(_)));
    let filter = if is_server { "warn,throng=info" } else { "warn" };
    let ended = logging::start(filter, log_format(&line)).and_then(|()| run(line));
    logging::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(OutputError::is_reader_gone) => ExitCode::SUCCESS,
        Err(error) => {
            logging::last_words(&format!("error: {error:#}"));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

/// The format of the log: as a server's flags say, else text.
fn log_format(line: &CommandLine) -> LineFormat {
    let chosen = match &line.command {
        None => line.serve.log_format,
        Some(Command::Serve(arguments)) => arguments.log_format,
        Some(Command::Worker(arguments)) => arguments.log_format,
        Some(Command::Gateway(arguments)) => arguments.log_format,
        Some(_) => None,
    };
    match chosen {
        Some(LogFormat::Json) => LineFormat::Json,
        _ => LineFormat::Text,
    }
}

fn run(line: CommandLine) -> Result<()> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        signals::outlive_file_size_limit();
        match line.command {
            None => serve::run(&line.serve).await,
            Some(Command::Serve(arguments)) => serve::run(&arguments).await,
            Some(Command::Worker(arguments)) => worker::run(&arguments).await,
            Some(Command::Gateway(arguments)) => gateway::run(&arguments).await,
            Some(Command::Fleet(arguments)) => fleet::run(&arguments).await,
            Some(Command::Chat(arguments)) => chat::run(&arguments).await,
            Some(Command::Generate(arguments)) => generate::run(&arguments).await,
            Some(Command::Inspect(arguments)) => inspect::run(&arguments),
            Some(Command::Pull(arguments)) => pull::run(&arguments),
            Some(Command::Models(arguments)) => models::run(&arguments),
            Some(Command::Bench(arguments)) => bench::run(&arguments).await,
            Some(Command::Keys(arguments)) => keys::run(&arguments).await,
            Some(Command::Usage(arguments)) => usage::run(&arguments).await,
            Some(Command::Config(arguments)) => config::run(&arguments),
            Some(Command::Handover(arguments)) => handover::run(&arguments),
            Some(Command::Explain(arguments)) => explain::run(&arguments),
            Some(Command::Store(arguments)) => store::run(&arguments).await,
            Some(Command::Completions { shell: of }) => shell::completions(of),
            Some(Command::Man { folder }) => shell::manual(&folder),
        }
    });
    // The process ends without waiting for its other threads.
    runtime.shutdown_background();
    ended
}

/// Threads that serve connections.
const N_TALKING: usize = 2;
/// Threads for blocking work, at least as many as processors: the allocator keeps some megabytes for each.
const N_WORKING: usize = 8;
/// Such a thread ends after this time without work.
const WORKING_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Two threads serve all connections: a token takes them microseconds, and they get the processor soon.
/// Longer work runs on other threads, at a lower priority than the compute threads.
fn runtime() -> Result<tokio::runtime::Runtime> {
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
