//! `throng bench`: the engine without HTTP, by number of users, as llama-batched-bench measures.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use throng_core::request::{Priority, Request, SamplingParams, TenantId, TokenId};
use throng_engine::{StreamEvent, TokenStream};

use crate::args::BenchArgs;
use crate::config::{EngineSection, ModelSection};
use crate::running::{self, RunningModel};
use crate::step_shares::StepShares;

/// One line of the result.
#[derive(Debug, Serialize)]
struct Measured {
    concurrency: u32,
    prompt_tokens: u32,
    generate_tokens: u32,
    shared_prefix: u32,
    /// Until the last user has its first token.
    prefill_s: f64,
    prefill_tokens_per_s: f64,
    /// From then on.
    decode_s: f64,
    decode_tokens_per_s: f64,
    total_s: f64,
    total_tokens_per_s: f64,
    /// Where the time of a step went in which all users decoded; absent when there was none.
    decode_step: Option<StepShares>,
}

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded or the sizes do not fit it.
pub async fn run(arguments: &BenchArgs) -> Result<()> {
    if arguments.prompt_tokens == 0 || arguments.generate_tokens < 2 {
        bail!("--prompt-tokens must be at least 1 and --generate-tokens at least 2");
    }
    let section = ModelSection::of(&arguments.model);
    let mut engine = EngineSection::of(&arguments.model);
    // Prefill and decode are measured apart, so no chunk is cut for the sake of someone's next token.
    engine.inter_token_target_ms = Some(u32::MAX);
    let most_users = arguments.concurrency.iter().copied().max().unwrap_or(1);
    engine.max_batch_rows = engine.max_batch_rows.max(Some(most_users));
    let running = running::start(&section, &engine)?;
    eprintln!("{}: {} threads", running.names[0], running::n_threads(&section));
    eprintln!("{}", running.describe_kv_cache());
    measure(&running, &warm_up(arguments), 1, u64::MAX).await?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "users",
        "prefill s",
        "prefill tok/s",
        "decode s",
        "decode tok/s",
        "total tok/s",
        "decode step ms",
        "not forward %",
    ]);
    for (i, &concurrency) in arguments.concurrency.iter().enumerate() {
        let measured = measure(&running, arguments, concurrency, i as u64).await?;
        if arguments.json {
            println!("{}", serde_json::to_string(&measured)?);
        }
        table.add_row([
            concurrency.to_string(),
            format!("{:.2}", measured.prefill_s),
            format!("{:.1}", measured.prefill_tokens_per_s),
            format!("{:.2}", measured.decode_s),
            format!("{:.1}", measured.decode_tokens_per_s),
            format!("{:.1}", measured.total_tokens_per_s),
            measured.decode_step.map_or_else(String::new, |step| format!("{:.2}", step.step_ms)),
            measured.decode_step.map_or_else(String::new, |step| format!("{:.2}", step.not_forward_percent)),
        ]);
    }
    if !arguments.json {
        println!("{table}");
    }
    Ok(())
}

/// A run that touches every weight and wakes every thread, and needs no long prompt for it.
fn warm_up(arguments: &BenchArgs) -> BenchArgs {
    BenchArgs {
        prompt_tokens: arguments.prompt_tokens.min(512),
        generate_tokens: arguments.generate_tokens.min(8),
        ..arguments.clone()
    }
}

/// Runs `concurrency` users at once, with prompts that differ from round to round.
async fn measure(
    running: &RunningModel,
    arguments: &BenchArgs,
    concurrency: u32,
    round: u64,
) -> Result<Measured> {
    let mut draw = fastrand::Rng::with_seed(round);
    let vocabulary = running.engine.capacity().vocabulary_size;
    let n_shared = arguments.shared_prefix.min(arguments.prompt_tokens);
    let shared: Vec<TokenId> = (0..n_shared).map(|_| draw.u32(0..vocabulary)).collect();
    let n_steps_before = running.engine.stats().scheduler.counters.steps;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..concurrency {
        let own = (n_shared..arguments.prompt_tokens).map(|_| draw.u32(0..vocabulary));
        let prompt: Vec<TokenId> = shared.iter().copied().chain(own).collect();
        let stream = running.engine.submit(request(running, prompt, arguments))?;
        tasks.push(tokio::spawn(arrivals(stream)));
    }
    let mut users = Vec::new();
    for task in tasks {
        users.push(task.await??);
    }
    let all_started = users.iter().filter_map(|times| times.first().copied()).fold(started, Instant::max);
    let ended = users.iter().filter_map(|times| times.last().copied()).fold(started, Instant::max);
    let n_prompt = f64::from(concurrency) * f64::from(arguments.prompt_tokens);
    let n_output: usize = users.iter().map(Vec::len).sum();
    let n_decoded = users.iter().flatten().filter(|&&at| at > all_started).count();
    let prefill_s = (all_started - started).as_secs_f64();
    let decode_s = (ended - all_started).as_secs_f64();
    let total_s = (ended - started).as_secs_f64();
    let mut log = running.engine.step_log();
    log.retain(|step| step.number >= n_steps_before);
    Ok(Measured {
        decode_step: StepShares::of_decode(&log, concurrency),
        concurrency,
        prompt_tokens: arguments.prompt_tokens,
        generate_tokens: arguments.generate_tokens,
        shared_prefix: n_shared,
        prefill_s,
        prefill_tokens_per_s: n_prompt / prefill_s,
        decode_s,
        decode_tokens_per_s: n_decoded as f64 / decode_s.max(1e-9),
        total_s,
        total_tokens_per_s: (n_prompt + n_output as f64) / total_s,
    })
}

fn request(running: &RunningModel, prompt: Vec<TokenId>, arguments: &BenchArgs) -> Request {
    let id = running.engine.next_request_id();
    let sampling = SamplingParams {
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        top_k: arguments.top_k,
        seed: id.0,
        max_tokens: arguments.generate_tokens,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request {
        id,
        tenant: TenantId::anonymous(),
        cache_salt: None,
        prompt: prompt.into(),
        n: 1,
        priority: Priority::default(),
        sampling: Arc::new(sampling),
    }
}

/// When each output token came.
async fn arrivals(mut stream: TokenStream) -> Result<Vec<Instant>> {
    let mut times = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { .. } => times.push(Instant::now()),
            StreamEvent::Finished { .. } => return Ok(times),
            StreamEvent::Failed { error } => bail!("the engine failed: {error}"),
            StreamEvent::Prompt { .. } => {}
        }
    }
    bail!("the engine stopped")
}
