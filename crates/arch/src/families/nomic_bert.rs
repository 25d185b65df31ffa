//! Nomic BERT (arXiv:2402.01613): BERT with rotated queries and keys in the place of learned positions, and
//! gated networks.

use super::bert::{GGUF_NAMES, post_norm_encoder};
use super::names::{HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, HfConfig};
use crate::config::{DecoderConfig, EncoderEmbedding};

pub(super) const FAMILY: Family = Family {
    model_type: "nomic_bert",
    aliases: &[],
    gguf_architectures: &["nomic-bert"],
    from_hf,
    from_gguf: |gguf| Ok(post_norm_encoder(gguf.encoder("nomic_bert")?)),
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

static NAMES: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings",
    segments: "embeddings.token_type_embeddings",
    embedding_norm: "emb_ln",
    layer_prefix: "encoder.layers.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "norm1",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "norm2",
        query_key_value: "attn.Wqkv",
        attention_output: "attn.out_proj",
        gate: "mlp.fc12",
        up: "mlp.fc11",
        gate_up: "",
        down: "mlp.fc2",
        ..HF_LAYER
    })
};

/// Sizes under the names that the model's own code gives them.
const OWN_NAMES: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
];

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut hf = hf.with_defaults(&[]);
    for (name, own) in OWN_NAMES {
        if let Some(size) = hf.size(own)? {
            hf = hf.with_size(name, size);
        }
    }
    hf.only("activation_function", "swiglu")?;
    hf.only("rotary_emb_fraction", "1.0")?;
    for key in ["prenorm", "causal", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"] {
        hf.only(key, "false")?;
    }
    let mut config = hf.llama("nomic_bert")?;
    if let Some(theta) = hf.number("rotary_emb_base")? {
        config.ropes = vec![HfConfig::plain_rope(theta, hf.head_dim()?)?];
        // Beyond the length of its training the published model scales its rotation by the length of each sequence.
        let trained = hf.size("max_trained_positions")?.unwrap_or(config.max_sequence_tokens);
        config.max_sequence_tokens = config.max_sequence_tokens.min(trained);
    }
    let eps = match hf.number("layer_norm_eps")? {
        Some(eps) => eps,
        None => hf.number("layer_norm_epsilon")?.unwrap_or(1e-12),
    };
    let config = DecoderConfig {
        norm_eps: eps as f32,
        encoder: Some(EncoderEmbedding {
            positions: None,
            n_segments: hf.size("type_vocab_size")?.unwrap_or(2),
        }),
        ..config
    };
    Ok(post_norm_encoder(config))
}
