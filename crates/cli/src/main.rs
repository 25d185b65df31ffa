//! The `throng` binary: runs the command and sets the exit status.

use std::process::ExitCode;

use anyhow::Result;
use throng_cli::args::{Command, CommandLine, LogFormat};
use throng_cli::commands::{
    batch, bench, calibrate, chat, config, devices, explain, fleet, gateway, generate, handover, inspect,
    keys, launch, models, plan, pull, replay, run, serve, shell, store, tools, trace, usage, worker,
};
use throng_cli::error_chain::in_full;
use throng_cli::process::line_queue::LineFormat;
use throng_cli::process::logging;
use throng_cli::process::output::OutputError;
use throng_cli::process::{runtime, signals};
use throng_cli::running::ranks;
use throng_cli::usage_error::UsageError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let line = CommandLine::read();
    let is_server = matches!(
        line.command,
        None | Some(Command::Serve(_) | Command::Worker(_) | Command::Gateway(_) | Command::Rank(_))
    );
    let filter = if is_server { "warn,throng=info" } else { "warn" };
    let ended = logging::start(filter, log_format(&line)).and_then(|()| run(line));
    logging::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(OutputError::is_reader_gone) => ExitCode::SUCCESS,
        Err(error) => {
            logging::last_words(&format!("error: {}", in_full(&error)));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

/// Format of the log: from a server's flags, else text.
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
    let runtime = runtime::start()?;
    if let Some(job) = ranks::job::join(line.command.as_ref())? {
        let ended = ranks::follower::run_in_job(job);
        ranks::job::leave();
        return ended;
    }
    let ended = runtime.block_on(async {
        signals::outlive_file_size_limit();
        match line.command {
            None => serve::run(&line.serve).await,
            Some(Command::Serve(arguments)) => serve::run(&arguments).await,
            Some(Command::Rank(arguments)) => ranks::follower::run(&arguments),
            Some(Command::Worker(arguments)) => worker::run(&arguments).await,
            Some(Command::Gateway(arguments)) => gateway::run(&arguments).await,
            Some(Command::Fleet(arguments)) => fleet::run(&arguments).await,
            Some(Command::Run(arguments)) => run::run(&arguments).await,
            Some(Command::Chat(arguments)) => chat::run(&arguments).await,
            Some(Command::Launch(arguments)) => launch::run(&arguments).await,
            Some(Command::Generate(arguments)) => generate::run(&arguments).await,
            Some(Command::Inspect(arguments)) => inspect::run(&arguments),
            Some(Command::Pull(arguments)) => pull::run(&arguments),
            Some(Command::Devices(arguments)) => devices::run(&arguments),
            Some(Command::List(arguments)) => models::list(&arguments),
            Some(Command::Rm(arguments)) => models::remove(&arguments),
            Some(Command::Models(arguments)) => models::run(&arguments),
            Some(Command::Batch(arguments)) => batch::run(&arguments).await,
            Some(Command::Bench(arguments)) => bench::run(&arguments).await,
            Some(Command::Replay(arguments)) => replay::run(&arguments).await,
            Some(Command::Trace(arguments)) => trace::run(&arguments),
            Some(Command::Plan(arguments)) => plan::run(&arguments),
            Some(Command::Calibrate(arguments)) => calibrate::run(&arguments).await,
            Some(Command::Keys(arguments)) => keys::run(&arguments).await,
            Some(Command::Usage(arguments)) => usage::run(&arguments).await,
            Some(Command::Tools(arguments)) => tools::run(&arguments).await,
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
    ranks::job::leave();
    ended
}
