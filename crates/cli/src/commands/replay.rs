//! `throng replay FILE`: a recorded load again, in virtual time through the simulator, or in real time
//! against a server.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use throng_core::fleet::overload::GateConfig;
use throng_core::time::{Nanos, Timestamp};
use throng_sim::SimError;
use throng_sim::fleet::{Fault, FleetConfig, ReplicaConfig};
use throng_sim::recording::{RecordedCostModel, RecordedWorkload, RecordingReader, rerun};
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::Simulation;
use throng_sim::workload::Workload;
use throng_sim::workload::trace::{Faster, TraceFormat};

use super::bench::{objective, target};
use crate::args::ReplayArgs;
use crate::load::{DriveOptions, LoadClient, drive, table};
use crate::process::output;

/// Time after which a killed replica is started again.
const RESTART: Nanos = Nanos::from_ms(10_000);

/// Runs the command.
///
/// # Errors
/// When the file cannot be read, or the server does not answer.
pub async fn run(arguments: &ReplayArgs) -> Result<()> {
    match &arguments.url {
        Some(url) => in_real_time(arguments, url).await,
        None => in_virtual_time(arguments),
    }
}

/// The load of a recording or of a trace.
///
/// # Errors
/// When the file cannot be read, or is neither a recording nor a trace.
pub fn load_of(path: &Path) -> Result<Box<dyn Workload>> {
    let in_file = || format!("{}", path.display());
    let mut first = String::new();
    open(path)?.read_line(&mut first).with_context(in_file)?;
    if first.is_empty() {
        return Err(SimError::Empty).with_context(in_file);
    }
    if let Some(format) = TraceFormat::of_first_line(&first) {
        return Ok(format.open(open(path)?));
    }
    let reader = RecordingReader::open(open(path)?).with_context(in_file)?;
    Ok(Box::new(RecordedWorkload::read(reader).with_context(in_file)?))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(BufReader::new(file))
}

async fn in_real_time(arguments: &ReplayArgs, url: &str) -> Result<()> {
    let mut load = Faster::new(load_of(&arguments.file)?, arguments.speed)?;
    let client = LoadClient::connect(target(url, &arguments.target)).await?;
    let options = DriveOptions {
        name: arguments.file.display().to_string(),
        objective: objective(&arguments.target),
        warm_up: Nanos(0),
        max_in_flight: arguments.target.max_in_flight,
        keeps_answers: false,
    };
    let report = drive(&client, &mut load, &options).await?;
    report.remarks().into_iter().for_each(output::note);
    match arguments.target.json {
        true => output::line(serde_json::to_string(&report)?)?,
        false => output::line(table(&[report]))?,
    }
    Ok(())
}

/// Outcome of a replay in virtual time.
#[derive(Debug, Serialize)]
struct Replayed {
    /// Steps of the recorded engine that were run again; `None` if settings were changed, or if the recording
    /// does not begin with the process.
    batches: Option<Compared>,
    /// Mean relative error of the step times of the simulation.
    step_time_error: f64,
    /// Load of the simulated fleet.
    report: Report,
}

#[derive(Debug, Serialize)]
struct Compared {
    n_steps: u64,
    n_different: u64,
    first_difference: Option<u64>,
    n_special: u64,
    n_lost: u64,
    /// Whether the engine looked for drafts in the text, which is not recorded.
    looked_up_drafts: bool,
}

fn in_virtual_time(arguments: &ReplayArgs) -> Result<()> {
    let path = &arguments.file;
    let in_file = || format!("{}", path.display());
    let reader = || {
        let file = File::open(path).map_err(SimError::Read)?;
        RecordingReader::open(BufReader::new(file))
    };
    let mut first = String::new();
    open(path)?.read_line(&mut first).with_context(in_file)?;
    if TraceFormat::of_first_line(&first).is_some() {
        bail!("{}: a trace has no step times to simulate with: replay it with --url", path.display());
    }
    let header = reader().with_context(in_file)?.header().clone();
    let Some(engine) = header.engine else {
        bail!(
            "{}: the recording of a gateway has no step times to simulate with: replay it with --url",
            path.display()
        );
    };
    let batches = match header.part {
        0 => {
            let again = rerun(reader, |_| ()).with_context(in_file)?;
            Some(Compared {
                n_steps: again.n_steps,
                n_different: again.n_different,
                first_difference: again.first_difference,
                n_special: again.n_special,
                n_lost: again.n_lost,
                looked_up_drafts: engine.scheduler.speculation.looks_up()
                    && engine.scheduler.max_draft_tokens > 0,
            })
        }
        _ => None,
    };
    let cost = RecordedCostModel::read(reader).with_context(in_file)?;
    let mut replica = ReplicaConfig::new(engine.capacity, Arc::new(cost));
    let speculation = replica.engine.scheduler.speculation;
    replica.engine = engine.config();
    // Drafts depend on text, which is not recorded.
    replica.engine.scheduler.speculation = speculation;
    let scheduler = &mut replica.engine.scheduler;
    scheduler.max_batch_sequences = arguments.max_num_seqs.unwrap_or(scheduler.max_batch_sequences);
    scheduler.max_batch_tokens = arguments.max_num_batched_tokens.unwrap_or(scheduler.max_batch_tokens);
    replica.capacity.n_blocks = arguments.kv_blocks.unwrap_or(replica.capacity.n_blocks);
    let mut fleet = FleetConfig::uniform(replica, arguments.replicas);
    fleet.gateway.policy = arguments.routing.map_or(fleet.gateway.policy, |policy| policy.0);
    fleet.gateway.overload = arguments.max_queue_wait.map(|ms| GateConfig { max_wait: Nanos::from_ms(ms) });
    let load = RecordedWorkload::read(reader().with_context(in_file)?).with_context(in_file)?;
    let load = Faster::new(Box::new(load) as Box<dyn Workload>, arguments.speed)?;
    let faults = arguments.kill_after.map(|seconds| Fault::Kill {
        replica: 0,
        at: Timestamp::from_ns((seconds * 1e9) as u64),
        restart_after: Some(RESTART),
    });
    let mut report = ReportBuilder::new(objective(&arguments.target), Nanos(0));
    let simulation = Simulation::new(fleet, Box::new(load), 1)?;
    let totals = simulation.with_faults(faults.into_iter().collect())?.run(&mut report)?;
    let replayed = Replayed { batches, step_time_error: cost.mean_error, report: report.finish(totals) };
    match arguments.target.json {
        true => output::line(serde_json::to_string(&replayed)?)?,
        false => print(&replayed, arguments.replicas)?,
    }
    Ok(())
}

fn print(replayed: &Replayed, n_replicas: usize) -> Result<()> {
    if let Some(compared) = &replayed.batches {
        let Compared { n_steps, n_different, first_difference, n_special, n_lost, .. } = compared;
        let same = n_steps - n_different;
        output::line(format_args!("inputs again:    {same} of {n_steps} steps have the recorded batch"))?;
        if let Some(line) = first_difference {
            output::line(format_args!("                 the first that differs is in line {line}"))?;
        }
        if *n_different > 0 && compared.looked_up_drafts {
            output::line(
                "                 drafts were found in the text; --no-speculation records without them",
            )?;
        }
        if *n_special > 0 {
            output::line(format_args!("                 {n_special} requests have constraints or beams"))?;
        }
        if *n_lost > 0 {
            output::line(format_args!("                 {n_lost} inputs were not recorded"))?;
        }
    }
    let report = &replayed.report;
    let latency = |name: &str, summary: &throng_core::timeline::latency::LatencySummary| {
        output::line(format_args!(
            "{name:16} p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms",
            summary.p50_ms, summary.p90_ms, summary.p99_ms
        ))
    };
    output::line(format_args!(
        "simulated:       {} requests in {:.1} s on {n_replicas} replicas, {:.0} % busy; step times to within {:.1} %",
        report.n_requests,
        report.duration_s,
        100.0 * report.utilization(n_replicas),
        100.0 * replayed.step_time_error,
    ))?;
    latency("first token:", &report.first_token)?;
    latency("gap:", &report.gap)?;
    latency("end to end:", &report.end_to_end)?;
    for (reason, n) in &report.ends {
        output::line(format_args!("{n} ended: {}", serde_json::to_string(reason)?.trim_matches('"')))?;
    }
    Ok(())
}
