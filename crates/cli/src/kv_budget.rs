//! Computes the number of KV blocks and of recurrent state slots from the configured size, else from free
//! memory. Does not know how memory is measured.

use anyhow::{Result, bail};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_model::runner::n_state_slots;

/// Default share of free memory for the KV cache; the rest is left to other programs.
const DEFAULT_SHARE: f64 = 0.4;

/// Assumed free memory in bytes if the system does not report it.
const UNKNOWN_FREE_BYTES: u64 = 2 << 30;

/// Inputs of the number of blocks.
#[derive(Debug, Clone, Copy)]
pub struct KvBudget {
    /// Configured bytes, if any.
    pub asked_bytes: Option<u64>,
    /// Free bytes of memory, if known.
    pub available_bytes: Option<u64>,
    /// Bytes of one block over all layers.
    pub block_bytes: u64,
    /// Bytes of one sequence's recurrent state; 0 for a model without.
    pub state_bytes: u64,
    /// Maximum number of tokens of a sequence.
    pub max_sequence_tokens: u32,
    /// Maximum number of sequences in a step.
    pub max_rows: u32,
}

impl KvBudget {
    /// Number of blocks. Without a configured size, at most as many as all sequences need at full length.
    ///
    /// # Errors
    /// When not even one block fits, or more is configured than is free.
    pub fn n_blocks(&self) -> Result<u32> {
        if let (Some(asked), Some(available)) = (self.asked_bytes, self.available_bytes)
            && asked > available
        {
            bail!("{} are configured for keys and values, but only {} are free", show(asked), show(available))
        }
        let state_bytes = self.state_bytes.saturating_mul(n_state_slots(self.n_rows()) as u64);
        let left = self.bytes().saturating_sub(state_bytes);
        let bytes = if self.asked_bytes.is_some() { left } else { left.min(self.useful_bytes()) };
        let n_blocks = bytes / self.block_bytes.max(1);
        if n_blocks == 0 {
            bail!("{} cannot hold one block of keys and values ({})", show(bytes), show(self.block_bytes));
        }
        Ok(u32::try_from(n_blocks).unwrap_or(u32::MAX))
    }

    /// Maximum number of sequences in a step: fewer than configured if their recurrent states would take
    /// more than half of the memory.
    pub fn n_rows(&self) -> u32 {
        let n_fitting = (self.bytes() / 2).checked_div(self.state_bytes).unwrap_or(u64::MAX);
        (1..=self.max_rows).rev().find(|&n| n_state_slots(n) as u64 <= n_fitting).unwrap_or(1)
    }

    /// Bytes for keys, values and recurrent states.
    fn bytes(&self) -> u64 {
        let share = || (self.available_bytes.unwrap_or(UNKNOWN_FREE_BYTES) as f64 * DEFAULT_SHARE) as u64;
        self.asked_bytes.unwrap_or_else(share)
    }

    fn useful_bytes(&self) -> u64 {
        let blocks_per_row = u64::from(self.max_sequence_tokens).div_ceil(BLOCK_TOKENS as u64);
        blocks_per_row.saturating_mul(u64::from(self.max_rows)).saturating_mul(self.block_bytes)
    }
}

/// Formats a number of bytes: `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
