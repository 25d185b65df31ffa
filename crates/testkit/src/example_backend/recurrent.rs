//! Recurrent layers on the example device, in the plain loops of the reference. Does not know the rest of a
//! layer.

use std::ops::Range;

use throng_core::scheduling::batch::SlotCopy;
use throng_kernels::reference;
use throng_model::backend::host_states::HostStates;
use throng_model::backend::{BackendError, Conv, DeltaNet, LayerStates, RecurrentOps, StateSpace};
use throng_model::batch_input::BatchInput;
use throng_model::state_cache::StateLayout;

use super::{ExampleBackend, Rows};

impl Rows {
    fn part(&mut self, rows: &Range<usize>) -> &mut [f32] {
        &mut self.data[rows.start * self.cols..rows.end * self.cols]
    }
}

impl RecurrentOps for ExampleBackend {
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
        x: &Rows,
        conv: &Conv<Self>,
        out: &mut Rows,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            let x = &x.data[rows.start * x.cols..rows.end * x.cols];
            reference::short_conv(state, x, &conv.on_host(), out.part(&rows));
        });
    }

    fn gated_delta_net(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &BatchInput,
        x: &mut Rows,
        net: &DeltaNet<Self>,
        out: &mut Rows,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            let (x, weights) = (x.part(&rows), net.on_host());
            reference::gated_delta_net(state, x, &net.shape, &weights, out.part(&rows));
        });
    }

    fn state_space(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &BatchInput,
        x: &mut Rows,
        model: &StateSpace<Self>,
        out: &mut Rows,
    ) {
        states.all.each_span(states.layer_idx, &batch.states, |state, rows| {
            let (x, weights) = (x.part(&rows), model.on_host());
            reference::state_space(state, x, &model.shape, &weights, out.part(&rows));
        });
    }
}
