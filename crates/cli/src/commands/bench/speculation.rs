//! `throng bench --speculative-acceptance P`: cost and gain of speculative decoding if each draft is
//! accepted with probability P. Each round decodes the same prompts without and with drafts. Does not know
//! how drafts are verified.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;
use throng_core::request::{Request, SamplingParams, TokenId};
use throng_core::scheduling::scheduler::Counters;

use super::replay::{KnownOutputs, Replay};
use super::{Arrivals, arrivals, request};
use crate::args::BenchArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running::{self, RunningModel};
use crate::speculation::SpeculationSection;

/// One line of the result: medians over the rounds.
#[derive(Debug, Serialize)]
struct Compared {
    concurrency: u32,
    rounds: u32,
    decode_tokens_per_s_off: f64,
    decode_tokens_per_s_on: f64,
    /// Ratio of the speed with drafts to that without: median over the rounds, minimum, maximum.
    ratio: [f64; 3],
    /// Mean number of draft tokens, over the steps of sequences that had drafts.
    drafts_per_step: f64,
    /// Share of all sequences' steps that had drafts.
    drafted_share: f64,
    accepted_share: f64,
}

/// One round with or without drafts.
struct Run {
    tokens_per_s: f64,
    outputs: Vec<Vec<TokenId>>,
    drafts: Counters,
}

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, the sizes do not fit it, or an output depends on speculation.
pub async fn run(arguments: &BenchArgs, acceptance: f64) -> Result<()> {
    let section = ModelSection::of(&arguments.model);
    let mut engine = EngineSection::of(&arguments.model);
    engine.inter_token_target_ms = Some(u32::MAX);
    let most_users = arguments.concurrency.iter().copied().max().unwrap_or(1);
    engine.max_batch_sequences = engine.max_batch_sequences.max(Some(most_users));
    engine.speculation = SpeculationSection {
        method: Some("draft_model".into()),
        num_speculative_tokens: Some(arguments.speculative_tokens),
        model: engine.speculation.model.take(),
        ..SpeculationSection::default()
    };
    let known = KnownOutputs::default();
    let shared = known.clone();
    let replay = move |draft_model| -> Option<Box<dyn throng_core::scheduling::executor::Executor>> {
        Some(Box::new(Replay::new(shared.clone(), acceptance, draft_model)))
    };
    let running = running::start_with(&section, &engine, (Box::new(replay), None), &mut |_| {})?;
    let bench = Bench { running: &running, known, arguments };
    bench.compare(1, u64::MAX, 1).await?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["users", "off tok/s", "on tok/s", "ratio", "spread", "drafts", "accepted %"]);
    for (i, &concurrency) in arguments.concurrency.iter().enumerate() {
        let compared = bench.compare(concurrency, i as u64, arguments.rounds).await?;
        if arguments.json {
            output::line(serde_json::to_string(&compared)?)?;
        }
        table.add_row(row(&compared));
    }
    if !arguments.json {
        output::line(table)?;
    }
    Ok(())
}

struct Bench<'a> {
    running: &'a RunningModel,
    known: KnownOutputs,
    arguments: &'a BenchArgs,
}

impl Bench<'_> {
    /// Runs the same prompts without and with drafts, `n_rounds` times.
    async fn compare(&self, concurrency: u32, seed: u64, n_rounds: u32) -> Result<Compared> {
        let (mut off, mut on, mut ratios, mut drafts) =
            (Vec::new(), Vec::new(), Vec::new(), Counters::default());
        let mut n_tokens = 0;
        for round in 0..u64::from(n_rounds) {
            let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(round));
            let vocabulary = self.running.engine.capacity().vocabulary_size;
            let prompt = |_| (0..self.arguments.prompt_tokens).map(|_| rng.u32(0..vocabulary)).collect();
            let prompts: Vec<Vec<TokenId>> = (0..concurrency).map(prompt).collect();
            let without = self.run(&prompts, None).await?;
            let with = self.run(&prompts, Some(&without.outputs)).await?;
            if with.outputs != without.outputs {
                bail!("an output depends on speculation");
            }
            off.push(without.tokens_per_s);
            on.push(with.tokens_per_s);
            ratios.push(with.tokens_per_s / without.tokens_per_s);
            n_tokens += with.outputs.iter().map(Vec::len).sum::<usize>() as u64;
            drafts.drafts += with.drafts.drafts;
            drafts.draft_tokens += with.drafts.draft_tokens;
            drafts.accepted_draft_tokens += with.drafts.accepted_draft_tokens;
        }
        for all in [&mut off, &mut on, &mut ratios] {
            all.sort_by(f64::total_cmp);
        }
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let median = |all: &[f64]| all[all.len() / 2];
        Ok(Compared {
            concurrency,
            rounds: n_rounds,
            decode_tokens_per_s_off: median(&off),
            decode_tokens_per_s_on: median(&on),
            ratio: [median(&ratios), ratios[0], ratios[ratios.len() - 1]],
            drafts_per_step: share(drafts.draft_tokens, drafts.drafts),
            drafted_share: share(drafts.drafts, n_tokens - drafts.accepted_draft_tokens),
            accepted_share: share(drafts.accepted_draft_tokens, drafts.draft_tokens),
        })
    }

    /// Runs the prompts; with drafts if the outputs are given.
    async fn run(&self, prompts: &[Vec<TokenId>], outputs: Option<&[Vec<TokenId>]>) -> Result<Run> {
        let engine = &self.running.engine;
        let before = engine.stats().scheduler.counters;
        let mut tasks = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let mut request = request(self.running, prompt.clone(), self.arguments);
            // A salt of its own keeps the request from hitting the prefix cache of earlier runs.
            request.cache_salt = Some(format!("{}", request.id.0).into());
            match outputs {
                Some(outputs) => self.known.set(request.id, outputs[i].clone()),
                None => request.sampling = without_drafts(&request),
            }
            tasks.push(tokio::spawn(arrivals(engine.submit(request)?)));
        }
        let started = Instant::now();
        let mut users: Vec<Arrivals> = Vec::new();
        for task in tasks {
            users.push(task.await??);
        }
        self.known.clear();
        let first = |user: &Arrivals| user.times.first().copied();
        let all_started = users.iter().filter_map(first).fold(started, Instant::max);
        let ended = users.iter().filter_map(|user| user.times.last().copied()).fold(started, Instant::max);
        let n_decoded = users.iter().flat_map(|user| &user.times).filter(|&&at| at > all_started).count();
        let after = engine.stats().scheduler.counters;
        Ok(Run {
            tokens_per_s: n_decoded as f64 / (ended - all_started).as_secs_f64().max(1e-9),
            outputs: users.into_iter().map(|user| user.tokens).collect(),
            drafts: Counters {
                drafts: after.drafts - before.drafts,
                draft_tokens: after.draft_tokens - before.draft_tokens,
                accepted_draft_tokens: after.accepted_draft_tokens - before.accepted_draft_tokens,
                ..Counters::default()
            },
        })
    }
}

fn without_drafts(request: &Request) -> Arc<SamplingParams> {
    Arc::new(SamplingParams { max_draft_tokens: 0, ..(*request.sampling).clone() })
}

fn row(compared: &Compared) -> [String; 7] {
    let [ratio, least, most] = compared.ratio;
    [
        compared.concurrency.to_string(),
        format!("{:.1}", compared.decode_tokens_per_s_off),
        format!("{:.1}", compared.decode_tokens_per_s_on),
        format!("{ratio:.2}"),
        format!("{least:.2}–{most:.2} of {}", compared.rounds),
        format!("{:.1} in {:.0} % of steps", compared.drafts_per_step, 100.0 * compared.drafted_share),
        format!("{:.0}", 100.0 * compared.accepted_share),
    ]
}
