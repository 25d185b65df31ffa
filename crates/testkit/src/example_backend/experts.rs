//! Experts and their hidden activations on the example device, in plain loops. Does not know layers.

use throng_kernels::reference;
use throng_model::backend::{Expert, Router};
use throng_model::config::{Activation, RoutingScore};

use super::{ExampleBackend, Matrix, Rows};

/// Mixes the experts of every row; `share` multiplies the results.
pub(super) fn mix(
    x: &Rows,
    router: Router<'_, ExampleBackend>,
    experts: &[Expert<Matrix>],
    (activation, share): (Activation, f32),
    out: &mut Rows,
) {
    let routing = router.routing;
    for ((x, logits), out) in x.iter().zip(router.logits.iter()).zip(out.iter_mut()) {
        let mut weights = logits.to_vec();
        match routing.score {
            RoutingScore::Softmax => reference::softmax(&mut weights),
            RoutingScore::Sigmoid => weights.iter_mut().for_each(|w| *w = 1.0 / (1.0 + (-*w).exp())),
        }
        let biased = |e: usize| weights[e] + router.bias.map_or(0.0, |bias| bias[e]);
        let mut by_score: Vec<usize> = (0..weights.len()).collect();
        by_score.sort_by(|&a, &b| biased(b).total_cmp(&biased(a)));
        let used = &mut by_score[..routing.n_used];
        used.sort_unstable();
        let sum: f32 = if routing.normalize { used.iter().map(|&e| weights[e]).sum() } else { 1.0 };
        out.fill(0.0);
        for &mut expert in used {
            let hidden = hidden(&experts[expert].gate_up.multiply(x), activation);
            let result = experts[expert].down.multiply(&hidden);
            let weight = weights[expert] / sum * routing.scale * share;
            out.iter_mut().zip(result).for_each(|(out, result)| *out += weight * result);
        }
    }
}

/// The hidden activations of a gated network.
pub(super) fn hidden(gate_up: &[f32], activation: Activation) -> Vec<f32> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    let function = |x: f32| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
    };
    gate.iter().zip(up).map(|(gate, up)| function(*gate) * up).collect()
}
