//! ModernBERT (arXiv:2412.13663): an encoder with rotated queries and keys, gated networks, norms before each
//! block, and windows on two layers of three, which have a rotary embedding of their own.

use super::names::{GGUF_LAYER, HF_LAYER, LayerNames, TensorNames, gguf as gguf_names, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{Activation, DecoderConfig, EncoderEmbedding, NormKind, RopeTable};

pub(super) const FAMILY: Family = Family {
    model_type: "modernbert",
    aliases: &[],
    gguf_architectures: &["modern-bert"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

static GGUF_NAMES: TensorNames = gguf_names(LayerNames { post_attention_norm: "", gate: "", ..GGUF_LAYER });

/// Bases of the rotary embeddings of layers without and with a window.
const THETAS: [f64; 2] = [160_000.0, 10_000.0];

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
        rope("full_attention", "global_rope_theta", THETAS[0])?,
        rope("sliding_attention", "local_rope_theta", THETAS[1])?,
    ];
    let norm_eps = hf.number("norm_eps")?.unwrap_or(1e-5) as f32;
    let config = DecoderConfig {
        norm_eps,
        post_norm_eps: norm_eps,
        encoder: Some(EncoderEmbedding { positions: None, n_segments: 0 }),
        norm_kind: NormKind::Layer,
        activation: hf.activation("hidden_activation")?,
        tied_embeddings: true,
        ..config
    };
    Ok(finish(config, ropes, |layer_idx| (!layer_idx.is_multiple_of(interval)).then_some(window)))
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let config = gguf.encoder("modernbert")?;
    let windowed = gguf.windowed(3, true)?;
    let window = gguf.size("attention.sliding_window")?.filter(|window| *window > 0);
    let head_dim = gguf.head_dim()?;
    let rope = |key: &str, theta: f64| HfConfig::plain_rope(gguf.number(key)?.unwrap_or(theta), head_dim);
    let ropes = vec![rope("rope.freq_base", THETAS[0])?, rope("rope.freq_base_swa", THETAS[1])?];
    let activation = match gguf.text("hidden_activation")? {
        None | Some("gelu") => Activation::Gelu,
        Some("silu") => Activation::Silu,
        Some(other) => return Err(ConfigError::invalid("hidden_activation", other, "gelu or silu")),
    };
    let config = DecoderConfig { activation, ..config };
    // Half of the window to each side.
    Ok(finish(config, ropes, |layer_idx| window.filter(|_| windowed(layer_idx)).map(|window| window / 2 + 1)))
}

/// Layers with a window use the second, local rotary embedding.
fn finish(
    config: DecoderConfig,
    ropes: Vec<RopeTable>,
    window: impl Fn(usize) -> Option<usize>,
) -> DecoderConfig {
    let mut config = DecoderConfig { lacks_first_norm: true, ropes, ..config };
    config.set_windows(window);
    config.with_attention(|attention| {
        attention.rope_idx = Some(usize::from(attention.sliding_window.is_some()));
        attention.is_bidirectional = true;
    })
}
