//! Recurrent layers on the processor. Does not know what is around them.

use throng_core::scheduling::batch::SlotCopy;
use throng_kernels::recurrent::{self, StateLayer};

use super::{CpuBackend, CpuBatch};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{BackendError, Conv, DeltaNet, LayerStates, RecurrentOps, StateSpace};
use crate::state_cache::{StateLayerShape, StateLayout};

/// Every layer that uses states has some.
const STATES: &str = "a recurrent layer has states";

impl RecurrentOps for CpuBackend {
    type States = Vec<Option<StateLayer>>;

    fn states(&self, layout: &StateLayout) -> Result<Self::States, BackendError> {
        let n_bytes = layout.bytes().unwrap_or(usize::MAX);
        let layer = |shape: StateLayerShape| {
            let layer = StateLayer::new(shape, layout.n_slots);
            layer.ok_or(BackendError::OutOfMemory { what: "recurrent states", n_bytes })
        };
        layout.layers.iter().map(|shape| shape.map(layer).transpose()).collect()
    }

    fn copy_states(&mut self, states: &mut Self::States, copies: &[SlotCopy]) {
        self.each(states.iter_mut().flatten(), |layer| {
            copies.iter().for_each(|copy| layer.copy(copy.from.0, copy.to.0));
        });
    }

    fn short_conv(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &CpuBatch,
        x: &HostTensor,
        conv: &Conv<Self>,
        out: &mut HostTensor,
    ) {
        let (layer, spans) = (states.all[states.layer_idx].as_mut().expect(STATES), &batch.input.states);
        recurrent::short_conv(layer, spans, x.as_slice(), &conv.on_host(), out.as_mut_slice(), &self.pool);
    }

    fn gated_delta_net(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &CpuBatch,
        x: &mut HostTensor,
        net: &DeltaNet<Self>,
        out: &mut HostTensor,
    ) {
        let (layer, spans) = (states.all[states.layer_idx].as_mut().expect(STATES), &batch.input.states);
        let (x, weights, scratch) = (x.as_mut_slice(), net.on_host(), &mut self.gates_of_heads);
        let out = out.as_mut_slice();
        recurrent::gated_delta_net(layer, spans, &net.shape, &weights, x, scratch, out, &self.pool);
    }

    fn state_space(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &CpuBatch,
        x: &mut HostTensor,
        model: &StateSpace<Self>,
        out: &mut HostTensor,
    ) {
        let (layer, spans) = (states.all[states.layer_idx].as_mut().expect(STATES), &batch.input.states);
        let (x, weights, scratch) = (x.as_mut_slice(), model.on_host(), &mut self.gates_of_heads);
        let out = out.as_mut_slice();
        recurrent::state_space(layer, spans, &model.shape, &weights, x, scratch, out, &self.pool);
    }
}
