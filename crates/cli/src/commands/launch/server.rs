//! A server process that runs as long as an agent. Does not know the agent.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Time limit until the server is ready: a model may have to be downloaded first.
const STARTING: Duration = Duration::from_secs(3600);
/// Grace period of a server after the request to end; then it is killed.
const ENDING: Duration = Duration::from_secs(10);
/// Start of the line of a server's output that contains its address.
const READY: &str = "Serving on ";
/// Maximum number of log lines in an error message.
const MAX_LOG_LINES: usize = 20;
/// Wait after the process has exited for the last line of its log to arrive.
const LAST_LINE: Duration = Duration::from_millis(200);

/// The last lines of a server's log.
type Log = Arc<Mutex<VecDeque<String>>>;

/// A server process started for this command. Dropping it kills the process.
#[derive(Debug)]
pub struct StartedServer {
    /// Base URL of the server.
    pub url: String,
    process: Child,
}

impl StartedServer {
    /// Serves a model on a free port of this machine, and waits until it is ready.
    ///
    /// # Errors
    /// When the server does not become ready; the message has the last lines of its log.
    pub async fn start(model: &str) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["serve", model, "--host", "127.0.0.1", "--port", "0"]);
        // Ctrl-C in the terminal is for the agent only.
        #[cfg(unix)]
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().context("cannot start a server")?;
        let log = Log::default();
        // Unread pipes would block the server once they are full.
        if let Some(errors) = process.stderr.take() {
            tokio::spawn(keep_last_lines(errors, log.clone()));
        }
        let output = process.stdout.take().context("the server has no output")?;
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(rest) = line.strip_prefix(READY) {
                    return rest.split(' ').next().map(str::to_owned);
                }
            }
            None
        };
        let Some(url) = timeout(STARTING, ready).await.ok().flatten() else {
            tokio::time::sleep(LAST_LINE).await;
            let log = log.lock().unwrap_or_else(PoisonError::into_inner);
            bail!(
                "the server did not start:\n{}",
                log.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
            );
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { url, process })
    }

    /// Ends the server.
    pub async fn end(mut self) {
        terminate(&self.process);
        if timeout(ENDING, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

#[cfg(unix)]
fn terminate(process: &Child) {
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(not(unix))]
fn terminate(_: &Child) {}

async fn keep_last_lines(output: impl AsyncRead + Unpin, log: Log) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == MAX_LOG_LINES {
            log.pop_front();
        }
        log.push_back(line);
    }
}
