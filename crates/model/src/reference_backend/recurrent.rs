//! Recurrent layers in plain loops.

use throng_core::scheduling::batch::SlotCopy;
use throng_kernels::reference;

use super::ReferenceBackend;
use crate::backend::host_states::HostStates;
use crate::backend::host_tensor::HostTensor;
use crate::backend::{BackendError, Conv, DeltaNet, LayerStates, RecurrentOps, StateSpace};
use crate::batch_input::BatchInput;
use crate::state_cache::StateLayout;

impl RecurrentOps for ReferenceBackend {
    type States = HostStates;

    fn states(&self, layout: &StateLayout) -> Result<HostStates, BackendError> {
        HostStates::new(layout)
    }

    fn copy_states(&mut self, states: &mut HostStates, copies: &[SlotCopy]) {
        states.copy(copies);
    }

    fn short_conv(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &BatchInput,
        x: &HostTensor,
        conv: &Conv<Self>,
        out: &mut HostTensor,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            reference::short_conv(state, x.rows(&rows), &conv.on_host(), out.rows_mut(&rows));
        });
    }

    fn gated_delta_net(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &BatchInput,
        x: &mut HostTensor,
        net: &DeltaNet<Self>,
        out: &mut HostTensor,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            reference::gated_delta_net(state, x.rows(&rows), &net.shape, &net.on_host(), out.rows_mut(&rows));
        });
    }

    fn state_space(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &BatchInput,
        x: &mut HostTensor,
        model: &StateSpace<Self>,
        out: &mut HostTensor,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            reference::state_space(state, x.rows(&rows), &model.shape, &model.on_host(), out.rows_mut(&rows));
        });
    }
}
