//! A layer of the product's configurations as the planner's plain numbers.

use throng_model::config::{
    Activation, AttentionConfig, DecoderConfig, FeedForward, LatentConfig, LayerConfig, Mixer,
};
use throng_plan::model_shape::{CacheShape, Cut, ExpertShape, LayerShape, Matrix, gated_network};

/// The matrices, caches and states of a layer.
pub fn layer_shape(layer: &LayerConfig, config: &DecoderConfig) -> LayerShape {
    let hidden = config.hidden_size as f64;
    let mut shape = LayerShape { n_layers: 1.0, ..LayerShape::default() };
    shape.window = layer.mixer.reach().map(|n_positions| n_positions as u64);
    match &layer.mixer {
        Mixer::Attention(attention) => add_attention(&mut shape, attention, hidden),
        Mixer::Latent(latent) => add_latent(&mut shape, latent, hidden),
        Mixer::None => {}
        mixer => {
            if let Mixer::Hybrid(hybrid) = mixer {
                add_attention(&mut shape, &hybrid.attention, hidden);
            }
            let (input, output) = mixer.recurrent_widths(config.hidden_size).unwrap_or_default();
            shape.matrices.push(Matrix { n: input as f64, k: hidden, cut: Cut::Columns });
            shape.matrices.push(Matrix { n: hidden, k: output as f64, cut: Cut::Rows });
            let state = mixer.state(config.hidden_size).and_then(|state| state.n_elements());
            shape.state_bytes = state.unwrap_or(0) as f64 * size_of::<f32>() as f64;
        }
    }
    add_feed_forward(&mut shape, &layer.feed_forward, config);
    let has_mixer = !matches!(layer.mixer, Mixer::None);
    let has_network = !matches!(layer.feed_forward, FeedForward::None);
    shape.n_all_reduces = f64::from(u8::from(has_mixer) + u8::from(has_network));
    shape
}

fn add_attention(shape: &mut LayerShape, attention: &AttentionConfig, hidden: f64) {
    let width = attention.query_width() as f64;
    shape.matrices.push(Matrix { n: attention.qkv_width() as f64, k: hidden, cut: Cut::Columns });
    shape.matrices.push(Matrix { n: hidden, k: width, cut: Cut::Rows });
    shape.cache = Some(CacheShape {
        elements_per_token: 2.0 * (attention.n_kv_heads * attention.head_dim) as f64,
        n_heads: attention.n_kv_heads as f64,
        is_own: attention.kv_layer_idx.is_none(),
    });
    shape.operations_per_pair = 4.0 * width;
}

fn add_latent(shape: &mut LayerShape, latent: &LatentConfig, hidden: f64) {
    let (heads, rank) = (latent.n_heads as f64, latent.rank as f64);
    let query = heads * (latent.nope_dim + latent.rope_dim) as f64;
    let query_input = latent.query_rank.map_or(hidden, |rank| rank as f64);
    if latent.query_rank.is_some() {
        shape.matrices.push(Matrix { n: query_input, k: hidden, cut: Cut::None });
    }
    shape.matrices.push(Matrix { n: query, k: query_input, cut: Cut::Columns });
    shape.matrices.push(Matrix { n: latent.key_dim() as f64, k: hidden, cut: Cut::None });
    // Of each head: queries to the latent vector, and from it to values.
    shape.matrices.push(Matrix { n: heads * rank, k: latent.nope_dim as f64, cut: Cut::Columns });
    shape.matrices.push(Matrix { n: heads * latent.value_dim as f64, k: rank, cut: Cut::Columns });
    shape.matrices.push(Matrix { n: hidden, k: heads * latent.value_dim as f64, cut: Cut::Rows });
    // Keys of an indexer are beside the latent vector.
    let index_key = latent.indexer.filter(|indexer| indexer.cache_idx.is_some()).map_or(0, |i| i.head_dim);
    let elements_per_token = (latent.key_dim() + index_key) as f64;
    let cache = CacheShape { elements_per_token, n_heads: 1.0, is_own: true };
    shape.cache = Some(cache);
    shape.operations_per_pair = 2.0 * heads * (latent.key_dim() as f64 + rank);
}

/// The matrices of a network. The configuration gives a squared ReLU a gate that equals its input: files have
/// one matrix for both.
fn network(hidden: f64, width: f64, config: &DecoderConfig) -> Vec<Matrix> {
    if config.has_gates && config.activation != Activation::Relu {
        return gated_network(hidden, width);
    }
    vec![Matrix { n: width, k: hidden, cut: Cut::Columns }, Matrix { n: hidden, k: width, cut: Cut::Rows }]
}

fn add_feed_forward(shape: &mut LayerShape, feed_forward: &FeedForward, config: &DecoderConfig) {
    let hidden = config.hidden_size as f64;
    match feed_forward {
        FeedForward::None => {}
        FeedForward::Dense { width } => {
            shape.matrices.extend(network(hidden, *width as f64, config));
        }
        FeedForward::Experts { n_experts, width, routing, shared } => {
            let input = config.expert_size.map_or(hidden, |size| size as f64);
            if config.expert_size.is_some() {
                shape.matrices.push(Matrix { n: input, k: hidden, cut: Cut::None });
                shape.matrices.push(Matrix { n: hidden, k: input, cut: Cut::None });
            }
            shape.matrices.push(Matrix { n: *n_experts as f64, k: hidden, cut: Cut::None });
            if let Some(shared) = shared {
                shape.matrices.extend(network(hidden, shared.width as f64, config));
            }
            shape.experts = Some(ExpertShape {
                n_experts: *n_experts as f64,
                n_used: routing.n_used as f64,
                matrices: network(input, *width as f64, config),
            });
        }
    }
}
