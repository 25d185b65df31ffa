//! Recurrent layers on the processor. Does not know the rest of a layer.

use std::ops::Range;

use throng_core::scheduling::batch::SlotCopy;
use throng_kernels::recurrent::{self, StateLayer};

use super::{CpuBackend, CpuBatch};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{
    BackendError, Conv, DeltaNet, DeviceBlockLayout, LayerStates, RecurrentOps, StateSpace, state_ranges,
};
use crate::state_cache::{StateLayerShape, StateLayout};

/// The name of the layout of exported states: those of `throng_kernels::recurrent::StateLayer`, layer after
/// layer. It is numbered anew when these change.
const STATE_LAYOUT: &str = "throng-cpu-states-1";

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

    fn state_layout(&self, states: &Self::States) -> Option<DeviceBlockLayout> {
        let n_bytes = states.iter().flatten().map(StateLayer::slot_bytes).sum();
        Some(DeviceBlockLayout { name: STATE_LAYOUT, n_bytes })
    }

    fn export_state(
        &mut self,
        states: &Self::States,
        slot: u32,
        range: Range<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        let layers: Vec<_> = states.iter().flatten().collect();
        for (i, range) in state_ranges(layers.iter().map(|layer| layer.slot_bytes()), range) {
            bytes.extend_from_slice(&layers[i].slot(slot)[range]);
        }
        Ok(())
    }

    fn import_state(
        &mut self,
        states: &mut Self::States,
        slot: u32,
        start: usize,
        mut bytes: &[u8],
    ) -> Result<(), BackendError> {
        let mut layers: Vec<_> = states.iter_mut().flatten().collect();
        let sizes: Vec<_> = layers.iter().map(|layer| layer.slot_bytes()).collect();
        for (i, range) in state_ranges(sizes, start..start + bytes.len()) {
            let (of_layer, rest) = bytes.split_at(range.len());
            layers[i].slot_mut(slot)[range].copy_from_slice(of_layer);
            bytes = rest;
        }
        Ok(())
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
