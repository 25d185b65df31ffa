//! The feed-forward block of a layer: a gated network or a mixture of them, with adapters or without. Does
//! not know attention.

use super::experts::mix_experts;
use super::weights::{FeedForwardWeights, LayerWeights};
use super::{LayerAdapters, Workspace, add_output, adds_directly, norm, post_norm};
use crate::backend::{Backend, Columns, GatedMlp, MlpScratch, Norm};
use crate::config::{Activation, DecoderConfig, FeedForward, LayerConfig};

/// The feed-forward block of a layer. Where it is parallel to the mixer, its result is left in the output
/// buffer.
pub(super) fn feed_forward<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    layer: &LayerConfig,
    weights: &LayerWeights<B>,
    adapters: LayerAdapters<'_, B>,
    ws: &mut Workspace<B>,
) {
    let (pre_norm, post_norm) =
        (norm(config, &weights.pre_feed_forward_norm), post_norm(config, &weights.post_feed_forward_norm));
    let (activation, scratch) = (config.activation, &mut ws.scratch);
    match (&weights.feed_forward, layer.feed_forward) {
        (FeedForwardWeights::Dense(mlp), _)
            if adapters.any(|l| &l.gate_up) || adapters.any(|l| &l.down) || config.mlp_scales != [1.0; 2] =>
        {
            let mlp = Mlp { weights: mlp, activation, norm: pre_norm };
            return adapted_mlp(backend, config, mlp, adapters, post_norm, ws);
        }
        (FeedForwardWeights::Dense(mlp), _) => {
            if !config.is_parallel && adds_directly(config, post_norm) {
                return backend.gated_mlp_add(pre_norm, mlp, activation, scratch, &mut ws.residual);
            }
            backend.gated_mlp(&ws.residual, pre_norm, mlp, activation, scratch, &mut ws.output);
            backend.all_reduce(&mut ws.output);
        }
        (FeedForwardWeights::Experts(experts), FeedForward::Experts { routing, .. }) => {
            mix_experts(backend, config, experts, &routing, pre_norm, ws);
        }
        (FeedForwardWeights::None, _) => return,
        (FeedForwardWeights::Experts(_), _) => {
            unreachable!("weights are loaded by the configuration")
        }
    }
    if !config.is_parallel {
        add_output(backend, config, post_norm, ws);
    }
}

/// A gated network and the operation before it.
struct Mlp<'a, B: Backend> {
    weights: &'a GatedMlp<B>,
    activation: Activation,
    norm: Option<Norm<'a, B>>,
}

/// A gated network of single operations, with adapters and factors between them. Fusions have the bits of the
/// operations that they consist of, so rows without an adapter have the bits that they have alone.
fn adapted_mlp<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    mlp: Mlp<'_, B>,
    adapters: LayerAdapters<'_, B>,
    post_norm: Option<Norm<'_, B>>,
    ws: &mut Workspace<B>,
) {
    let Mlp { weights: GatedMlp { width, gate_up, down }, activation, norm } = mlp;
    let n_rows = backend.n_rows(&ws.residual);
    let scratch_idx = ws.scratch.mlps.iter().position(|scratch| scratch.width == *width);
    // Taken out, because the last product takes the other scratch buffers.
    let mut scratch =
        ws.scratch.mlps.swap_remove(scratch_idx.expect("there is a scratch of the network's width"));
    let MlpScratch { gate_up: gates, hidden, .. } = &mut scratch;
    backend.set_rows(gates, n_rows);
    backend.set_rows(hidden, n_rows);
    let input = match norm {
        None => &ws.residual,
        Some(norm) => {
            backend.norm_rows(&ws.residual, norm, &mut ws.input);
            &ws.input
        }
    };
    backend.matmul(input, &gate_up.weight, gate_up.bias.as_ref(), gates);
    adapters.add(backend, input, |layer| &layer.gate_up, gates);
    let [gate_scale, scale] = config.mlp_scales;
    if gate_scale != 1.0 {
        backend.scale_columns(gates, Columns { first: 0, n_groups: 1, width: *width }, gate_scale);
    }
    backend.glu(gates, activation, hidden);
    let (weight, bias) = (&down.weight, down.bias.as_ref());
    if !config.is_parallel && adds_directly(config, post_norm) && scale == 1.0 {
        backend.matmul_add(hidden, weight, bias, &mut ws.scratch, &mut ws.residual);
        adapters.add(backend, hidden, |layer| &layer.down, &mut ws.residual);
        ws.scratch.mlps.push(scratch);
        return;
    }
    backend.matmul(hidden, weight, bias, &mut ws.output);
    backend.all_reduce(&mut ws.output);
    adapters.add(backend, hidden, |layer| &layer.down, &mut ws.output);
    if scale != 1.0 {
        backend.scale_and_cap(&mut ws.output, scale, None);
    }
    ws.scratch.mlps.push(scratch);
    if !config.is_parallel {
        add_output(backend, config, post_norm, ws);
    }
}
