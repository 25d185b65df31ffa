//! `throng launch`: runs a coding agent with a server on this machine. If none is running, starts one and
//! ends it with the agent. Does not know the agents' protocols.

mod agents;
mod server;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use self::agents::{Launch, ServedTo};
use self::server::StartedServer;
use super::chat::remote::Server;
use super::running_server;
use crate::args::LaunchArgs;
use crate::process::output;
use crate::usage_error::UsageError;

/// Approximate tokens of agents' own instructions and tools.
const AGENTS_NEED_TOKENS: u64 = 32_768;
/// Exit status when a signal ended the agent.
const ENDED_BY_SIGNAL: i32 = 130;

/// Runs the command.
///
/// # Errors
/// When the agent is not installed, or there is no server and none can be started.
pub async fn run(arguments: &LaunchArgs) -> Result<()> {
    let program = find_program(arguments.agent.program()).with_context(|| {
        let (program, install) = (arguments.agent.program(), arguments.agent.install());
        format!("{program} is not installed: {install}")
    })?;
    let (server, started) = tokio::select! {
        found = server(arguments) => found?,
        _ = tokio::signal::ctrl_c() => bail!("ended before the server was ready"),
    };
    let url = server.base().trim_end_matches("/v1");
    note(&server, url, started.is_some());
    let key = arguments.api_key.as_deref();
    let told = ServedTo { url, key, model: server.model(), context: server.context() };
    let ended = run_agent(&program, arguments.agent.launch(told), &arguments.rest).await;
    if let Some(started) = started {
        started.end().await;
    }
    match ended? {
        status if status.success() => Ok(()),
        status => std::process::exit(status.code().unwrap_or(ENDED_BY_SIGNAL)),
    }
}

/// A running server, or a new one with the handle that ends it.
async fn server(arguments: &LaunchArgs) -> Result<(Server, Option<StartedServer>)> {
    let (url, key, model) =
        (arguments.url.as_deref(), arguments.api_key.as_deref(), arguments.model.as_deref());
    if let Some(server) = running_server::find(url, key, model) {
        return Ok((server, None));
    }
    if let Some(url) = url {
        // An error here names the reason: the server is unreachable, refuses the key, or lacks the model.
        let server = Server::find(url, key, None)?;
        bail!("{url} has no model {}, but {}", model.unwrap_or_default(), server.model());
    }
    let Some(model) = model else {
        let fault = "no server runs on this machine's usual ports: name a model to serve (--model), or a server (--url)";
        return Err(UsageError(fault.to_owned()).into());
    };
    output::note(format_args!("Starting a server with {model} …"));
    let started = StartedServer::start(model).await?;
    Ok((Server::find(&started.url, key, None)?, Some(started)))
}

fn note(server: &Server, url: &str, is_started: bool) {
    let until = if is_started { ", until the agent ends" } else { "" };
    output::note(format_args!("{} answers on {url}{until}.", server.model()));
    if let Some(context) = server.context().filter(|n| *n < AGENTS_NEED_TOKENS) {
        output::note(format_args!(
            "Its context has {context} tokens; the instructions and tools of most agents alone take about {AGENTS_NEED_TOKENS}."
        ));
    }
}

/// Runs the agent in this terminal until it exits, and forwards signals that end the command.
async fn run_agent(program: &Path, launch: Launch, rest: &[String]) -> Result<ExitStatus> {
    let mut command = Command::new(program);
    command.args(&launch.arguments).args(rest).envs(launch.set).kill_on_drop(true);
    for name in launch.unset {
        command.env_remove(name);
    }
    let mut agent = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    tokio::select! {
        ended = agent.wait() => ended.context("cannot wait for the agent"),
        () = told_to_end() => {
            let _ = agent.start_kill();
            agent.wait().await.context("cannot wait for the agent")
        }
    }
}

/// Completes with a signal that ends the command. Ctrl-C in the terminal does not complete it: the agent
/// receives it too and handles it.
async fn told_to_end() {
    let ignoring = async {
        while tokio::signal::ctrl_c().await.is_ok() {}
        std::future::pending().await
    };
    tokio::select! {
        () = terminated() => {}
        () = ignoring => {}
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}

/// The path of a program, searched for in `PATH` as by a shell.
fn find_program(name: &str) -> Option<PathBuf> {
    let names = if cfg!(windows) {
        vec![format!("{name}.cmd"), format!("{name}.exe")]
    } else {
        vec![name.to_owned()]
    };
    let folders = env::var_os("PATH")?;
    let places =
        env::split_paths(&folders).flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    places.into_iter().find(|place| is_program(place))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}
