//! GTE of 2024 (`gte`, on the hub also `new`; arXiv:2407.19669) and Jina Embeddings 3 (`jina_embeddings_v3`,
//! arXiv:2409.10173): BERT with rotated queries and keys, GTE with gated networks besides. Source: their
//! modelling files in transformers; adapters of Jina's tasks are files of their own.

use serde_json::Value;

use super::bert::{GGUF_NAMES, post_norm_encoder};
use super::names::{HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig, without_gguf};
use crate::config::{Activation, DecoderConfig, EncoderEmbedding};

pub(super) const FAMILY: Family = Family {
    model_type: "gte",
    aliases: &["new"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

pub(super) const FAMILY_JINA_3: Family = Family {
    model_type: "jina_embeddings_v3",
    aliases: &[],
    gguf_architectures: &["jina-bert-v3"],
    from_hf: jina_from_hf,
    from_gguf: jina_from_gguf,
    hf_names: &JINA_NAMES,
    gguf_names: &GGUF_NAMES,
};

static NAMES: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings",
    segments: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    layer_prefix: "encoder.layer.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "attn_ln",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "mlp_ln",
        query_key_value: "attention.qkv_proj",
        attention_output: "attention.o_proj",
        gate: "",
        up: "",
        gate_up: "",
        up_gate: "mlp.up_gate_proj",
        down: "mlp.down_proj",
        ..HF_LAYER
    })
};

static JINA_NAMES: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings",
    segments: "embeddings.token_type_embeddings",
    embedding_norm: "emb_ln",
    layer_prefix: "encoder.layers.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "norm1",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "norm2",
        query_key_value: "mixer.Wqkv",
        attention_output: "mixer.out_proj",
        gate: "",
        up: "mlp.fc1",
        gate_up: "",
        down: "mlp.fc2",
        ..HF_LAYER
    })
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.only("layer_norm_type", "layer_norm")?;
    hf.only("position_embedding_type", "rope")?;
    hf.only("logn_attention_scale", "false")?;
    encoder(&hf.with_defaults(&[("rope_theta", 160_000)]), "gte", 1e-12)
}

fn jina_from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let config = encoder(&hf.with_defaults(&[("rope_theta", 20_000)]), "jina_embeddings_v3", 1e-5)?;
    Ok(DecoderConfig { has_gates: false, ..config })
}

fn jina_from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let config = post_norm_encoder(gguf.encoder("jina_embeddings_v3")?);
    Ok(DecoderConfig { has_gates: false, activation: Activation::Gelu, ..config })
}

fn encoder(hf: &HfConfig, family: &'static str, norm_eps: f64) -> Result<DecoderConfig, ConfigError> {
    let config = hf.llama(family)?;
    let is_named = hf.get("hidden_act").and_then(Value::as_str).is_some();
    let config = DecoderConfig {
        norm_eps: hf.number("layer_norm_eps")?.unwrap_or(norm_eps) as f32,
        activation: if is_named { config.activation } else { Activation::Gelu },
        encoder: Some(EncoderEmbedding {
            positions: None,
            n_segments: hf.size("type_vocab_size")?.unwrap_or(1),
        }),
        ..config
    };
    Ok(post_norm_encoder(config))
}
