//! Adapters with random numbers, to measure the cost of adapters. Does not know files.

use fastrand::Rng;

use super::targets::Target;
use super::{AdapterSource, Pair};

/// An adapter of one rank for all linear layers that adapters may change.
#[derive(Debug, Clone, Copy)]
pub struct RandomAdapter {
    /// Number of rows of `A`.
    pub rank: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl AdapterSource for RandomAdapter {
    fn rank(&self, _: usize, target: &Target) -> Option<usize> {
        // Stacked layers are changed by way of their parts.
        (!target.name.ends_with("qkv_proj") && !target.name.ends_with("gate_up_proj")).then_some(self.rank)
    }

    fn pair(&self, layer_idx: usize, target: &Target) -> Option<Pair> {
        let rank = self.rank(layer_idx, target)?;
        let place = (layer_idx * 8 + target.linear as usize) as u64 * 1_000_003 + target.first_col as u64;
        let mut rng = Rng::with_seed(self.seed ^ (place << 20));
        // Uniform with variances that make the product about as large as the layer's own output.
        let mut numbers = |n: usize, width: usize| -> Vec<f32> {
            let bound = (3.0 / width as f32).sqrt();
            (0..n).map(|_| bound * (2.0 * rng.f32() - 1.0)).collect()
        };
        let (a, b) = (numbers(rank * target.cols, target.cols), numbers(target.n_cols * rank, rank));
        Some(Pair { a, b, rank, scale: 0.5 })
    }
}
