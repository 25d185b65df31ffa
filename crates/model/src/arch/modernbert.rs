//! ModernBERT (arXiv:2412.13663): an encoder with rotated queries and keys, gated networks, norms before each block, and windows
//! on two layers of three, which have a rotary embedding of their own.

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{DecoderConfig, EncoderEmbedding, NormKind};

pub(super) const FAMILY: Family = Family {
    model_type: "modernbert",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = TensorNames {
    embedding: "embeddings.tok_embeddings",
    embedding_norm: "embeddings.norm",
    final_norm: "final_norm",
    layer_prefix: "layers.",
    ..hf(LayerNames {
        pre_attention_norm: "attn_norm",
        pre_feed_forward_norm: "mlp_norm",
        query_key_value: "attn.Wqkv",
        attention_output: "attn.Wo",
        gate: "",
        up: "",
        gate_up: "mlp.Wi",
        down: "mlp.Wo",
        ..HF_LAYER
    })
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.only("position_embedding_type", "absolute")?;
    let config = hf.llama("modernbert")?;
    let interval = hf.size("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    // So many positions to each side, and its own.
    let window = hf.size("local_attention")?.unwrap_or(128) / 2 + 1;
    let head_dim = hf.head_dim()?;
    let rope = |layer_type: &str, key: &str, theta: f64| {
        let own = hf.get("rope_parameters").and_then(|parameters| parameters.get(layer_type)).is_some();
        match own {
            true => hf.rope(layer_type, head_dim),
            false => HfConfig::plain_rope(hf.number(key)?.unwrap_or(theta), head_dim),
        }
    };
    let ropes = vec![
        rope("full_attention", "global_rope_theta", 160_000.0)?,
        rope("sliding_attention", "local_rope_theta", 10_000.0)?,
    ];
    let norm_eps = hf.number("norm_eps")?.unwrap_or(1e-5) as f32;
    let mut config = DecoderConfig {
        norm_eps,
        post_norm_eps: norm_eps,
        encoder: Some(EncoderEmbedding { positions: None, n_segments: 0 }),
        norm_kind: NormKind::Layer,
        lacks_first_norm: true,
        activation: hf.activation("hidden_activation")?,
        tied_embeddings: true,
        ropes,
        ..config
    };
    config.set_windows(|layer_idx| (!layer_idx.is_multiple_of(interval)).then_some(window));
    hf.check_understood()?;
    Ok(config.with_attention(|attention| {
        attention.rope_idx = Some(usize::from(attention.sliding_window.is_some()));
        attention.is_bidirectional = true;
    }))
}
