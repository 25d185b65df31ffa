//! Messages between rank 0 and the other processes of a model while they start. Does not know how it is
//! sent.

use std::str::FromStr;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use throng_comm::{Communicator, Deadline};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;

use crate::args;
use crate::config::ModelSection;

/// Longest message, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The model that a rank opens, and how it computes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Path of the model, or name of a built-in one.
    model: String,
    quantize: Option<String>,
    isa: Option<String>,
    pub(super) cores: Vec<usize>,
    pub(super) n_threads: usize,
    /// Longest time that a rank waits for another one that lives, in milliseconds.
    pub(super) patience_ms: u64,
}

impl Setup {
    pub(super) fn new(section: &ModelSection, model: String, patience_ms: u64) -> Self {
        Self {
            model,
            quantize: section.quantize.and_then(|to| Some(to.to_possible_value()?.get_name().to_owned())),
            isa: section.isa.map(|isa| isa.name().to_owned()),
            cores: Vec::new(),
            n_threads: 1,
            patience_ms,
        }
    }

    /// The section with which the rank opens the model.
    ///
    /// # Errors
    /// When it names something that this build does not have.
    pub(super) fn section(&self) -> Result<ModelSection> {
        let quantize = self.quantize.as_deref().map(|name| args::Quantization::from_str(name, true));
        let isa = self.isa.as_deref().map(args::parse_isa).transpose().map_err(anyhow::Error::msg)?;
        Ok(ModelSection {
            model: Some(self.model.clone()),
            quantize: quantize.transpose().map_err(anyhow::Error::msg)?,
            isa,
            n_threads: Some(self.n_threads),
            ..ModelSection::default()
        })
    }
}

/// Report of a rank once its weights are there.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes of one block of keys and values in each type: f32, f16, bf16, q8_0; `None` where it has none.
    pub block_bytes: [Option<u64>; 4],
    /// Bytes of one slot of recurrent state.
    pub state_bytes: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
}

/// The types of keys and values, in the order of [`Loaded::block_bytes`].
pub(super) const KV_DTYPES: [KvDtype; 4] = [KvDtype::F32, KvDtype::F16, KvDtype::BF16, KvDtype::Q8_0];

/// Bounds of a rank's runner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Limits {
    n_blocks: u32,
    kv_dtype: String,
    max_batch_tokens: u32,
    max_batch_sequences: u32,
    max_sequence_tokens: Option<u32>,
}

impl Limits {
    pub(super) fn of(limits: &RunnerLimits) -> Self {
        Self {
            n_blocks: limits.n_blocks,
            kv_dtype: limits.kv_dtype.name().to_owned(),
            max_batch_tokens: limits.max_batch_tokens,
            max_batch_sequences: limits.max_batch_sequences,
            max_sequence_tokens: limits.max_sequence_tokens,
        }
    }

    pub(super) fn limits(&self) -> Result<RunnerLimits> {
        Ok(RunnerLimits {
            n_blocks: self.n_blocks,
            kv_dtype: KvDtype::from_str(&self.kv_dtype)?,
            max_batch_tokens: self.max_batch_tokens,
            max_batch_sequences: self.max_batch_sequences,
            max_sequence_tokens: self.max_sequence_tokens,
        })
    }
}

/// Order for a rank once its weights are there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Measure memory and exchanges of rows of so many elements.
    Measure {
        /// Elements of a row.
        n_elements: usize,
    },
    /// Make a runner, and follow steps.
    Run(Limits),
}

/// An answer of a rank: what it says, or why it cannot go on.
pub(super) type Answer<T> = Result<T, String>;

/// Sends a message.
///
/// # Errors
/// When the rank is lost.
pub(super) fn send<T: Serialize>(
    ranks: &mut dyn Communicator,
    to: usize,
    message: &T,
    by: Deadline,
) -> Result<()> {
    let bytes = serde_json::to_vec(message).context("a message to a rank")?;
    Ok(ranks.send_message(to, &bytes, by)?)
}

/// Receives a message.
///
/// # Errors
/// When the rank is lost, or its message is of another kind.
pub(super) fn receive<T: DeserializeOwned>(
    ranks: &mut dyn Communicator,
    from: usize,
    by: Deadline,
) -> Result<T> {
    let bytes = ranks.receive_message(from, MAX_BYTES, by)?;
    serde_json::from_slice(&bytes).with_context(|| format!("the message of rank {from}"))
}
