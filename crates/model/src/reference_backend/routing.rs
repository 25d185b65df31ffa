//! The choice of experts in plain loops. Does not know experts.

use throng_kernels::reference;

use super::ReferenceBackend;
use crate::backend::Router;
use crate::config::{Routing, RoutingGroups, RoutingScore};

/// The experts of one row with their weights, in increasing order of expert.
pub(super) fn route(
    Router { logits, bias, scales, routing }: Router<'_, ReferenceBackend>,
    row_idx: usize,
) -> Vec<(usize, f32)> {
    let mut scores = logits.row(row_idx).to_vec();
    match routing.score {
        RoutingScore::SparseMixer { jitter } => return mix_sparsely(&scores, routing, jitter),
        RoutingScore::Softmax => reference::softmax(&mut scores),
        RoutingScore::Sigmoid => scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp())),
    }
    let mut biased = scores.clone();
    if let Some(bias) = bias {
        reference::add(&mut biased, bias);
    }
    if let Some(groups) = routing.groups {
        drop_groups(&mut biased, groups);
    }
    let mut chosen: Vec<usize> =
        reference::top_k(&biased, routing.n_used).into_iter().map(|expert_idx| expert_idx as usize).collect();
    chosen.sort_unstable();
    let of_chosen = chosen.iter().map(|&expert_idx| scores[expert_idx]);
    let sum: f32 = if routing.normalize { of_chosen.sum() } else { 1.0 };
    let weight = |expert_idx: usize| {
        let scale = scales.map_or(1.0, |scales| scales[expert_idx]);
        scores[expert_idx] / sum * scale * routing.scale
    };
    chosen.into_iter().map(|expert_idx| (expert_idx, weight(expert_idx))).collect()
}

/// Chooses experts one after the other, each with its probability among the remaining ones whose logits are
/// close to its own (arXiv:2409.12136).
fn mix_sparsely(logits: &[f32], routing: &Routing, jitter: f32) -> Vec<(usize, f32)> {
    let mut left = logits.to_vec();
    let mut chosen = Vec::new();
    for _ in 0..routing.n_used {
        let best = reference::top_k(&left, 1)[0] as usize;
        let most = left[best];
        let mut near = left.clone();
        for logit in &mut near {
            if (most - *logit) / logit.abs().max(most) > 2.0 * jitter {
                *logit = f32::NEG_INFINITY;
            }
        }
        reference::softmax(&mut near);
        chosen.push((best, near[best] * routing.scale));
        left[best] = f32::NEG_INFINITY;
    }
    chosen.sort_unstable_by_key(|(expert_idx, _)| *expert_idx);
    chosen
}

/// Experts outside the groups with the largest sums of their best experts (arXiv:2412.19437, 2.1.2) cannot be
/// chosen.
fn drop_groups(scores: &mut [f32], groups: RoutingGroups) {
    let size = scores.len() / groups.n_groups;
    let sum_of_best = |group: &[f32]| -> f32 {
        let best = reference::top_k(group, groups.n_summed);
        best.into_iter().map(|i| group[i as usize]).sum()
    };
    let of_groups: Vec<f32> = scores.chunks(size).map(sum_of_best).collect();
    let best = reference::top_k(&of_groups, groups.n_used);
    for (group_idx, group) in scores.chunks_mut(size).enumerate() {
        if !best.contains(&(group_idx as u32)) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}
