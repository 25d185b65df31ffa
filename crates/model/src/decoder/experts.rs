//! A mixture of experts, with a shared expert or without. Does not know attention.

use super::weights::{ExpertNorms, ExpertsWeights};
use super::{Workspace, post_norm_of};
use crate::backend::{Backend, Columns, Norm, Router};
use crate::config::{DecoderConfig, Routing};

/// Computes the mixture of the residual stream, summed over devices, into the output.
pub(super) fn mix_experts<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    weights: &ExpertsWeights<B>,
    routing: &Routing,
    pre_norm: Option<Norm<'_, B>>,
    ws: &mut Workspace<B>,
) {
    if let Some(norms) = weights.shared.as_ref().and_then(|shared| shared.norms.as_ref()) {
        return mix_normed_experts(backend, config, weights, routing, norms, pre_norm, ws);
    }
    let (activation, scratch) = (config.activation, &mut ws.scratch);
    let input = match pre_norm {
        None => &ws.residual,
        Some(norm) => {
            backend.norm_rows(&ws.residual, norm, &mut ws.input);
            &ws.input
        }
    };
    let routed = ws.routed.as_mut().expect("a model with experts has their buffers");
    let linear = &weights.router;
    backend.matmul(input, &linear.weight, linear.bias.as_ref(), &mut routed.router_logits);
    let router = weights.router(&routed.router_logits, routing);
    let experts = &weights.experts;
    match weights.latent.as_ref().zip(routed.latent.as_mut()) {
        None => backend.mixture_of_experts(input, router, experts, activation, &mut ws.output),
        Some(([down, up], [narrow, result])) => {
            backend.matmul(input, down, None, narrow);
            backend.mixture_of_experts(narrow, router, experts, activation, result);
            backend.matmul(result, up, None, &mut ws.output);
        }
    }
    if let (Some(shared), Some(buffers)) = (&weights.shared, &mut routed.shared) {
        backend.gated_mlp(input, None, &shared.mlp, activation, scratch, &mut buffers.output);
        if let Some(gate) = &shared.router {
            backend.matmul(input, gate, None, &mut buffers.gate);
            backend.gate_rows(&mut buffers.output, &buffers.gate);
        }
        backend.add(&mut ws.output, &buffers.output, 1.0);
    }
    backend.all_reduce(&mut ws.output);
}

/// Computes the mixture if the shared expert, the router and the other experts have norms of their own.
fn mix_normed_experts<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    weights: &ExpertsWeights<B>,
    routing: &Routing,
    norms: &ExpertNorms<B>,
    pre_norm: Option<Norm<'_, B>>,
    ws: &mut Workspace<B>,
) {
    let (activation, scratch) = (config.activation, &mut ws.scratch);
    let routed = ws.routed.as_mut().expect("a model with experts has their buffers");
    let (shared, buffers) = weights.shared.as_ref().zip(routed.shared.as_mut()).expect("it has norms");
    let whole = Columns { first: 0, n_groups: 1, width: config.hidden_size };
    let before = |gain| Norm::rms(gain, config.norm_eps);
    backend.gated_mlp(&ws.residual, pre_norm, &shared.mlp, activation, scratch, &mut buffers.output);
    backend.all_reduce(&mut buffers.output);
    backend.norm_columns(&mut buffers.output, whole, post_norm_of(config, &norms.after_shared));

    backend.norm_rows(&ws.residual, before(&norms.router), &mut ws.input);
    backend.matmul(&ws.input, &weights.router.weight, None, &mut routed.router_logits);
    backend.norm_rows(&ws.residual, before(&norms.before_experts), &mut ws.input);
    let router = weights.router(&routed.router_logits, routing);
    backend.mixture_of_experts(&ws.input, router, &weights.experts, activation, &mut ws.output);
    backend.all_reduce(&mut ws.output);
    backend.norm_columns(&mut ws.output, whole, post_norm_of(config, &norms.after_experts));
    backend.add(&mut ws.output, &buffers.output, 1.0);
}

impl<B: Backend> ExpertsWeights<B> {
    fn router<'a>(&'a self, logits: &'a B::Buffer, routing: &'a Routing) -> Router<'a, B> {
        Router { logits, bias: self.router_bias.as_ref(), scales: self.scales.as_ref(), routing }
    }
}
