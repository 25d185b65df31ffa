//! `throng bench URL`: an OpenAI-compatible server under load, at given rates, with given users, or until it
//! no longer keeps up.

use std::time::Duration;

use anyhow::{Result, bail};
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::distribution::Distribution;
use throng_sim::workload::{
    ArrivalProcess, ClosedLoop, OpenLoop, RequestShape, SessionShape, Sessions, Workload,
};

use crate::args::{BenchServerArgs, LoadKind, LoadTargetArgs};
use crate::load::{DriveOptions, LoadClient, LoadReport, Target, drive, table};
use crate::process::output;

/// First rate of a ramp without `--rate`.
const FIRST_RATE: f64 = 1.0;
/// Maximum number of runs of a ramp.
const MAX_RAMP_RUNS: usize = 16;
/// Runs between the highest rate that the server kept up with and the lowest that it did not.
const BISECTIONS: usize = 3;
/// Share of good answers, and of the request rate, that a server must reach at a load to be counted as
/// keeping up.
const KEEPS_UP: f64 = 0.95;

/// Runs the command.
///
/// # Errors
/// When the arguments contradict each other or the server does not answer.
pub async fn run(arguments: &BenchServerArgs) -> Result<()> {
    if arguments.load != LoadKind::Requests && (arguments.ramp || arguments.rate.is_empty()) {
        bail!("--load chat and --load agent begin sessions at a --rate, without --ramp");
    }
    let client = LoadClient::connect(target(&arguments.url, &arguments.target)).await?;
    output::note(format_args!("{}: {}", arguments.url, client.model()));
    let mut reports = Vec::new();
    if arguments.ramp {
        ramp(&client, arguments, &mut reports).await?;
    } else if arguments.rate.is_empty() {
        let users = if arguments.concurrency.is_empty() { &[1, 4, 16][..] } else { &arguments.concurrency };
        for n in users {
            let mut load = users_of(arguments, *n)?;
            let report = one(&client, arguments, format!("{n} users"), &mut *load).await?;
            tell(arguments, report, &mut reports)?;
        }
    } else {
        for rate in &arguments.rate {
            let report = at_rate(&client, arguments, *rate).await?;
            tell(arguments, report, &mut reports)?;
        }
    }
    if !arguments.target.json {
        output::line(table(&reports))?;
    }
    Ok(())
}

/// Server and model of these arguments.
pub fn target(url: &str, arguments: &LoadTargetArgs) -> Target {
    Target {
        url: url.to_owned(),
        model: arguments.model.clone(),
        api_key: arguments.api_key.clone(),
        api: arguments.api,
        ignore_eos: arguments.ignore_eos,
        timeout: Duration::from_secs_f64(arguments.timeout.min(1e9)),
    }
}

/// Objective of good answers of these arguments.
pub fn objective(arguments: &LoadTargetArgs) -> Objective {
    let ms = |ms: Option<f64>| ms.map(|ms| Nanos((ms * 1e6) as u64));
    Objective {
        first_token: ms(arguments.good_first_token),
        mean_gap: ms(arguments.good_gap),
        end_to_end: None,
    }
}

fn tell(arguments: &BenchServerArgs, report: LoadReport, reports: &mut Vec<LoadReport>) -> Result<()> {
    if arguments.target.json {
        output::line(serde_json::to_string(&report)?)?;
    } else {
        report.remarks().into_iter().for_each(output::note);
    }
    reports.push(report);
    Ok(())
}

/// Doubles the rate until the server no longer keeps up, then searches between the last two.
async fn ramp(client: &LoadClient, arguments: &BenchServerArgs, reports: &mut Vec<LoadReport>) -> Result<()> {
    let mut rate = arguments.rate.first().copied().unwrap_or(FIRST_RATE);
    let (mut kept, mut lost): (Option<f64>, Option<f64>) = (None, None);
    for _ in 0..MAX_RAMP_RUNS {
        let report = at_rate(client, arguments, rate).await?;
        let good = report.good_share() >= KEEPS_UP;
        // Answers that end after the last arrival stretch the time.
        let keeps_pace = report.requests_per_second * report.duration_s
            >= KEEPS_UP * rate * arguments.duration
            && report.duration_s <= arguments.duration / KEEPS_UP + 2.0 * report.end_to_end.p50_ms / 1e3;
        tell(arguments, report, reports)?;
        match good && keeps_pace {
            true => kept = Some(rate),
            false => lost = Some(rate),
        }
        rate = match (kept, lost) {
            (Some(kept), Some(lost)) if lost / kept < 1.0 + 1.0 / f64::from(1 << BISECTIONS) => break,
            (Some(kept), Some(lost)) => (kept + lost) / 2.0,
            (Some(kept), None) => 2.0 * kept,
            (None, Some(lost)) => lost / 2.0,
            (None, None) => break,
        };
    }
    match kept {
        Some(rate) => output::note(format_args!("the server keeps up with {rate:.2} requests a second")),
        None => output::note("the server keeps up with none of these rates"),
    }
    Ok(())
}

async fn at_rate(client: &LoadClient, arguments: &BenchServerArgs, rate: f64) -> Result<LoadReport> {
    let process = match arguments.burstiness {
        1.0 => ArrivalProcess::Poisson { rate },
        cv => ArrivalProcess::Gamma { rate, cv },
    };
    let seed = arguments.seed;
    let mut load: Box<dyn Workload> = match session(arguments) {
        None => Box::new(OpenLoop::new(process, shape(arguments), length(arguments), seed)?),
        Some(session) => Box::new(Sessions::new(process, session, length(arguments), seed)?),
    };
    one(client, arguments, format!("{rate}/s"), &mut *load).await
}

fn users_of(arguments: &BenchServerArgs, n: usize) -> Result<Box<dyn Workload>> {
    let n_users = u32::try_from(n)?;
    let think = Distribution::Constant(arguments.think.unwrap_or(0.0));
    let ramp = Nanos((arguments.warm_up * 0.5e9) as u64);
    let times = (ramp, length(arguments));
    Ok(Box::new(ClosedLoop::new(n_users, think, shape(arguments), times, arguments.seed)?))
}

async fn one(
    client: &LoadClient,
    arguments: &BenchServerArgs,
    name: String,
    load: &mut dyn Workload,
) -> Result<LoadReport> {
    let options = DriveOptions {
        name,
        objective: objective(&arguments.target),
        warm_up: Nanos((arguments.warm_up * 1e9) as u64),
        max_in_flight: arguments.target.max_in_flight,
        keeps_answers: arguments.load != LoadKind::Requests,
    };
    drive(client, load, &options).await
}

/// Duration of a run, warm-up included.
fn length(arguments: &BenchServerArgs) -> Nanos {
    Nanos(((arguments.warm_up + arguments.duration) * 1e9) as u64)
}

fn shape(arguments: &BenchServerArgs) -> RequestShape {
    let constant = |n: u32| Distribution::Constant(f64::from(n));
    let own = arguments.prompt_tokens.saturating_sub(arguments.shared_prefix);
    RequestShape {
        shared_prefix: arguments.shared_prefix,
        ..RequestShape::new(constant(own), constant(arguments.generate_tokens))
    }
}

fn session(arguments: &BenchServerArgs) -> Option<SessionShape> {
    let shape = match arguments.load {
        LoadKind::Requests => return None,
        LoadKind::Chat => SessionShape::chat(),
        LoadKind::Agent => SessionShape::agent(),
    };
    let think_s = arguments.think.map_or(shape.think_s, Distribution::Constant);
    Some(SessionShape { think_s, ..shape })
}
