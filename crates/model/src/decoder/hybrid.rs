//! A state space model and attention side by side in a layer: both read the same norm of the residual stream,
//! and both are added to it (Falcon H1). Does not know feed-forward blocks.

use super::attention::attend;
use super::recurrent::mix_states;
use super::weights::{AttentionWeights, LayerWeights, RecurrentWeights};
use super::{LayerAdapters, Workspace};
use crate::backend::Backend;
use crate::config::{DecoderConfig, HybridConfig, Mixer};

/// The weights of a layer, those of its attention and those of its state space model.
type Weights<'a, B> = (&'a LayerWeights<B>, &'a AttentionWeights<B>, &'a RecurrentWeights<B>);

/// Runs both mixers of a layer.
pub(super) fn mix_both<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    hybrid: &HybridConfig,
    ((weights, of_attention, of_states), adapters): (Weights<'_, B>, LayerAdapters<'_, B>),
    ws: &mut Workspace<B>,
) {
    // Attention is added to the residual stream directly, and leaves the output buffer as it is.
    mix_states(backend, config, &Mixer::Hybrid(*hybrid), adapters.layer_idx, (weights, of_states), ws);
    attend(backend, cache, config, &hybrid.attention, ((weights, of_attention), adapters), ws);
    backend.add(&mut ws.residual, &ws.output, hybrid.state_scale);
}
