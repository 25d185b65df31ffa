//! Recurrent states in host memory, for backends that compute in plain loops. Does not know operations.

use std::ops::Range;

use throng_core::scheduling::batch::SlotCopy;

use super::BackendError;
use crate::batch_input::StateSpan;
use crate::state_cache::{StateLayerShape, StateLayout};

/// The states of all layers, those of a layer `[n_slots, elements]`: the window of the convolution, then the
/// matrix of each head.
#[derive(Debug)]
pub struct HostStates {
    layers: Vec<Vec<f32>>,
    n_slots: usize,
}

impl HostStates {
    /// States of NaN: rows must be written before they are read.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new(layout: &StateLayout) -> Result<Self, BackendError> {
        let layer = |shape: &Option<StateLayerShape>| {
            let n_elements =
                shape.as_ref().map_or(Some(0), |shape| n_elements(shape)?.checked_mul(layout.n_slots));
            let n_bytes = n_elements.and_then(|n| n.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
            let mut elements = Vec::new();
            let reserved = n_elements.filter(|&n| elements.try_reserve_exact(n).is_ok());
            let n = reserved.ok_or(BackendError::OutOfMemory { what: "recurrent states", n_bytes })?;
            elements.resize(n, f32::NAN);
            Ok(elements)
        };
        let layers = layout.layers.iter().map(layer).collect::<Result<_, _>>()?;
        Ok(Self { layers, n_slots: layout.n_slots })
    }

    /// Copies states over all layers, one copy after the other.
    pub fn copy(&mut self, copies: &[SlotCopy]) {
        for layer in &mut self.layers {
            let n = layer.len() / self.n_slots;
            for copy in copies {
                let (from, to) = (copy.from.0 as usize, copy.to.0 as usize);
                layer.copy_within(from * n..(from + 1) * n, to * n);
            }
        }
    }

    /// Calls `run` for each span with its rows and with the state before its tokens, which `run` updates to
    /// the state after them.
    pub fn each_span(
        &mut self,
        layer_idx: usize,
        spans: &[StateSpan],
        mut run: impl FnMut(&mut [f32], Range<usize>),
    ) {
        let layer = &mut self.layers[layer_idx];
        let n = layer.len() / self.n_slots;
        for span in spans {
            let to = span.to as usize * n;
            match span.from {
                None => layer[to..to + n].fill(0.0),
                Some(from) => layer.copy_within(from as usize * n..(from as usize + 1) * n, to),
            }
            run(&mut layer[to..to + n], span.first_row..span.first_row + span.n_rows);
        }
    }
}

/// Elements of a state without padding.
fn n_elements(shape: &StateLayerShape) -> Option<usize> {
    let window = shape.kernel.checked_sub(1)?.checked_mul(shape.n_channels)?;
    let heads = shape.n_heads.checked_mul(shape.key_dim)?.checked_mul(shape.value_dim)?;
    window.checked_add(heads)
}
