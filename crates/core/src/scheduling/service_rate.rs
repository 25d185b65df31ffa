//! Duration of steps as an engine measures it, and the computing resources that follow from it.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Duration of a replica's steps, as it measures them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTime {
    /// Time of an empty step.
    #[serde(default, rename = "fixed_ns")]
    pub fixed: Nanos,
    /// Time added by each prompt token in it.
    #[serde(default, rename = "per_prompt_token_ns")]
    pub per_prompt_token: Nanos,
    /// Time added by each sequence that decodes in it.
    #[serde(default, rename = "per_sequence_ns")]
    pub per_sequence: Nanos,
    /// The most prompt tokens of a step.
    #[serde(default)]
    pub max_step_tokens: u32,
}

impl Default for StepTime {
    /// Step time of a replica that reports none. Only its ratios matter, since all such replicas are
    /// assumed to be equally fast.
    fn default() -> Self {
        Self {
            fixed: Nanos::from_ms(10),
            per_prompt_token: Nanos(100_000),
            per_sequence: Nanos(500_000),
            max_step_tokens: 512,
        }
    }
}

impl StepTime {
    /// The time until `n_tokens` prompt tokens are computed while `n_sequences` decode beside them.
    pub fn prefill(&self, n_tokens: u64, n_sequences: u32) -> Nanos {
        let n_steps = n_tokens.div_ceil(u64::from(self.max_step_tokens.max(1)));
        let decoding = self.per_sequence.0.saturating_mul(u64::from(n_sequences));
        let steps = self.fixed.0.saturating_add(decoding).saturating_mul(n_steps);
        Nanos(steps.saturating_add(self.per_prompt_token.0.saturating_mul(n_tokens)))
    }
}

/// Speed of a model: one replica, or several equal ones. A replica reports itself alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRate {
    /// Step time of one replica.
    #[serde(flatten)]
    pub step_time: StepTime,
    /// Maximum number of running sequences on one replica.
    #[serde(default)]
    pub n_slots: u32,
    /// Number of replicas, at least one.
    #[serde(skip, default = "one")]
    pub n_replicas: u32,
}

fn one() -> u32 {
    1
}

impl ServiceRate {
    /// Combines both: the sum of their replicas, each as fast as the slower one.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let (a, b) = (self.step_time, other.step_time);
        Self {
            step_time: StepTime {
                fixed: a.fixed.max(b.fixed),
                per_prompt_token: a.per_prompt_token.max(b.per_prompt_token),
                per_sequence: a.per_sequence.max(b.per_sequence),
                max_step_tokens: a.max_step_tokens.min(b.max_step_tokens),
            },
            n_slots: self.n_slots.min(other.n_slots),
            n_replicas: self.n_replicas + other.n_replicas,
        }
    }
}
