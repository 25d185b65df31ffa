//! Time that a gateway adds to a request, with keys, limits and the ledger, in front of an engine that
//! answers at once; other routers in the same run. Does not know how requests are sent and answered.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use throng_cli::process::{descriptors, output};
use throng_cli::usage_error::UsageError;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::arguments::{Arguments, PaperServer};
use crate::load::{self, Load, Measured, Target};
use crate::streams::{self, OpenStreams};
use crate::{bare, paper, remote};

/// Longest time until a router answers.
const START_LIMIT: Duration = Duration::from_secs(120);
const START_INTERVAL: Duration = Duration::from_millis(250);
/// Number of requests before the measured ones, as a share of the measured ones.
const WARM_UP: f64 = 0.1;
/// Duration of a step of the engine while streams are open. Each stream gets one token a step, and sending
/// thousands of them must leave a busy machine time for everything else.
const STREAM_STEP_MS: u64 = 1500;
const MIB: f64 = (1 << 20) as f64;

/// One line of the result; times in microseconds.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    #[serde(flatten)]
    measured: Measured,
    /// Median time added to the bare server's.
    added_p50_us: f64,
    added_p99_us: f64,
}

/// A process that is ended when it is dropped.
struct Server {
    process: Child,
    target: Target,
}

/// The gateway that is measured, and the worker that it is over if that is another process.
struct MeasuredGateway {
    server: Server,
    _worker: Option<Server>,
}

/// Runs the command.
///
/// # Errors
/// When a server cannot be started or does not answer.
pub async fn run(arguments: &Arguments) -> Result<()> {
    let step = Duration::from_millis(arguments.step_ms);
    match arguments.serve {
        Some(PaperServer::Bare) => return bare::serve().await,
        Some(PaperServer::Gateway) => return paper::serve(step).await,
        Some(PaperServer::Worker) => return remote::serve_worker(step).await,
        Some(PaperServer::Front) => return remote::serve_gateway(step, arguments.worker_port).await,
        None => {}
    }
    let routers = arguments.router.iter().map(|router| parse(router)).collect::<Result<Vec<_>>>()?;
    let load = Load {
        rate: f64::from(arguments.rate),
        seconds: f64::from(arguments.seconds),
        n_connections: arguments.connections as usize,
    };
    let bare = own_server(PaperServer::Bare, &[]).await?;
    let mut lines = Vec::new();
    for round in 0..arguments.rounds {
        let base = measure(&load, &bare.target).await?;
        push(&mut lines, arguments, ("server without gateway".to_owned(), round), base, base)?;
        let gateway = gateway(arguments.remote, 0).await?;
        let measured = measure(&load, &gateway.server.target).await?;
        push(&mut lines, arguments, ("throng".to_owned(), round), measured, base)?;
        drop(gateway);
        let served = if arguments.remote && !routers.is_empty() {
            Some(own_server(PaperServer::Gateway, &[]).await?)
        } else {
            None
        };
        let upstream = served.as_ref().map_or(&bare.target, |server| &server.target);
        for (name, command) in &routers {
            let router = router(name, command, upstream).await?;
            let measured = measure(&load, &router.target).await?;
            push(&mut lines, arguments, (name.clone(), round), measured, base)?;
        }
    }
    if !arguments.json {
        output::line(table(&lines))?;
    }
    if arguments.open_streams > 0 {
        open_streams(arguments).await?;
    }
    Ok(())
}

/// Measures and prints the memory of open streams.
async fn open_streams(arguments: &Arguments) -> Result<()> {
    descriptors::raise_limit();
    let gateway = gateway(arguments.remote, STREAM_STEP_MS).await?;
    let process_id = gateway.server.process.id().context("the gateway has ended")?;
    let measured = streams::measure(arguments.open_streams as usize, &gateway.server.target, process_id);
    let measured = measured.await?;
    if arguments.json {
        output::line(serde_json::to_string(&measured)?)?;
        return Ok(());
    }
    let OpenStreams { n_open, bytes_before, bytes_open } = measured;
    let each = bytes_open.saturating_sub(bytes_before) / n_open as u64;
    output::line(format_args!(
        "{n_open} streams open: {:.0} MiB, {:.0} MiB before them, {:.1} KiB each",
        bytes_open as f64 / MIB,
        bytes_before as f64 / MIB,
        each as f64 / 1024.0
    ))?;
    Ok(())
}

/// Throng, with the engine in its own process or in a worker.
async fn gateway(is_remote: bool, step_ms: u64) -> Result<MeasuredGateway> {
    let step = ["--step-ms".to_owned(), step_ms.to_string()];
    if !is_remote {
        return Ok(MeasuredGateway { server: own_server(PaperServer::Gateway, &step).await?, _worker: None });
    }
    let worker = own_server(PaperServer::Worker, &step).await?;
    let [name, value] = step;
    let front = [name, value, "--worker-port".to_owned(), worker.target.port.to_string()];
    Ok(MeasuredGateway { server: own_server(PaperServer::Front, &front).await?, _worker: Some(worker) })
}

async fn measure(load: &Load, target: &Target) -> Result<Measured> {
    load::run(&Load { seconds: (load.seconds * WARM_UP).max(1.0), ..*load }, target).await?;
    load::run(load, target).await
}

fn push(
    lines: &mut Vec<Line>,
    arguments: &Arguments,
    (name, round): (String, u32),
    measured: Measured,
    base: Measured,
) -> Result<()> {
    let line = Line {
        name: if arguments.rounds > 1 { format!("{name}, round {}", round + 1) } else { name },
        measured,
        added_p50_us: measured.p50_us - base.p50_us,
        added_p99_us: measured.p99_us - base.p99_us,
    };
    if arguments.json {
        output::line(serde_json::to_string(&line)?)?;
    }
    lines.push(line);
    Ok(())
}

/// `NAME=COMMAND`.
fn parse(router: &str) -> Result<(String, String)> {
    match router.split_once('=') {
        Some((name, command)) if !name.is_empty() && command.contains("{port}") => {
            Ok((name.to_owned(), command.to_owned()))
        }
        _ => Err(UsageError(format!("--router {router:?} must be NAME=COMMAND with {{port}} in it")).into()),
    }
}

/// Starts this program in one of its own roles.
async fn own_server(role: PaperServer, arguments: &[String]) -> Result<Server> {
    let program = std::env::current_exe().context("this program's file is not known")?;
    let mut command = Command::new(program);
    command.args(["--serve", role.name()]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().context("cannot start a server")?;
    let stdout = process.stdout.take().context("a server without output")?;
    let line = BufReader::new(stdout).lines().next_line().await?.unwrap_or_default();
    let mut words = line.split_whitespace();
    let Some(port) = words.next().and_then(|port| port.parse().ok()) else {
        bail!("a server did not start: {line}")
    };
    Ok(Server { process, target: Target { port, key: words.next().map(str::to_owned) } })
}

/// A router in front of a server, with the server's key; returned once it answers.
async fn router(name: &str, command: &str, upstream: &Target) -> Result<Server> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let filled = command
        .replace("{port}", &port.to_string())
        .replace("{upstream}", &format!("http://127.0.0.1:{}", upstream.port));
    // `exec`: the router itself is what is ended.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("exec {filled}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = shell.kill_on_drop(true).spawn().with_context(|| format!("cannot start {name}"))?;
    let target = Target { port, key: upstream.key.clone() };
    let begun = Instant::now();
    while !load::answers(&target).await {
        if let Some(status) = process.try_wait()? {
            bail!("{name} ended with {status}: {filled}");
        }
        if begun.elapsed() > START_LIMIT {
            bail!("{name} does not answer: {filled}");
        }
        tokio::time::sleep(START_INTERVAL).await;
    }
    Ok(Server { process, target })
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "requests/s", "failed", "p50 ms", "p99 ms", "added p50 ms", "added p99 ms"]);
    let ms = |us: f64| format!("{:.3}", us / 1e3);
    for line in lines {
        let Measured { requests_per_s, n_failed, p50_us, p99_us, .. } = line.measured;
        let figures = [p50_us, p99_us, line.added_p50_us, line.added_p99_us].map(ms);
        let counts = [line.name.clone(), format!("{requests_per_s:.0}"), n_failed.to_string()];
        table.add_row(counts.into_iter().chain(figures));
    }
    table
}
