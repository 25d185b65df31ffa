//! Experts and their hidden activations on the example device, in plain loops. Does not know layers.

use throng_kernels::reference;
use throng_model::backend::{Expert, Linear, Router};
use throng_model::config::{Activation, RoutingScore};

use super::{ExampleBackend, Rows};

/// Mixes the experts of every row; `share` multiplies the results.
pub(super) fn mix(
    x: &Rows,
    router: Router<'_, ExampleBackend>,
    experts: &[Expert<ExampleBackend>],
    (activation, share): (Activation, f32),
    out: &mut Rows,
) {
    let routing = router.routing;
    for ((x, logits), out) in x.iter().zip(router.logits.iter()).zip(out.iter_mut()) {
        let mut weights = logits.to_vec();
        match routing.score {
            RoutingScore::Softmax => reference::softmax(&mut weights),
            RoutingScore::Sigmoid => weights.iter_mut().for_each(|w| *w = 1.0 / (1.0 + (-*w).exp())),
            RoutingScore::SparseMixer { jitter } => weigh_sparsely(&mut weights, routing.n_used, jitter),
        }
        let in_groups = in_best_groups(&weights, router);
        let biased = |e: usize| match in_groups[e] {
            true => weights[e] + router.bias.map_or(0.0, |bias| bias[e]),
            false => f32::NEG_INFINITY,
        };
        let mut by_score: Vec<usize> = (0..weights.len()).collect();
        by_score.sort_by(|&a, &b| biased(b).total_cmp(&biased(a)));
        let used = &mut by_score[..routing.n_used];
        used.sort_unstable();
        let sum: f32 = if routing.normalize { used.iter().map(|&e| weights[e]).sum() } else { 1.0 };
        out.fill(0.0);
        for &mut expert in used {
            let mut weight = weights[expert] / sum * routing.scale;
            weight *= router.scales.map_or(1.0, |scales| scales[expert]);
            let input_scale = if routing.scales_inputs { std::mem::replace(&mut weight, 1.0) } else { 1.0 };
            let input: Vec<f32> = x.iter().map(|x| x * input_scale).collect();
            let gates = multiply(&experts[expert].gate_up, &input);
            let hidden = hidden(&gates, gates.len() / 2, activation);
            let result = multiply(&experts[expert].down, &hidden);
            out.iter_mut().zip(result).for_each(|(out, result)| *out += weight * share * result);
        }
    }
}

/// Replaces logits by the weights of SparseMixer: positive for the `n_used` best experts, 0 for the others.
fn weigh_sparsely(logits: &mut [f32], n_used: usize, jitter: f32) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut weights = vec![0.0; logits.len()];
    for (rank, &expert) in order[..n_used].iter().enumerate() {
        let most = logits[expert];
        let is_near = |logit: f32| (most - logit) <= 2.0 * jitter * logit.abs().max(most);
        let near = order[rank..].iter().map(|&e| logits[e]).filter(|logit| is_near(*logit));
        weights[expert] = 1.0 / near.map(|logit| (logit - most).exp()).sum::<f32>();
    }
    logits.copy_from_slice(&weights);
}

/// Experts in a group that may be chosen from.
fn in_best_groups(scores: &[f32], router: Router<'_, ExampleBackend>) -> Vec<bool> {
    let Some(groups) = router.routing.groups else { return vec![true; scores.len()] };
    let size = scores.len() / groups.n_groups;
    let biased = |e: usize| scores[e] + router.bias.map_or(0.0, |bias| bias[e]);
    let of_group = |group: usize| -> f32 {
        let mut best: Vec<f32> = (group * size..(group + 1) * size).map(biased).collect();
        best.sort_by(|a, b| b.total_cmp(a));
        best[..groups.n_summed].iter().sum()
    };
    let mut by_score: Vec<usize> = (0..groups.n_groups).collect();
    by_score.sort_by(|&a, &b| of_group(b).total_cmp(&of_group(a)));
    (0..scores.len()).map(|e| by_score[..groups.n_used].contains(&(e / size))).collect()
}

fn multiply(linear: &Linear<ExampleBackend>, x: &[f32]) -> Vec<f32> {
    let mut product = linear.weight.multiply(x);
    if let Some(bias) = &linear.bias {
        product.iter_mut().zip(bias).for_each(|(product, bias)| *product += bias);
    }
    product
}

/// The hidden activations of a network, gated or not.
pub(super) fn hidden(gate_up: &[f32], width: usize, activation: Activation) -> Vec<f32> {
    let (gate, up) = gate_up.split_at(width);
    let up = up.iter().copied().chain(std::iter::repeat(1.0));
    let of = |gate: f32, up: f32| match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::Gelu => reference::gelu(gate) * up,
        Activation::Relu => gate.max(0.0) * up,
        Activation::GeluTanh => {
            let u = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044715 * gate * gate * gate);
            0.5 * gate * (1.0 + u.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let gate = gate.min(limit);
            gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
    };
    gate.iter().zip(up).map(|(gate, up)| of(*gate, up)).collect()
}
