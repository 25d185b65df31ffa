//! Predicted against measured: this machine's engine, and its simulation with the calibration under the same
//! requests, on loads that the calibration did not use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use throng_core::fleet::routing::Policy;
use throng_core::request::{Request, SamplingParams, TokenId};
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::{LatencyStats, LatencySummary, TokenClock};
use throng_engine::{StreamEvent, TokenStream};
use throng_plan::cost::Calibration;
use throng_plan::load::Length;
use throng_plan::memory::MemoryPlan;
use throng_plan::replica::{Batching, Replica, Role, Targets};
use throng_plan::simulate::{Settings, simulate, warm_up, workload};
use throng_plan::{Load, Parallelism};
use throng_sim::workload::{TimedRequest, Workload};

use crate::commands::plan::{planned_shape, this_machine};
use crate::process::output;
use crate::running::RunningModel;

/// Loads as shares of the highest one that the closed forms predict.
const LOADS: [f64; 3] = [0.3, 0.7, 1.1];

/// Tokens of prompts and answers as a share of the calibration's measured range.
const LENGTH_SHARE: f64 = 0.25;

/// Mean number of tokens of an answer.
const OUTPUT_TOKENS: f64 = 40.0;

/// Standard deviation of the lengths as a share of the mean.
const VARIATION: f64 = 0.5;

/// Seed of the requests, which are the same in the simulation and on the engine.
const SEED: u64 = 1;

/// Runs each load for `seconds` seconds, and prints predicted beside measured times.
///
/// # Errors
/// When the calibration's range is too small for any load, or the engine fails.
pub async fn run(
    running: &RunningModel,
    calibration: Calibration,
    batching: Batching,
    most_prompt: u32,
    seconds: u64,
) -> Result<()> {
    let length = |mean| Length { mean, variation: VARIATION, most: None };
    let load = Load {
        requests_per_s: 1.0,
        prompt: length((f64::from(most_prompt) * LENGTH_SHARE).max(4.0)),
        output: length(OUTPUT_TOKENS),
        cached_share: 0.0,
        host_cached_share: 0.0,
    };
    let replica = replica(running, calibration, batching)?;
    let highest = replica.highest_rate(&load, &Targets::default())?;
    if highest <= 0.0 {
        bail!("--check: not even one request at a time is within what was measured");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["load", "time", "predicted", "measured", "error"]);
    for share in LOADS {
        let load = load.at(share * highest);
        let predicted = predicted(&replica, &load, seconds)?;
        let measured = measured(running, &load, seconds).await?;
        for row in rows(share, &load, &predicted, &measured) {
            table.add_row(row);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    output::line(table)?;
    Ok(())
}

fn replica(running: &RunningModel, calibration: Calibration, batching: Batching) -> Result<Replica> {
    let (model, machine) = (planned_shape(&running.model), this_machine(None));
    let memory = MemoryPlan::new(&machine, &model, Parallelism::NONE, 1.0, 1)?;
    Ok(Replica {
        name: "this machine".to_owned(),
        model,
        cost: Arc::new(calibration),
        memory,
        batching,
        role: Role::Both,
        n_lanes: 1,
        transfer_bytes_per_s: None,
        n_devices: 1,
    })
}

/// First-token times, gaps and times to the end.
type Summaries = [LatencySummary; 3];

fn predicted(replica: &Replica, load: &Load, seconds: u64) -> Result<Summaries> {
    let settings = Settings {
        seconds: seconds as f64,
        n_runs: 1,
        seed: SEED,
        policy: Policy::default(),
        n_lost: 0,
        inter_token_target_ms: Some(u32::MAX),
        is_direct: true,
        n_threads: 1,
    };
    let report = simulate(replica, 1, load, &settings)?.report;
    Ok([report.first_token, report.gap, report.end_to_end])
}

/// Sends the requests of the simulation to the engine at their times, and waits for all of them.
async fn measured(running: &RunningModel, load: &Load, seconds: u64) -> Result<Summaries> {
    let capacity = running.engine.capacity();
    let duration = Nanos::from(Duration::from_secs(seconds));
    let mut workload = workload(load, capacity.max_sequence_tokens, duration, SEED)?;
    let begun = Instant::now();
    let mut tasks = Vec::new();
    while let Some(TimedRequest { at, request: wanted, .. }) = workload.next_request()? {
        let at = Duration::from_nanos(at.as_ns());
        tokio::time::sleep_until((begun + at).into()).await;
        let prompt = wanted.prompt_tokens(capacity.vocabulary_size);
        if prompt.len() >= capacity.max_sequence_tokens as usize {
            // It never fits, in the simulation either.
            continue;
        }
        let sent = Timestamp::from_ns(begun.elapsed().as_nanos() as u64);
        let stream = running.engine.submit(request(running, prompt, wanted.max_tokens)).context("--check")?;
        tasks.push(tokio::spawn(watched(stream, begun, TokenClock::new(sent))));
    }
    let mut latencies = LatencyStats::default();
    let warm_up = warm_up(seconds as f64);
    for task in tasks {
        let (clock, gaps) = task.await??;
        gaps.into_iter().for_each(|gap| latencies.gap.record(gap));
        if clock.sent().as_ns() >= warm_up.0 {
            latencies.record(&clock.end(clock.last().unwrap_or(clock.sent()), true));
        }
    }
    Ok([latencies.first_token.summary(), latencies.gap.summary(), latencies.end_to_end.summary()])
}

fn request(running: &RunningModel, prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    let sampling =
        SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() };
    Request::plain(running.engine.next_request_id(), prompt, sampling)
}

/// Notes the tokens of an answer, and the gaps between them.
async fn watched(
    mut stream: TokenStream,
    begun: Instant,
    mut clock: TokenClock,
) -> Result<(TokenClock, Vec<Nanos>)> {
    let mut gaps = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { .. } => {
                gaps.extend(clock.note(Timestamp::from_ns(begun.elapsed().as_nanos() as u64)));
            }
            StreamEvent::Finished { .. } => return Ok((clock, gaps)),
            StreamEvent::Failed { error } => bail!("the engine failed: {error}"),
            StreamEvent::Prompt { .. } => {}
        }
    }
    bail!("the engine stopped")
}

fn rows(share: f64, load: &Load, predicted: &Summaries, measured: &Summaries) -> Vec<[String; 5]> {
    let names = ["first token", "gap", "answer"];
    let mut rows = Vec::new();
    for (name, (predicted, measured)) in names.iter().zip(predicted.iter().zip(measured)) {
        let both = [("p50", predicted.p50_ms, measured.p50_ms), ("p99", predicted.p99_ms, measured.p99_ms)];
        for (percentile, predicted, measured) in both {
            rows.push([
                format!("{:.0} %, {:.2}/s", 100.0 * share, load.requests_per_s),
                format!("{name} {percentile}"),
                format!("{predicted:.2} ms"),
                format!("{measured:.2} ms"),
                format!("{:+.1} %", 100.0 * (predicted / measured - 1.0)),
            ]);
        }
    }
    rows
}
