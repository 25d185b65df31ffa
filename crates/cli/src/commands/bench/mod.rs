//! `throng bench`: measures the engine without HTTP by number of users, as llama-batched-bench does, and
//! prints each figure beside its share of the machine's limits. Does not know how limits are measured.

mod constraint;
mod limits;
mod machine;
mod phases;
mod replay;
mod report;
mod server;
mod speculation;

use std::time::Instant;

use anyhow::{Result, bail};
use throng_core::request::{Request, SamplingParams, TokenId};
use throng_core::scheduling::forward_work::{ForwardWork, Work};
use throng_engine::{StreamEvent, TokenStream};
use throng_model::adapter::{AdapterLimits, LoadedAdapter, RandomAdapter};

use crate::args::{BenchArgs, BenchInstead};
use crate::config::{EngineSection, ModelSection};
use crate::kv_budget::show;
use crate::process::output;
use crate::running::{self, RunningModel};
use crate::step_shares::StepShares;
use constraint::Form;
use limits::Limits;
use phases::Arrived;
use report::{Line, Measured, Share, StartUp};
pub use server::{objective, target};

/// A running model, and the machine's limits to compare its figures with.
struct Bench<'a> {
    running: &'a RunningModel,
    max_batch_tokens: u32,
    work: ForwardWork,
    limits: Option<Limits>,
    form: Option<Form>,
    /// Adapters that users take in turn.
    adapters: Vec<LoadedAdapter>,
}

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded or the sizes do not fit it.
pub async fn run(arguments: &BenchArgs) -> Result<()> {
    match &arguments.instead {
        Some(BenchInstead::Machine(arguments)) => return machine::run(arguments),
        Some(BenchInstead::Server(arguments)) => return server::run(arguments).await,
        None => {}
    }
    if arguments.prompt_tokens == 0 || arguments.generate_tokens < 2 {
        bail!("--prompt-tokens must be at least 1 and --generate-tokens at least 2");
    }
    if let Some(acceptance) = arguments.speculative_acceptance {
        return speculation::run(arguments, f64::from(acceptance)).await;
    }
    let section = ModelSection::of(&arguments.model);
    let mut engine = EngineSection::of(&arguments.model);
    // Prefill and decode are measured separately, so prefill chunks need no limit for the latency of decoding users.
    engine.inter_token_target_ms = Some(u32::MAX);
    let most_users = arguments.concurrency.iter().copied().max().unwrap_or(1);
    engine.max_batch_sequences = engine.max_batch_sequences.max(Some(most_users));
    let running = running::start(&section, &engine)?;
    let start_up = StartUp::of(&running);
    let work = running.model.forward_work(running.kv_dtype);
    let n_threads = running::n_threads(&section);
    let limits = match running.compute.is_device() {
        _ if arguments.no_limits => None,
        true => Limits::of_device(&running.compute, section.device)?,
        false => Limits::measure(n_threads, work.step_bytes()),
    };
    output::note(format_args!("{}: {n_threads} threads", running.names[0]));
    if let Some(line) = running.describe_quantizing() {
        output::note(line);
    }
    output::note(running.describe_kv_cache());
    output::note(start_up.describe());
    limits.iter().for_each(|limits| output::note(report::describe(limits)));
    let max_batch_tokens = engine.scheduler().max_batch_tokens;
    let form = arguments.constraint.map(|form| Form::new(&running, form)).transpose()?;
    let adapters = random_adapters(&running, arguments)?;
    let bench = Bench { running: &running, max_batch_tokens, work, limits, form, adapters };
    bench.measure(&warm_up(arguments), 1, u64::MAX).await?;
    let mut table = report::table();
    for (i, &concurrency) in arguments.concurrency.iter().enumerate() {
        let measured = bench.measure(arguments, concurrency, i as u64).await?;
        table.add_row(report::row(&measured));
        if arguments.json {
            let line = Line { measured, start_up, limits: bench.limits.as_ref() };
            output::line(serde_json::to_string(&line)?)?;
        }
    }
    if !arguments.json {
        output::line(table)?;
    }
    Ok(())
}

/// A short warm-up run that touches every weight and wakes every thread.
fn warm_up(arguments: &BenchArgs) -> BenchArgs {
    BenchArgs {
        prompt_tokens: arguments.prompt_tokens.min(512),
        generate_tokens: arguments.generate_tokens.min(8),
        ..arguments.clone()
    }
}

impl Bench<'_> {
    /// Runs `concurrency` users at once, with prompts that differ from round to round.
    async fn measure(&self, arguments: &BenchArgs, concurrency: u32, round: u64) -> Result<Measured> {
        let running = self.running;
        let mut draw = fastrand::Rng::with_seed(round);
        let vocabulary = running.engine.capacity().vocabulary_size;
        let n_shared = arguments.shared_prefix.min(arguments.prompt_tokens);
        let shared: Vec<TokenId> = (0..n_shared).map(|_| draw.u32(0..vocabulary)).collect();
        let n_steps_before = running.engine.stats().scheduler.counters.steps;
        let started = Instant::now();
        let mut tasks = Vec::new();
        for user in 0..concurrency as usize {
            let own = (n_shared..arguments.prompt_tokens).map(|_| draw.u32(0..vocabulary));
            let prompt: Vec<TokenId> = shared.iter().copied().chain(own).collect();
            let adapter = self.adapters.get(user % self.adapters.len().max(1)).map(LoadedAdapter::adapter);
            let mut request = Request { adapter, ..request(running, prompt, arguments) };
            request.constraint = self.form.as_ref().map(Form::of_request).transpose()?;
            let stream = running.engine.submit(request)?;
            tasks.push(tokio::spawn(arrivals(stream)));
        }
        let mut users = Vec::new();
        for task in tasks {
            users.push(task.await??.times);
        }
        let all_started = users.iter().filter_map(|times| times.first().copied()).fold(started, Instant::max);
        let ended = users.iter().filter_map(|times| times.last().copied()).fold(started, Instant::max);
        let early = |times: &[Instant]| times.iter().filter(|&&at| at <= all_started).count() as u64;
        let arrived = |times: &Vec<Instant>| Arrived { early: early(times), total: times.len() as u64 };
        let arrived: Vec<Arrived> = users.iter().map(arrived).collect();
        let n_output: u64 = arrived.iter().map(|user| user.total).sum();
        let n_decoded: u64 = arrived.iter().map(|user| user.total - user.early).sum();
        let n_own = u64::from(concurrency) * u64::from(arguments.prompt_tokens - n_shared);
        let prefill =
            phases::prefill(&self.work, u64::from(n_shared) + n_own, &arrived, self.max_batch_tokens);
        let decode = phases::decode(&self.work, arguments.prompt_tokens, &arrived);
        let n_prompt = f64::from(concurrency) * f64::from(arguments.prompt_tokens);
        let prefill_s = (all_started - started).as_secs_f64();
        let decode_s = (ended - all_started).as_secs_f64().max(1e-9);
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
            prefill_limit: self.share(&prefill, n_prompt, prefill_s),
            decode_s,
            decode_tokens_per_s: n_decoded as f64 / decode_s,
            decode_limit: self.share(&decode, n_decoded as f64, decode_s),
            total_s,
            total_tokens_per_s: (n_prompt + n_output as f64) / total_s,
        })
    }

    /// The share of the machine's limit that `n_tokens` tokens in `seconds` reach, if they need this work.
    fn share(&self, work: &Work, n_tokens: f64, seconds: f64) -> Option<Share> {
        let (least_s, binding) = self.limits.as_ref()?.least_seconds(work);
        (n_tokens > 0.0).then(|| Share {
            int8_operations: work.int8_operations,
            bf16_operations: work.bf16_operations,
            f32_operations: work.f32_operations,
            bytes: work.bytes,
            binding,
            tokens_per_s: n_tokens / least_s,
            share: least_s / seconds,
        })
    }
}

/// Random adapters of the benchmark; they are in memory while the result is held.
fn random_adapters(running: &RunningModel, arguments: &BenchArgs) -> Result<Vec<LoadedAdapter>> {
    let (n, rank) = (arguments.adapters, arguments.adapter_rank);
    let limits = AdapterLimits { max_adapters: n as usize, max_rank: rank, max_bytes: usize::MAX };
    let adapter = |seed| {
        let random = RandomAdapter { rank, seed };
        Ok(running.compute.load_random_adapter(&running.model, random, limits)?)
    };
    let adapters: Vec<LoadedAdapter> = (0..u64::from(n)).map(adapter).collect::<Result<_>>()?;
    if let Some(first) = adapters.first() {
        output::note(format_args!("{n} adapters of rank {rank}, {} each", show(first.n_bytes as u64)));
    }
    Ok(adapters)
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
    Request::plain(id, prompt, sampling)
}

/// The output tokens of a request and the time at which each arrived.
#[derive(Debug, Default)]
struct Arrivals {
    tokens: Vec<TokenId>,
    times: Vec<Instant>,
}

async fn arrivals(mut stream: TokenStream) -> Result<Arrivals> {
    let mut arrived = Arrivals::default();
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Token { report, .. } => {
                arrived.tokens.push(report.chosen.token);
                arrived.times.push(Instant::now());
            }
            StreamEvent::Finished { .. } => return Ok(arrived),
            StreamEvent::Failed { error } => bail!("the engine failed: {error}"),
            StreamEvent::Prompt { .. } => {}
        }
    }
    bail!("the engine stopped")
}
