//! Expert choice of a mixture of experts.

use super::rows::{softmax, top_k};

/// Weights of the chosen experts by router logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScore {
    /// Softmax over all experts, weights as they are (Qwen2-MoE with `norm_topk_prob = false`).
    SoftmaxAll,
    /// Softmax over all experts, the chosen ones renormalized to sum 1 (Qwen3-MoE; equals Mixtral's softmax
    /// over the chosen, arXiv:2401.04088, up to rounding).
    SoftmaxRenormalized,
    /// Softmax over the chosen logits only (Mixtral).
    SoftmaxChosen,
}

/// Routing by sigmoid: chooses the `experts.len()` experts of one row of router logits with the largest sum
/// of sigmoid and bias, largest first; their weights are the sigmoids without the bias (arXiv:2412.19437
/// without groups).
///
/// # Panics
/// When lengths differ or more experts are requested than there are.
pub fn route_sigmoid(logits: &[f32], bias: &[f32], experts: &mut [u32], weights: &mut [f32]) {
    let k = experts.len();
    assert!(
        weights.len() == k && k <= logits.len() && bias.len() == logits.len(),
        "{k} of {} experts",
        logits.len()
    );
    let scores: Vec<f32> = logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
    let biased: Vec<f32> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    experts.copy_from_slice(&top_k(&biased, k));
    for (weight, &expert) in weights.iter_mut().zip(&*experts) {
        *weight = scores[expert as usize];
    }
}

/// Chooses `experts.len()` experts of one row of router logits, most probable first, and their weights.
///
/// # Panics
/// When `experts` and `weights` differ in length or request more experts than there are.
pub fn route_top_k(logits: &[f32], score: RouteScore, experts: &mut [u32], weights: &mut [f32]) {
    let k = experts.len();
    assert!(weights.len() == k && k <= logits.len(), "{k} of {} experts", logits.len());
    experts.copy_from_slice(&top_k(logits, k));
    let mut scores = logits.to_vec();
    if score == RouteScore::SoftmaxChosen {
        scores = experts.iter().map(|&e| logits[e as usize]).collect();
        softmax(&mut scores);
        return weights.copy_from_slice(&scores);
    }
    softmax(&mut scores);
    for (weight, &expert) in weights.iter_mut().zip(&*experts) {
        *weight = scores[expert as usize];
    }
    if score == RouteScore::SoftmaxRenormalized {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
    }
}
