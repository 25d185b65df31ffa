//! BERT (arXiv:1810.04805) and XLM-RoBERTa (arXiv:1911.02116): encoders with learned positions, segments, and
//! norms by mean and variance of the residual stream after each block.

use super::names::{GGUF_LAYER, HF_LAYER, LayerNames, TensorNames, gguf as gguf_names, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig, without_gguf};
use crate::config::{Activation, DecoderConfig, EncoderEmbedding, LearnedPositions, NormKind, NormPlacement};

pub(super) const FAMILY: Family = Family {
    model_type: "bert",
    aliases: &[],
    gguf_architectures: &["bert"],
    from_hf: |hf| from_hf(hf, "bert", 0),
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

pub(super) const FAMILY_XLM_ROBERTA: Family = Family {
    model_type: "xlm-roberta",
    aliases: &["roberta", "camembert"],
    // Files of this one say that they are of BERT, and leave out the rows of padding.
    gguf_architectures: &[],
    from_gguf: without_gguf,
    // The rows of the table before that of position 0 are of padding.
    from_hf: |hf| from_hf(hf, "xlm-roberta", hf.size("pad_token_id")?.unwrap_or(1) + 1),
    ..FAMILY
};

static NAMES: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    segments: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    layer_prefix: "encoder.layer.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "attention.output.LayerNorm",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "output.LayerNorm",
        query: "attention.self.query",
        key: "attention.self.key",
        value: "attention.self.value",
        attention_output: "attention.output.dense",
        gate: "",
        up: "intermediate.dense",
        gate_up: "",
        down: "output.dense",
        ..HF_LAYER
    })
};

/// Names in GGUF files of BERT and of Nomic's encoders; Nomic's networks also have gates.
pub(super) static GGUF_NAMES: TensorNames = gguf_names(LayerNames {
    pre_attention_norm: "",
    post_attention_norm: "attn_output_norm",
    pre_feed_forward_norm: "",
    post_feed_forward_norm: "layer_output_norm",
    gate_up: "",
    ..GGUF_LAYER
});

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let config = gguf.encoder("bert")?;
    let positions = LearnedPositions { n_rows: config.max_sequence_tokens, first_row: 0 };
    let encoder = config.encoder.map(|encoder| EncoderEmbedding { positions: Some(positions), ..encoder });
    let config = DecoderConfig { encoder, has_gates: false, activation: Activation::Gelu, ..config };
    Ok(post_norm_encoder(config).with_attention(|attention| attention.rope_idx = None))
}

fn from_hf(hf: &HfConfig, family: &'static str, first_row: usize) -> Result<DecoderConfig, ConfigError> {
    hf.only("position_embedding_type", "absolute")?;
    let n_rows = hf.size("max_position_embeddings")?.unwrap_or(512);
    let n_segments = hf.size("type_vocab_size")?.unwrap_or(2);
    let config = hf.llama(family)?;
    let config = DecoderConfig {
        max_sequence_tokens: n_rows.saturating_sub(first_row),
        norm_eps: hf.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        encoder: Some(EncoderEmbedding {
            positions: Some(LearnedPositions { n_rows, first_row }),
            n_segments,
        }),
        has_gates: false,
        ..config
    };
    Ok(post_norm_encoder(config).with_attention(|attention| attention.rope_idx = None))
}

/// An encoder whose norms are of the residual stream after each block.
pub(super) fn post_norm_encoder(config: DecoderConfig) -> DecoderConfig {
    let config = DecoderConfig {
        post_norm_eps: config.norm_eps,
        norm_kind: NormKind::Layer,
        norms: NormPlacement::PostSum,
        has_final_norm: false,
        tied_embeddings: true,
        ..config
    };
    config.with_attention(|attention| attention.is_bidirectional = true)
}
