//! `throng fleet status`: prints a gateway's workers and engines as a table. Reads only the gateway's
//! report.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;
use throng_core::fleet::routing::Role;

use crate::args::{FleetArgs, FleetCommand};
use crate::process::output;

const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
/// ANSI sequence that moves the cursor to the upper left corner and erases the screen below.
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(Debug, Deserialize)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Debug, Deserialize)]
struct Worker {
    /// Name of the replica; absent in reports of older gateways.
    #[serde(default)]
    name: String,
    url: String,
    state: String,
    reason: Option<String>,
    seconds: Option<u64>,
    models: Vec<String>,
    region: Option<String>,
    fingerprint: String,
    /// Absent in reports of older gateways.
    #[serde(default)]
    role: Role,
    running: usize,
    waiting: usize,
    used_blocks: usize,
    total_blocks: usize,
    /// Absent for models in one process.
    #[serde(default)]
    ranks: Option<Ranks>,
}

#[derive(Debug, Deserialize)]
struct Ranks {
    tensor: u32,
    pipeline: u32,
    transport: String,
    communication_share: Option<f64>,
    losses: u64,
}

impl Ranks {
    /// A cell of the table: `4 (2 × 2), MPI, 12 %, 1 lost`.
    fn shown(&self) -> String {
        let Self { tensor, pipeline, transport, communication_share, losses } = self;
        let share = communication_share.map(|share| format!(", {:.0} %", share * 100.0)).unwrap_or_default();
        format!("{} ({tensor} × {pipeline}), {transport}{share}, {losses} lost", tensor * pipeline)
    }
}

/// Runs the command.
///
/// # Errors
/// When the gateway cannot be reached or refuses.
pub async fn run(arguments: &FleetArgs) -> Result<()> {
    let FleetCommand::Status { url, api_key, once } = arguments.command.clone();
    let refreshes = !once && std::io::stdout().is_terminal();
    loop {
        let (url, api_key) = (url.clone(), api_key.clone());
        let workers = tokio::task::spawn_blocking(move || ask(&url, api_key.as_deref())).await??;
        let table = table(&workers);
        if !refreshes {
            return Ok(output::line(table)?);
        }
        output::line(format!("{CLEAR}{table}"))?;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

fn ask(url: &str, api_key: Option<&str>) -> Result<Vec<Worker>> {
    let agent =
        ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build();
    let mut request = ureq::Agent::from(agent).get(format!("{}/fleet", url.trim_end_matches('/')));
    if let Some(key) = api_key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut answer = request.call().with_context(|| format!("cannot ask {url}"))?;
    let text =
        answer.body_mut().read_to_string().with_context(|| format!("cannot read the answer of {url}"))?;
    if answer.status() != 200 {
        bail!("{url} answered with {}: {}", answer.status(), text.trim());
    }
    let workers: Workers = serde_json::from_str(&text).with_context(|| format!("{url} is no gateway"))?;
    Ok(workers.workers)
}

fn table(workers: &[Worker]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "REPLICA",
        "ADDRESS",
        "STATE",
        "FOR",
        "MODEL",
        "REGION",
        "ROLE",
        "RUNNING",
        "WAITING",
        "KV",
        "RANKS",
        "FINGERPRINT",
        "REASON",
    ]);
    for worker in workers {
        let kv = (100 * worker.used_blocks).checked_div(worker.total_blocks);
        table.add_row([
            worker.name.clone(),
            worker.url.clone(),
            worker.state.clone(),
            worker.seconds.map(|seconds| format!("{seconds} s")).unwrap_or_default(),
            worker.models.first().cloned().unwrap_or_default(),
            worker.region.clone().unwrap_or_default(),
            worker.role.name().to_owned(),
            worker.running.to_string(),
            worker.waiting.to_string(),
            kv.map(|percent| format!("{percent} %")).unwrap_or_default(),
            worker.ranks.as_ref().map(Ranks::shown).unwrap_or_default(),
            worker.fingerprint.chars().take(8).collect(),
            worker.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}
