//! The mixer of a layer, of any kind. Does not know how any of them is computed.

use super::attention::attend;
use super::hybrid::mix_both;
use super::latent::attend_latent;
use super::recurrent::run_recurrent;
use super::weights::{LayerWeights, MixerWeights};
use super::{LayerAdapters, Workspace};
use crate::backend::Backend;
use crate::config::{DecoderConfig, LayerConfig, Mixer};

/// Runs the mixer of a layer.
pub(super) fn mix_tokens<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    layer: &LayerConfig,
    (weights, adapters): (&LayerWeights<B>, LayerAdapters<'_, B>),
    ws: &mut Workspace<B>,
) {
    let layer_idx = adapters.layer_idx;
    match (&layer.mixer, &weights.mixer) {
        (Mixer::Attention(attention), MixerWeights::Attention(of_attention)) => {
            let weights = (weights, of_attention);
            attend(backend, cache, config, attention, (weights, adapters), ws);
        }
        (_, MixerWeights::Recurrent(recurrent)) => {
            run_recurrent(backend, config, &layer.mixer, layer_idx, (weights, recurrent), ws);
        }
        (Mixer::Hybrid(hybrid), MixerWeights::Hybrid(attention, recurrent)) => {
            let weights = (weights, attention, recurrent);
            mix_both(backend, cache, config, hybrid, (weights, adapters), ws);
        }
        (_, MixerWeights::None) => {}
        (Mixer::Latent(latent), MixerWeights::Latent(of_latent)) => {
            let weights = (weights, of_latent);
            attend_latent(backend, cache, config, latent, layer_idx, weights, ws);
        }
        _ => unreachable!("weights are loaded by the configuration"),
    }
}
