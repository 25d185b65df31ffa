//! A lower bound of the work of a forward pass: multiplications, and bytes that are read from memory. Does
//! not know models and the speed of machines.

use serde::{Deserialize, Serialize};

/// An amount of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Multiplications and additions of bytes, two for each weight and token.
    pub int8_operations: f64,
    /// Multiplications and additions of 16-bit floats, two for each weight and token.
    pub bf16_operations: f64,
    /// Multiplications and additions of 32-bit floats, two for each weight and token.
    pub f32_operations: f64,
    /// Bytes of weights, keys and values that are read.
    pub bytes: f64,
}

/// Sums over several steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// Number of forward passes; each reads the weights once.
    pub n_steps: u64,
    /// Number of tokens that go through the layers.
    pub n_tokens: u64,
    /// Number of forward passes that compute logits.
    pub n_logit_steps: u64,
    /// Number of tokens whose logits are computed.
    pub n_logits: u64,
}

/// The keys and values that a layer reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerCache {
    /// Bytes of one position.
    pub bytes_per_token: f64,
    /// Number of positions that a token attends to; `None` for all before it.
    pub window: Option<u64>,
}

/// The work of one model's forward pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardWork {
    /// Work of one token in one step, without logits.
    pub layers: Work,
    /// Work of the logits of one token in one step.
    pub output: Work,
    /// The keys and values of each layer with attention.
    pub caches: Vec<LayerCache>,
}

impl ForwardWork {
    /// Work of these steps, without the keys and values that they read.
    pub fn of(&self, steps: Steps) -> Work {
        let sum = |of: fn(&Work) -> f64, n_layers: u64, n_output: u64| {
            of(&self.layers) * n_layers as f64 + of(&self.output) * n_output as f64
        };
        Work {
            int8_operations: sum(|work| work.int8_operations, steps.n_tokens, steps.n_logits),
            bf16_operations: sum(|work| work.bf16_operations, steps.n_tokens, steps.n_logits),
            f32_operations: sum(|work| work.f32_operations, steps.n_tokens, steps.n_logits),
            bytes: sum(|work| work.bytes, steps.n_steps, steps.n_logit_steps),
        }
    }

    /// Bytes of keys and values that a token at `position` (the first is 0) reads, its own included.
    pub fn kv_bytes(&self, position: u64) -> f64 {
        let read = |cache: &LayerCache| {
            let seen = cache.window.map_or(position + 1, |most| (position + 1).min(most));
            seen as f64 * cache.bytes_per_token
        };
        self.caches.iter().map(read).sum()
    }

    /// Bytes of all weights that a step with logits reads.
    pub fn step_bytes(&self) -> f64 {
        self.layers.bytes + self.output.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_once_a_step_and_windows_bound_the_cache() {
        let work = ForwardWork {
            layers: Work { int8_operations: 10.0, bytes: 100.0, ..Work::default() },
            output: Work { f32_operations: 5.0, bytes: 7.0, ..Work::default() },
            caches: vec![
                LayerCache { bytes_per_token: 2.0, window: None },
                LayerCache { bytes_per_token: 3.0, window: Some(4) },
            ],
        };
        let steps = Steps { n_steps: 2, n_tokens: 30, n_logit_steps: 1, n_logits: 3 };
        let expected =
            Work { int8_operations: 300.0, bf16_operations: 0.0, f32_operations: 15.0, bytes: 207.0 };
        assert_eq!(work.of(steps), expected);
        assert_eq!([0, 3, 9].map(|position| work.kv_bytes(position)), [5.0, 20.0, 32.0]);
        let text = serde_json::to_string(&work).expect("plain numbers");
        assert_eq!(serde_json::from_str::<ForwardWork>(&text).expect("what was written"), work);
    }
}
