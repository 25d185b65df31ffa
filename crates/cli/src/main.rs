//! The `throng` binary.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use clap::Parser;
use throng_cli::args::{Command, CommandLine};
use throng_cli::commands::{bench, chat, generate, inspect, serve};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let is_server = matches!(line.command, None | Some(Command::Serve(_)));
    log_to_stderr(if is_server { "warn,throng=info" } else { "warn" });
    match run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: CommandLine) -> Result<()> {
    runtime()?.block_on(async {
        match line.command {
            None => serve::run(&line.serve).await,
            Some(Command::Serve(arguments)) => serve::run(&arguments).await,
            Some(Command::Chat(arguments)) => chat::run(&arguments).await,
            Some(Command::Generate(arguments)) => generate::run(&arguments).await,
            Some(Command::Inspect(arguments)) => inspect::run(&arguments),
            Some(Command::Bench(arguments)) => bench::run(&arguments).await,
        }
    })
}

/// Threads that talk to clients.
const N_TALKING: usize = 2;

/// Two threads for all connections: a token costs them microseconds. Whatever takes longer runs on others, which give
/// way to those that compute.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let n_started = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_TALKING)
        .on_thread_start(move || {
            // The runtime starts those that talk first, all of them at once.
            if n_started.fetch_add(1, Ordering::Relaxed) >= N_TALKING {
                throng_kernels::threads::step_back();
            }
        })
        .enable_all()
        .build()
}

/// `THRONG_LOG` chooses what is logged, in the syntax of tracing's `EnvFilter`; else `default` does.
fn log_to_stderr(default: &str) {
    let filter = EnvFilter::try_from_env("THRONG_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
