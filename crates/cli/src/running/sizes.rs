//! Sizes of a model's runner and its steps. Does not know how memory is measured.

use anyhow::{Context, Result, bail};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_model::kv_cache::KvDtype;
use throng_model::load::LoadedModel;
use throng_model::runner::RunnerLimits;

use super::ranks::RankProcesses;
use super::{Compute, kv_dtype};
use crate::args::ModelLength;
use crate::config::{EngineSection, ModelSection};
use crate::kv_budget::KvBudget;

/// Bytes of one block of keys and values over all layers.
pub(super) fn kv_block_bytes(model: &LoadedModel, dtype: KvDtype) -> Result<u64> {
    let mut head_dims = model.config.cache_shapes().map(|shape| shape.head_dim);
    if let Some(head_dim) = head_dims.find(|head_dim| dtype.bytes_of(*head_dim).is_none()) {
        bail!(
            "--kv-cache-dtype {dtype} needs heads whose size is a multiple of 32, and those of {} have {head_dim} elements: \
             take f16, f32 or auto",
            model.name
        );
    }
    let bytes = model.kv_layout(dtype, 1).bytes().context("the KV block is too large")?;
    Ok(bytes as u64)
}

/// Default maximum of tokens in a step of a model that computes prompts whole; longer texts are refused.
const MOST_WHOLE_TOKENS: u32 = 8192;
/// Defaults for a pooling model: sequences in a step, and requests in the queue.
const POOLED_SEQUENCES: u32 = 256;
const POOLED_QUEUE: u32 = 16_384;

impl EngineSection {
    /// The scheduler's configuration for this model. A pooling model has many short texts, which most such
    /// models compute whole.
    pub(super) fn scheduler_of(&self, model: &LoadedModel) -> SchedulerConfig {
        let scheduler = self.scheduler();
        if model.pooler.is_none() {
            return scheduler;
        }
        let longest = u32::try_from(model.config.max_sequence_tokens).unwrap_or(u32::MAX);
        let whole =
            longest.clamp(scheduler.max_batch_tokens, MOST_WHOLE_TOKENS.max(scheduler.max_batch_tokens));
        SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens.unwrap_or(whole),
            max_batch_sequences: self.max_batch_sequences.unwrap_or(POOLED_SEQUENCES),
            max_queued_requests: self.max_queued_requests.unwrap_or(POOLED_QUEUE),
            ..scheduler
        }
    }
}

/// Host memory that blocks and states take elsewhere: in a draft model, in other processes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Elsewhere {
    /// Bytes for each block of keys and values.
    pub(super) block_bytes: u64,
    /// Bytes for each slot of recurrent state.
    pub(super) state_bytes: u64,
}

impl Elsewhere {
    /// Adds the memory of the other processes of a divided model.
    pub(super) fn add(&mut self, processes: &RankProcesses, dtype: KvDtype) -> Result<()> {
        self.block_bytes += processes.block_bytes(dtype).context("the KV block is too large")?;
        self.state_bytes += processes.state_bytes();
        Ok(())
    }
}

/// Size of a runner.
pub(super) struct Sizes {
    pub(super) limits: RunnerLimits,
    pub(super) kv_bytes: u64,
}

pub(super) fn sizes(
    section: &ModelSection,
    scheduler: &SchedulerConfig,
    (model, elsewhere): (&LoadedModel, Elsewhere),
    (compute, available_bytes): (&Compute, Option<u64>),
) -> Result<Sizes> {
    let kv_dtype = kv_dtype(section, model);
    // A block has as many tokens in the draft model as in the model.
    let block_bytes = kv_block_bytes(model, kv_dtype)? + elsewhere.block_bytes;
    let state_bytes = model.state_bytes().context("the recurrent state is too large")? as u64;
    let budget = KvBudget {
        asked_bytes: section.kv_cache_memory_bytes,
        available_bytes,
        block_bytes,
        state_bytes: state_bytes + elsewhere.state_bytes,
        max_sequence_tokens: max_sequence_tokens(section, model)?,
        max_rows: scheduler.max_batch_sequences,
    };
    let n_blocks = match &model.pooler {
        // Keys and values of a text are needed only until its step has ended.
        Some(pooler) if pooler.takes_whole_prompts(&model.config) => {
            let of_step = scheduler.max_batch_tokens.div_ceil(BLOCK_TOKENS as u32);
            budget.n_blocks()?.min(of_step + scheduler.max_batch_sequences)
        }
        _ => budget.n_blocks()?,
    };
    let n_blocks = n_blocks.min(compute.most_kv_blocks(model, kv_dtype));
    let held_tokens = n_blocks.saturating_mul(BLOCK_TOKENS as u32);
    let max_sequence_tokens = match section.max_model_len_tokens {
        Some(ModelLength::Auto) => budget.max_sequence_tokens.min(held_tokens),
        _ => budget.max_sequence_tokens,
    };
    let limits = RunnerLimits {
        n_blocks,
        kv_dtype,
        max_batch_tokens: scheduler.max_batch_tokens,
        max_batch_sequences: budget.n_rows(),
        max_sequence_tokens: Some(max_sequence_tokens),
    };
    Ok(Sizes { limits, kv_bytes: block_bytes * u64::from(n_blocks) })
}

/// Upper bound on tokens of a sequence, before the size of the KV cache is known.
fn max_sequence_tokens(section: &ModelSection, model: &LoadedModel) -> Result<u32> {
    let own = u32::try_from(model.config.max_sequence_tokens).unwrap_or(u32::MAX);
    match section.max_model_len_tokens {
        Some(ModelLength::Tokens(asked)) if asked > own => {
            bail!("--max-model-len {asked} exceeds the model's own context of {own} tokens")
        }
        Some(ModelLength::Tokens(asked)) => Ok(asked),
        Some(ModelLength::Auto) | None => Ok(own),
    }
}
