//! `throng calibrate`: measures steps of many shapes on a local engine and fits their durations, for
//! `throng plan --calibration`.

mod check;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use throng_core::request::{Request, SamplingParams, TokenId};
use throng_engine::{StreamEvent, TokenStream};
use throng_plan::cost::Calibration;
use throng_plan::cost::calibration::StepSample;
use throng_plan::replica::Batching;
use throng_sim::cost::StepShape;

use crate::args::CalibrateArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running::{self, RunningModel};

/// Number of tokens that each request generates, so that there are steps of decoding alone.
const OUTPUT_TOKENS: u32 = 24;

/// Number of first rounds whose steps do not count: threads are started, weights are read into memory.
const WARM_UP_ROUNDS: u64 = 2;

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, or too few steps were measured.
pub async fn run(arguments: &CalibrateArgs) -> Result<()> {
    let mut model = arguments.model.clone();
    // Guesses would make tokens of a step depend on the text.
    model.no_speculation = true;
    let section = ModelSection::of(&model);
    let mut engine = EngineSection::of(&model);
    engine.inter_token_target_ms = Some(u32::MAX);
    engine.max_batch_sequences = Some(arguments.most_users);
    let running = running::start(&section, &engine)?;
    let name = format!("{} on {} threads", running.names[0], running::n_threads(&section));
    let steps = measure(arguments, &running).await?;
    let calibration = Calibration::fit(&name, &steps)?;
    write(&arguments.output, &calibration)?;
    output::line(describe(&calibration))?;
    output::note(format_args!("throng plan --calibration {} uses it", arguments.output.display()));
    if let Some(seconds) = arguments.check {
        let batching = Batching {
            max_sequences: arguments.most_users,
            max_batch_tokens: engine.scheduler().max_batch_tokens,
            speculation: None,
        };
        let most_prompt = most_prompt(arguments, &running)?;
        check::run(&running, calibration, batching, most_prompt, seconds).await?;
    }
    Ok(())
}

fn write(path: &Path, calibration: &Calibration) -> Result<()> {
    let text = serde_json::to_string_pretty(calibration)?;
    std::fs::write(path, text + "\n").with_context(|| format!("--output {}", path.display()))
}

fn describe(calibration: &Calibration) -> String {
    let Calibration { name, n_fitted, n_tested, error, sequences, tokens, pairs, .. } = calibration;
    format!(
        "{name}: fitted {n_fitted} steps, tested on {n_tested} others: median error {:.1} %, 90 % below {:.1} %\n\
         a step: {:.3} ms + the longer of {:.3} ms and {:.4} ms a token, {:.4} ms a sequence, {:.4} ms a row of logits, \
         {:.3} ns a pair\n\
         measured: {:.0} to {:.0} sequences, {:.0} to {:.0} tokens, {:.0} to {:.0} pairs of a token and a position",
        100.0 * error.median,
        100.0 * error.p90,
        1e3 * calibration.fixed_s,
        1e3 * calibration.reading_s,
        1e3 * calibration.token_s,
        1e3 * calibration.sequence_s,
        1e3 * calibration.logits_s,
        1e9 * calibration.pair_s,
        sequences.low,
        sequences.high,
        tokens.low,
        tokens.high,
        pairs.low,
        pairs.high,
    )
}

/// Maximum number of tokens of a prompt: as many as the arguments and the model's context allow.
fn most_prompt(arguments: &CalibrateArgs, running: &RunningModel) -> Result<u32> {
    let context = running.engine.capacity().max_sequence_tokens;
    match context.saturating_sub(OUTPUT_TOKENS).min(arguments.most_prompt_tokens) {
        0 => bail!("the model's context of {context} tokens is too short to calibrate"),
        most => Ok(most),
    }
}

/// Runs rounds of requests until the time is over, and gathers the steps of the engine's log.
async fn measure(arguments: &CalibrateArgs, running: &RunningModel) -> Result<Vec<StepSample>> {
    let capacity = running.engine.capacity();
    let most_users = capacity.max_batch_sequences.min(arguments.most_users);
    let most_prompt = most_prompt(arguments, running)?;
    let mut draw = fastrand::Rng::with_seed(1);
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let (mut steps, mut next_step, mut round) = (Vec::new(), 0, 0);
    while Instant::now() < until || round <= WARM_UP_ROUNDS {
        // Sizes that are evenly spread over orders of magnitude.
        let size = |most: u32, share: f64| f64::from(most.max(1)).powf(share).round() as u32;
        let n_users = size(most_users, draw.f64());
        let n_prompt = size(most_prompt, draw.f64());
        let mut tasks = Vec::new();
        for _ in 0..n_users {
            let prompt: Vec<TokenId> = (0..n_prompt).map(|_| draw.u32(0..capacity.vocabulary_size)).collect();
            let stream = running.engine.submit(request(running, prompt))?;
            tasks.push(tokio::spawn(finished(stream)));
        }
        for task in tasks {
            task.await??;
        }
        let log = running.engine.step_log();
        let new = log.iter().filter(|step| step.number >= next_step && step.succeeded && step.n_tokens > 0);
        if round >= WARM_UP_ROUNDS {
            steps.extend(new.map(|step| StepSample {
                shape: StepShape {
                    n_sequences: step.n_sequences,
                    n_tokens: step.n_tokens,
                    n_logits: step.n_sampled,
                    n_attention_pairs: step.n_attended,
                    ..StepShape::default()
                },
                seconds: step.duration.as_secs_f64(),
            }));
        }
        next_step = log.last().map_or(next_step, |step| step.number + 1);
        round += 1;
    }
    Ok(steps)
}

fn request(running: &RunningModel, prompt: Vec<TokenId>) -> Request {
    let id = running.engine.next_request_id();
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: OUTPUT_TOKENS,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request::plain(id, prompt, sampling)
}

async fn finished(mut stream: TokenStream) -> Result<()> {
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Finished { .. } => return Ok(()),
            StreamEvent::Failed { error } => bail!("the engine failed: {error}"),
            StreamEvent::Token { .. } | StreamEvent::Prompt { .. } => {}
        }
    }
    bail!("the engine stopped")
}
