//! The features that an EAGLE-3 head reads of the model: three points of the residual stream, one row for
//! each position of the KV cache. Does not know the head.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::scheduling::batch::BLOCK_TOKENS;

use super::config::N_FEATURES;
use super::weights::HeadWeights;
use crate::backend::{Backend, BackendError, BlockCopy};
use crate::batch_input::BatchInput;

/// A row for each slot of the KV cache, in host memory. It holds the model's features at that position and,
/// ahead of the model, the head's in their place. Rows of cached blocks stay with the block, so that a head
/// can read a prefix that was computed for another request.
#[derive(Debug)]
pub(crate) struct Features {
    rows: Vec<f32>,
    width: usize,
}

/// Features that the model's runner writes and the head's reads, one after the other.
pub(crate) type SharedFeatures = Arc<Mutex<Features>>;

impl Features {
    /// Creates features for a cache of `n_blocks`; rows have `width` elements.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub(crate) fn new(n_blocks: u32, width: usize) -> Result<SharedFeatures, BackendError> {
        let n_elements = (n_blocks as usize).checked_mul(BLOCK_TOKENS).and_then(|n| n.checked_mul(width));
        let n_bytes = n_elements.and_then(|n| n.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
        let has_room = |n: &usize| Vec::<f32>::new().try_reserve_exact(*n).is_ok();
        let what = "what a head reads of the model";
        let n_elements = n_elements.filter(has_room).ok_or(BackendError::OutOfMemory { what, n_bytes })?;
        // Zeroed memory of the system takes no pages before it is written.
        Ok(Arc::new(Mutex::new(Self { rows: vec![0.0; n_elements], width })))
    }

    pub(super) fn row(&self, (block, slot): (usize, usize)) -> &[f32] {
        &self.rows[(block * BLOCK_TOKENS + slot) * self.width..][..self.width]
    }

    pub(super) fn set_row(&mut self, (block, slot): (usize, usize), row: &[f32]) {
        self.rows[(block * BLOCK_TOKENS + slot) * self.width..][..self.width].copy_from_slice(row);
    }

    fn copy(&mut self, copy: &BlockCopy) {
        let n = BLOCK_TOKENS * self.width;
        let (from, to) = (copy.from as usize * n, copy.to as usize * n);
        self.rows.copy_within(from..from + n, to);
    }
}

/// A panic while they are locked costs right drafts, never an output.
pub(super) fn lock(features: &SharedFeatures) -> MutexGuard<'_, Features> {
    features.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the residual stream of the model before three of its layers and keeps the sum of its products with
/// the head's three matrices.
pub(crate) struct FeatureTap<B: Backend> {
    layers: [usize; N_FEATURES],
    weights: Arc<HeadWeights<B>>,
    features: SharedFeatures,
    /// `[tokens, width]`: the sum so far, and the product that joins it.
    sum: B::Buffer,
    product: B::Buffer,
    is_begun: bool,
}

impl<B: Backend> FeatureTap<B> {
    /// Creates a tap before these layers of a model whose steps have at most `max_tokens`.
    ///
    /// # Errors
    /// When the memory of the device does not suffice.
    pub(crate) fn new(
        backend: &B,
        layers: [usize; N_FEATURES],
        weights: Arc<HeadWeights<B>>,
        features: SharedFeatures,
        max_tokens: u32,
    ) -> Result<Self, BackendError> {
        let width = lock(&features).width;
        let buffer = || backend.buffer(max_tokens as usize, width);
        Ok(Self { layers, weights, sum: buffer()?, product: buffer()?, features, is_begun: false })
    }

    /// Copies the rows of blocks that are copied.
    pub(crate) fn copy(&mut self, copies: &[BlockCopy]) {
        let mut features = lock(&self.features);
        copies.iter().for_each(|copy| features.copy(copy));
    }

    /// Reads the residual stream before a layer.
    pub(crate) fn observe(&mut self, backend: &mut B, layer_idx: usize, residual: &B::Buffer) {
        for (layer, matrix) in self.layers.iter().zip(&self.weights.features) {
            if *layer != layer_idx {
                continue;
            }
            let out = if self.is_begun { &mut self.product } else { &mut self.sum };
            let n_rows = backend.n_rows(residual);
            backend.set_rows(out, n_rows);
            backend.matmul(residual, matrix, None, out);
            if self.is_begun {
                backend.add(&mut self.sum, &self.product, 1.0);
            }
            self.is_begun = true;
        }
    }

    /// Stores the features read in this step, at the positions of its tokens.
    ///
    /// # Errors
    /// When the device failed.
    pub(crate) fn keep(&mut self, backend: &mut B, input: &BatchInput) -> Result<(), BackendError> {
        self.is_begun = false;
        let rows = backend.download(&mut self.sum)?;
        let mut features = lock(&self.features);
        let width = features.width;
        for span in &input.spans {
            let rows = rows[span.first_row * width..].chunks_exact(width).take(span.n_rows);
            for (position, row) in (span.start..).zip(rows) {
                features.set_row(input.slot(span, position), row);
            }
        }
        Ok(())
    }
}
