//! Cosines and sines of rotary embeddings, computed on the host. Does not know which device reads them.

use std::sync::{Mutex, PoisonError};

use super::BackendError;
use super::host::HostThreads;
use crate::config::RopeTable;

/// Positions that a thread computes at a time.
const SHARE: usize = 256;

/// The angles of one rotation for all positions of a context.
#[derive(Debug, Clone, Default)]
pub struct Rotations {
    /// Pairs of elements that are rotated together: half the rotated part of a head.
    pub n_pairs: usize,
    /// `[n_positions, n_pairs]`.
    pub cos: Vec<f32>,
    /// `[n_positions, n_pairs]`.
    pub sin: Vec<f32>,
}

impl Rotations {
    /// The rotation `rope` at the positions below `n_positions`. Angles are computed in f64: in f32 a position of 100,000 is off
    /// by up to 0.004 radians.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new(
        rope: &RopeTable,
        n_positions: usize,
        threads: &dyn HostThreads,
    ) -> Result<Self, BackendError> {
        let n_pairs = rope.frequencies.len();
        let (mut cos, mut sin) = (zeros(n_positions, n_pairs)?, zeros(n_positions, n_pairs)?);
        if n_pairs > 0 {
            let n = SHARE * n_pairs;
            let shares = Mutex::new(cos.chunks_mut(n).zip(sin.chunks_mut(n)).enumerate());
            threads.run(&|_| {
                loop {
                    let next = shares.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((share_idx, (cos, sin))) = next else { break };
                    fill(rope, share_idx * SHARE, cos, sin);
                }
            });
        }
        Ok(Self { n_pairs, cos, sin })
    }

    /// Cosines and sines at one position, `n_pairs` each.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let pairs = position * self.n_pairs..(position + 1) * self.n_pairs;
        (&self.cos[pairs.clone()], &self.sin[pairs])
    }
}

/// The angles from `first_position` on.
fn fill(rope: &RopeTable, first_position: usize, cos: &mut [f32], sin: &mut [f32]) {
    let n_pairs = rope.frequencies.len();
    let rows = cos.chunks_exact_mut(n_pairs).zip(sin.chunks_exact_mut(n_pairs));
    for (position, (cos, sin)) in (first_position..).zip(rows) {
        for ((&frequency, cos), sin) in rope.frequencies.iter().zip(cos).zip(sin) {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            (*cos, *sin) = ((cosine * rope.amplitude) as f32, (sine * rope.amplitude) as f32);
        }
    }
}

fn zeros(n_positions: usize, n_pairs: usize) -> Result<Vec<f32>, BackendError> {
    let n = n_positions.saturating_mul(n_pairs);
    let n_bytes = n.saturating_mul(size_of::<f32>());
    let mut values = Vec::new();
    values.try_reserve_exact(n).map_err(|_| BackendError::OutOfMemory { what: "rope tables", n_bytes })?;
    values.resize(n, 0.0);
    Ok(values)
}
