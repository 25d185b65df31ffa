//! Messages between rank 0 and the other processes of a model while they start. Does not know how they are
//! sent.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use throng_comm::{Communicator, Deadline};
use throng_model::kv_cache::KvDtype;
use throng_model::parallel::Grid;
use throng_model::runner::RunnerLimits;
use throng_os::affinity::Cores;
use throng_os::numa;

use crate::args;
use crate::config::ModelSection;

/// Longest message, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Version of this program, which all ranks share.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Machine of a rank that rank 0 did not start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Host {
    version: String,
    pub(super) name: String,
    /// Cores of each NUMA node that the process may use.
    pub(super) nodes: Vec<Vec<usize>>,
    /// One of the logical cores of each physical core that it may use.
    pub(super) cores: Vec<usize>,
}

impl Host {
    /// The machine of this process.
    pub(super) fn own() -> Self {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let cores = Cores::allowed();
        Self {
            version: VERSION.to_owned(),
            name: name.trim().to_owned(),
            nodes: numa::nodes(),
            cores: cores.logical[..cores.n_physical].to_vec(),
        }
    }

    /// Fails if the processes are of different versions, whose messages and bits may differ.
    ///
    /// # Errors
    /// When they are.
    pub(super) fn check_version(&self, first: &Self) -> Result<()> {
        if self.version != first.version {
            bail!("throng {} on {}, and {} on {}", self.version, self.name, first.version, first.name);
        }
        Ok(())
    }
}

/// The model that a rank opens, and how it computes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Path of the model, or name of a built-in one.
    model: String,
    quantize: Option<String>,
    isa: Option<String>,
    n_ranks: usize,
    n_stages: usize,
    pub(super) cores: Vec<usize>,
    pub(super) n_threads: usize,
    /// Timeout in milliseconds for another rank whose process is alive.
    pub(super) patience_ms: u64,
}

impl Setup {
    pub(super) fn new(section: &ModelSection, model: String, grid: Grid, patience_ms: u64) -> Self {
        Self {
            model,
            quantize: section.quantize.and_then(|to| Some(to.to_possible_value()?.get_name().to_owned())),
            isa: section.isa.map(|isa| isa.name().to_owned()),
            n_ranks: grid.n_ranks,
            n_stages: grid.n_stages,
            cores: Vec::new(),
            n_threads: 1,
            patience_ms,
        }
    }

    /// The arrangement of the ranks.
    pub(super) fn grid(&self) -> Grid {
        Grid { n_ranks: self.n_ranks, n_stages: self.n_stages }
    }

    /// The section with which the rank opens the model.
    ///
    /// # Errors
    /// When it names a feature that this build does not have.
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

/// Report of a rank once its weights are loaded.
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

/// Order for a rank once its weights are loaded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Measure memory and exchanges of rows of this number of elements.
    Measure {
        /// Elements of a row.
        n_elements: usize,
    },
    /// Create a runner, and follow steps.
    Run(Limits),
}

/// Answer of a rank: its result, or the reason why it cannot continue.
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
