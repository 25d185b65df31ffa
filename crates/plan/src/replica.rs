//! A replica under a steady load, in closed form: the size of its batches, its step, its waiting times.
//!
//! In a steady state the requests that arrive during one step bring the prompt tokens of one step, and as
//! many sequences run as arrive while one is answered. Both depend on the step's duration and determine it:
//! the solution is the smallest duration that is consistent with itself.

use std::sync::Arc;

use throng_sim::cost::StepShape;

use crate::cost::StepCost;
use crate::error::{PlanError, positive, share};
use crate::load::{Load, Z99};
use crate::memory::MemoryPlan;
use crate::model_shape::ModelShape;
use crate::queueing::{mean_wait, mean_wait_of, mean_wait_p99, wait_p99};

/// Maximum number of rounds in the search for a step's duration.
const MAX_ROUNDS: u32 = 2000;

/// Maximum number of sequences of a step, and of all lanes together.
const MAX_SEQUENCES: u32 = 65_536;

/// Maximum number of tokens of a step.
const MAX_TOKENS: u32 = 1 << 20;

/// Maximum number of drafts of a sequence in a step.
const MAX_DRAFTS: u32 = 64;

/// Halvings of the interval in which the highest rate lies.
const RATE_HALVINGS: u32 = 40;

/// Phases of requests that a replica computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Computes prompts and answers.
    Both,
    /// Prompts alone; keys and values go to another replica.
    Prefill,
    /// Computes answers only.
    Decode,
}

/// Drafts, of which a share is accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speculation {
    /// Drafts of a sequence in a step.
    pub n_drafts: u32,
    /// Probability that a draft is accepted if those before it are.
    pub acceptance: f64,
}

impl Speculation {
    /// Mean number of tokens of a sequence and step: the right drafts before the first wrong one, and one.
    pub fn tokens_per_step(&self) -> f64 {
        (0..=self.n_drafts.min(MAX_DRAFTS)).map(|n| self.acceptance.powi(n as i32)).sum()
    }
}

/// Bounds of batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batching {
    /// Maximum number of sequences of a step.
    pub max_sequences: u32,
    /// Maximum tokens of a step; prompts are cut to the room that is left.
    pub max_batch_tokens: u32,
    /// Speculation, if any.
    pub speculation: Option<Speculation>,
}

/// Times that 99 of 100 requests, or gaps between tokens, must meet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Targets {
    /// Seconds to the first token.
    pub first_token_s: Option<f64>,
    /// Seconds between two tokens.
    pub gap_s: Option<f64>,
}

/// A time's mean and the value that 1 % exceed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// Mean of the times.
    pub mean: f64,
    /// The value that 1 % exceed.
    pub p99: f64,
}

/// A replica under a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steady {
    /// Duration of a step in seconds.
    pub step_s: f64,
    /// Number of decoding sequences.
    pub n_running: f64,
    /// Maximum number of sequences that may run: by the bound of batches or by memory.
    pub max_running: f64,
    /// Number of prompt tokens that are computed in a step.
    pub n_prompt_tokens: f64,
    /// Seconds to the first token.
    pub first_token: Times,
    /// Seconds between two tokens.
    pub gap: Times,
    /// Seconds to the end of an answer of mean length.
    pub answer_s: f64,
    /// Share of the memory for keys and values that is used.
    pub cache_share: f64,
}

impl Steady {
    /// Whether it meets targets.
    pub fn meets(&self, targets: &Targets) -> bool {
        let within = |time: f64, target: Option<f64>| target.is_none_or(|target| time <= target);
        within(self.first_token.p99, targets.first_token_s) && within(self.gap.p99, targets.gap_s)
    }
}

/// A model on devices, with the cost of its steps.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Name of the replica in reports: machine and parallelism.
    pub name: String,
    /// Shape of the model.
    pub model: ModelShape,
    /// Cost model of steps.
    pub cost: Arc<dyn StepCost>,
    /// Memory of each device.
    pub memory: MemoryPlan,
    /// Bounds of batches.
    pub batching: Batching,
    /// Phases that the replica computes.
    pub role: Role,
    /// Number of steps of other sequences that run at the same time: stages of a pipeline.
    pub n_lanes: u32,
    /// Bytes per second of keys and values from the host's memory, or from prefill replicas.
    pub transfer_bytes_per_s: Option<f64>,
    /// Number of devices.
    pub n_devices: u32,
}

impl Replica {
    /// Checks the bounds of batches and of drafts.
    ///
    /// # Errors
    /// When a number is invalid; the error names it.
    pub fn check(&self) -> Result<(), PlanError> {
        let Batching { max_sequences, max_batch_tokens, speculation } = self.batching;
        if max_sequences == 0 || max_sequences.saturating_mul(self.n_lanes) > MAX_SEQUENCES {
            let expected = "expected 1 to 65536, in all stages of a pipeline together";
            return Err(PlanError::value("sequences of a step", max_sequences, expected));
        }
        if !(1..=MAX_TOKENS).contains(&max_batch_tokens) {
            return Err(PlanError::value("tokens of a step", max_batch_tokens, "expected 1 to 1048576"));
        }
        if let Some(speculation) = speculation {
            if speculation.n_drafts > MAX_DRAFTS {
                return Err(PlanError::value(
                    "drafts of a step",
                    speculation.n_drafts,
                    "expected at most 64",
                ));
            }
            share("the share of drafts that are right", speculation.acceptance)?;
        }
        Ok(())
    }

    /// Maximum number of sequences of this load at once: by the bound of batches of all lanes, or by memory.
    pub fn max_running(&self, load: &Load) -> f64 {
        let resident = (load.prompt.mean + load.output.mean).ceil() as u64;
        let bound = f64::from(self.batching.max_sequences) * f64::from(self.n_lanes);
        self.memory.n_sequences(&self.model, resident).min(bound)
    }

    /// Tokens that a sequence adds in a step, and rows of the batch that it takes.
    fn tokens_and_rows(&self) -> (f64, f64) {
        let of = |drafts: Speculation| (drafts.tokens_per_step(), f64::from(drafts.n_drafts) + 1.0);
        self.batching.speculation.map_or((1.0, 1.0), of)
    }

    /// A step of sequences that decode, and of prompt tokens.
    fn step(&self, n_running: f64, prompt_tokens: f64, load: &Load) -> StepShape {
        let (_, rows) = self.tokens_and_rows();
        let context = load.decode_context();
        let n_prompts = (prompt_tokens / load.computed(load.prompt.mean)).ceil();
        let n_running = if n_running + prompt_tokens > 0.0 { n_running } else { 1.0 }.ceil();
        let seen = load.prompt.mean - load.computed(load.prompt.mean) / 2.0;
        let Batching { max_sequences, max_batch_tokens, .. } = self.batching;
        StepShape {
            n_sequences: ((n_running + n_prompts) as u32).min(max_sequences),
            n_tokens: ((n_running * rows + prompt_tokens).ceil() as u32).min(max_batch_tokens),
            n_prompt_tokens: prompt_tokens.ceil() as u32,
            n_logits: (n_running * rows + n_prompts).ceil() as u32,
            n_context_tokens: (n_running * context + n_prompts * seen) as u64,
            n_attention_pairs: (n_running * rows * context + prompt_tokens * seen) as u64,
        }
    }

    /// Seconds of a step with these numbers.
    ///
    /// # Errors
    /// When it is larger than the steps that were measured.
    fn step_s(&self, n_running: f64, prompt_tokens: f64, load: &Load) -> Result<f64, PlanError> {
        let step = self.step(n_running, prompt_tokens, load);
        self.cost.check_range(&step)?;
        Ok(self.cost.step_time(&step).as_secs_f64())
    }

    /// Tokens of an answer that this replica generates.
    fn decoded(&self, load: &Load) -> f64 {
        if self.role == Role::Prefill { 0.0 } else { load.output.mean }
    }

    /// Prompt tokens of a request that this replica computes.
    fn computed(&self, prompt: f64, load: &Load) -> f64 {
        if self.role == Role::Decode { 0.0 } else { load.computed(prompt) }
    }

    /// State of the replica under a load.
    ///
    /// # Errors
    /// When a number is invalid, or the load is more than it can answer.
    pub fn steady(&self, load: &Load) -> Result<Steady, PlanError> {
        self.check()?;
        load.check()?;
        let lanes = f64::from(self.n_lanes);
        let (tokens, rows) = self.tokens_and_rows();
        let rate = load.requests_per_s / lanes;
        let max_running = self.max_running(load) / lanes;
        let budget = f64::from(self.batching.max_batch_tokens);
        let (mut step_s, mut n_running, mut prompt_tokens) = (0.0, 0.0, 0.0);
        for _ in 0..MAX_ROUNDS {
            let next = self.step_s(n_running, prompt_tokens, load)?;
            let settled = (next - step_s).abs() <= 1e-6 * next;
            step_s = next;
            n_running = rate * self.decoded(load) / tokens * step_s;
            prompt_tokens = rate * self.computed(load.prompt.mean, load) * step_s;
            if n_running > max_running || n_running * rows + prompt_tokens > budget {
                return Err(self.overloaded("more requests come than it answers"));
            }
            if settled {
                return self.times(load, step_s, n_running, prompt_tokens);
            }
        }
        Err(self.overloaded("its steps become longer without end"))
    }

    fn overloaded(&self, reason: &str) -> PlanError {
        PlanError::Unreachable { on: self.name.clone(), target: "this load", reason: reason.to_owned() }
    }

    fn times(
        &self,
        load: &Load,
        step_s: f64,
        n_running: f64,
        prompt_tokens: f64,
    ) -> Result<Steady, PlanError> {
        let lanes = f64::from(self.n_lanes);
        let rate = load.requests_per_s / lanes;
        let (tokens, rows) = self.tokens_and_rows();
        let max_running = self.max_running(load);
        let most_running = (n_running + Z99 * n_running.sqrt()).min(max_running / lanes).max(1.0);
        let room = (f64::from(self.batching.max_batch_tokens) - most_running * rows).max(1.0);
        let full_s = self.step_s(n_running, room, load)?;
        let prefill_s = |prompt: f64| {
            let computed = self.computed(prompt, load);
            if computed <= room {
                return self.step_s(n_running, computed, load);
            }
            Ok((computed / room).floor() * full_s + self.step_s(n_running, computed % room, load)?)
        };
        let service_s = self.computed(load.prompt.mean, load) * full_s / room;
        let busy = rate * service_s;
        let answer_s = self.decoded(load) / tokens * step_s;
        let mean_prefill_s = prefill_s(load.prompt.mean)?;
        let held_s = mean_prefill_s + answer_s;
        let (slots, offered) = (max_running as u32, load.requests_per_s * held_s);
        // A request waits for a slot, then for the prompts before it.
        let variation = load.prompt.variation;
        let mean_wait_s = mean_wait_of(slots, offered, held_s) + mean_wait(busy, service_s, variation);
        let wait_p99_s = wait_p99(slots, offered, held_s).max(mean_wait_p99(busy, service_s, variation));
        if !(mean_wait_s + wait_p99_s).is_finite() {
            return Err(self.overloaded("more requests come than it answers"));
        }
        let first_token = Times {
            mean: mean_wait_s + step_s / 2.0 + mean_prefill_s + self.transfer_s(load.prompt.mean, load),
            p99: wait_p99_s
                + step_s
                + prefill_s(load.prompt.p99())?
                + self.transfer_s(load.prompt.p99(), load),
        };
        let gap_p99_s = self.gap_p99(load, most_running, prompt_tokens, room)?;
        let gap = Times { mean: step_s / tokens, p99: gap_p99_s };
        let resident = load.decode_context() as u64;
        Ok(Steady {
            step_s,
            n_running: n_running * lanes,
            max_running,
            n_prompt_tokens: prompt_tokens,
            first_token,
            gap,
            answer_s: first_token.mean + answer_s,
            cache_share: n_running * lanes / self.memory.n_sequences(&self.model, resident).max(1.0),
        })
    }

    /// Seconds for the transfer of a prompt's keys and values from elsewhere.
    fn transfer_s(&self, prompt: f64, load: &Load) -> f64 {
        let share = if self.role == Role::Decode { 1.0 } else { load.host_cached_share };
        let bytes = self.model.cache_bytes((prompt * share) as u64);
        self.transfer_bytes_per_s.map_or(0.0, |rate| bytes / rate)
    }

    /// The duration of a step that 1 % exceed: with more sequences than on average, and with the prompt
    /// tokens that arrive in a short time if more than 1 % of steps have prompt tokens.
    fn gap_p99(
        &self,
        load: &Load,
        most_running: f64,
        prompt_tokens: f64,
        room: f64,
    ) -> Result<f64, PlanError> {
        let computed = self.computed(load.prompt.mean, load);
        let n_prompts = if computed > 0.0 { prompt_tokens / computed } else { 0.0 };
        let steps_of_a_prompt = (computed / room).ceil().max(1.0);
        let most_tokens = if n_prompts * steps_of_a_prompt < 0.01 {
            0.0
        } else {
            let variance = n_prompts * computed * computed * (1.0 + load.prompt.variation.powi(2));
            (prompt_tokens + Z99 * variance.sqrt()).max(computed).min(room)
        };
        self.step_s(most_running, most_tokens, load)
    }

    /// The highest rate of requests with these lengths at which the targets are met; 0 if there is none.
    ///
    /// # Errors
    /// When a number is invalid.
    pub fn highest_rate(&self, load: &Load, targets: &Targets) -> Result<f64, PlanError> {
        self.check()?;
        load.at(1.0).check()?;
        for (name, target) in [("first token", targets.first_token_s), ("gap", targets.gap_s)] {
            target.map(|target| positive(&format!("the target of the {name}"), target)).transpose()?;
        }
        let meets = |rate: f64| self.steady(&load.at(rate)).is_ok_and(|steady| steady.meets(targets));
        // A pass of one sequence takes some time, so that no rate is higher than all slots allow.
        let (mut low, mut high) = (0.0, 1e-3);
        while meets(high) && high < 1e9 {
            (low, high) = (high, high * 2.0);
        }
        for _ in 0..RATE_HALVINGS {
            let middle = (low + high) / 2.0;
            if meets(middle) { low = middle } else { high = middle }
        }
        Ok(low)
    }
}
