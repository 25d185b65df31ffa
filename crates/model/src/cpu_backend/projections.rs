//! Products of rows with stacked matrices, and gated feed-forward networks. Does not know their use in a
//! model.

use throng_kernels::matmul::{RowNorm, gated_matmul};
use throng_kernels::rows;

use super::matrix::multiply;
use super::{CpuBackend, CpuMatrix};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{GatedMlp, Linear, Norm};
use crate::config::Activation;

/// Rows, and the norm that is applied to them first.
type Rows<'a> = (&'a HostTensor, Option<Norm<'a, CpuBackend>>);

impl CpuBackend {
    /// Writes a product to `out`, or adds it.
    pub(super) fn project(
        &mut self,
        x: Rows<'_>,
        w: &CpuMatrix,
        bias: Option<&Vec<f32>>,
        out: &mut HostTensor,
        adds: bool,
    ) {
        self.set_activations(x, w);
        let stride = out.cols();
        multiply(&self.activations, w, bias, out.as_mut_slice(), stride, adds, &self.pool);
    }

    /// Converts rows to the forms that the matrix is multiplied with.
    fn set_activations(&mut self, (x, norm): Rows<'_>, w: &CpuMatrix) {
        let x = x.as_slice();
        match norm {
            None => self.activations.set(x, w.cols(), w.forms(), &self.pool),
            Some(Norm { gain, bias: None, eps }) => {
                self.activations.set_normed(x, RowNorm { gain, eps }, w.forms(), &self.pool);
            }
            Some(Norm { gain, bias: Some(bias), eps }) => {
                self.normed.resize(self.normed.len().max(x.len()), 0.0);
                let normed = &mut self.normed[..x.len()];
                rows::layer_norm(x, gain, bias, eps, normed, &self.pool);
                self.activations.set(normed, w.cols(), w.forms(), &self.pool);
            }
        }
    }

    /// Computes the hidden activations of a network, in the forms that its down projection is multiplied
    /// with.
    pub(super) fn set_hidden(&mut self, x: Rows<'_>, mlp: &GatedMlp<Self>, activation: Activation) {
        let (gate_up, down) = (&mlp.gate_up, &mlp.down.weight);
        self.set_activations(x, &gate_up.weight);
        let biases = gate_up.bias.as_deref();
        if let Some(product) = gate_up.weight.gated_product(&self.activations, biases, activation) {
            return gated_matmul(
                &[product],
                down.forms(),
                std::slice::from_mut(&mut self.hidden),
                &self.pool,
            );
        }
        let (width, n_cols) = (down.cols(), gate_up.weight.rows());
        let (n_gates, n_hidden) = (x.0.n_rows() * n_cols, x.0.n_rows() * width);
        let buffer = &mut self.gates;
        buffer.resize(buffer.len().max(n_gates + n_hidden), 0.0);
        let (gates, hidden) = buffer[..n_gates + n_hidden].split_at_mut(n_gates);
        let bias = gate_up.bias.as_ref();
        multiply(&self.activations, &gate_up.weight, bias, gates, n_cols, false, &self.pool);
        rows::glu(gates, width, activation, hidden, &self.pool);
        self.hidden.set(hidden, width, down.forms(), &self.pool);
    }

    /// The product of the hidden activations with the down projection.
    pub(super) fn multiply_hidden(&self, down: &Linear<Self>, out: &mut HostTensor, adds: bool) {
        let stride = out.cols();
        let out = out.as_mut_slice();
        multiply(&self.hidden, &down.weight, down.bias.as_ref(), out, stride, adds, &self.pool);
    }
}
