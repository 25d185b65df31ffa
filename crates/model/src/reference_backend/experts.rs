//! Experts and their hidden activations in plain loops. Does not know how experts are chosen.

use throng_kernels::reference;

use super::routing::route;
use super::{ReferenceBackend, multiply};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{Expert, Linear, Router};
use crate::config::Activation;

/// Mixes the experts of every row.
pub(super) fn mix(
    x: &HostTensor,
    router: Router<'_, ReferenceBackend>,
    experts: &[Expert<ReferenceBackend>],
    activation: Activation,
    out: &mut HostTensor,
) {
    let width = experts[0].down.weight.cols;
    let (mut gate_up, mut hidden) = (vec![0.0; 2 * width], vec![0.0; width]);
    let mut result = vec![0.0; out.cols()];
    for row_idx in 0..x.n_rows() {
        let sum = out.row_mut(row_idx);
        sum.fill(0.0);
        for (expert_idx, mut weight) in route(router, row_idx) {
            let expert = &experts[expert_idx];
            let mut input = x.row(row_idx).to_vec();
            if router.routing.scales_inputs {
                reference::scale(&mut input, std::mem::replace(&mut weight, 1.0));
            }
            multiply_linear(&input, &expert.gate_up, &mut gate_up);
            glu_row(&gate_up, activation, &mut hidden);
            multiply_linear(&hidden, &expert.down, &mut result);
            sum.iter_mut().zip(&result).for_each(|(sum, result)| *sum += weight * result);
        }
    }
}

fn multiply_linear(x: &[f32], linear: &Linear<ReferenceBackend>, out: &mut [f32]) {
    multiply(x, &linear.weight, out);
    if let Some(bias) = &linear.bias {
        reference::add_bias(out, bias);
    }
}

/// The hidden activations of a network, gated or not.
pub(super) fn glu_row(gate_up: &[f32], activation: Activation, out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    let ones = vec![1.0; if up.is_empty() { out.len() } else { 0 }];
    let up = if up.is_empty() { &ones } else { up };
    out.copy_from_slice(gate);
    match activation {
        Activation::Silu => reference::silu_mul(out, up),
        Activation::GeluTanh => reference::gelu_tanh_mul(out, up),
        Activation::Gelu => reference::gelu_mul(out, up),
        Activation::Relu => reference::relu_mul(out, up),
        Activation::ClampedSwiglu { alpha, limit } => reference::clamped_swiglu(out, up, alpha, limit),
    }
}
