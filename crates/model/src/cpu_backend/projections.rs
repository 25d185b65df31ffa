//! Products of rows with stacked matrices, and gated units. Refuses to know what they are for.

use throng_kernels::matmul::{RowNorm, gated_matmul};
use throng_kernels::rows;

use super::matrix::multiply;
use super::{CpuBackend, CpuMatrix, gate};
use crate::backend::{GatedUnit, Linear, Operand};
use crate::config::Activation;
use crate::host_buffer::HostBuffer;

impl CpuBackend {
    pub(super) fn project(
        &mut self,
        x: Operand<'_, Self>,
        w: &CpuMatrix,
        bias: Option<&Vec<f32>>,
        out: &mut HostBuffer,
        adds: bool,
    ) {
        self.take(x, w);
        let stride = out.cols();
        multiply(&self.activations, w, bias, (out.as_mut_slice(), stride), adds, &self.pool);
    }

    /// Takes a product's rows in the forms that its matrix needs.
    fn take(&mut self, x: Operand<'_, Self>, w: &CpuMatrix) {
        let rows = x.x.as_slice();
        match x.norm {
            None => self.activations.set(rows, w.cols(), w.forms(), &self.pool),
            Some((gain, eps)) => {
                self.activations.set_normed(rows, RowNorm { gain, eps }, w.forms(), &self.pool);
            }
        }
    }

    /// Takes what a unit's gate lets through in the forms that the product behind it needs.
    pub(super) fn take_gated(
        &mut self,
        x: Operand<'_, Self>,
        unit: &GatedUnit<Self>,
        activation: Activation,
    ) {
        let (gate_up, down) = (&unit.gate_up, &unit.down.weight);
        self.take(x, &gate_up.weight);
        let (gate, biases) = (gate(activation), gate_up.bias.as_deref());
        if let Some(product) = gate_up.weight.gated_product(&self.activations, biases, gate) {
            return gated_matmul(
                &[product],
                down.forms(),
                std::slice::from_mut(&mut self.hidden),
                &self.pool,
            );
        }
        let (width, n_gates) = (down.cols(), x.x.n_rows() * 2 * down.cols());
        let room = &mut self.gates;
        room.resize(room.len().max(n_gates / 2 * 3), 0.0);
        let (gates, hidden) = room[..n_gates / 2 * 3].split_at_mut(n_gates);
        let bias = gate_up.bias.as_ref();
        multiply(&self.activations, &gate_up.weight, bias, (gates, 2 * width), false, &self.pool);
        rows::glu(gates, width, gate, hidden, &self.pool);
        self.hidden.set(hidden, width, down.forms(), &self.pool);
    }

    /// The product with what was taken so.
    pub(super) fn multiply_hidden(&self, down: &Linear<Self>, out: &mut HostBuffer, adds: bool) {
        let stride = out.cols();
        let out = (out.as_mut_slice(), stride);
        multiply(&self.hidden, &down.weight, down.bias.as_ref(), out, adds, &self.pool);
    }
}
