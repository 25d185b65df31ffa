//! MPNet (arXiv:2004.09297): BERT without segments, whose scores of attention have a bias for each head and
//! bucket of distances. Source: the modelling file of `mpnet` in transformers.

use super::bert::post_norm_encoder;
use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{
    Activation, DecoderConfig, EncoderEmbedding, LearnedPositions, RelativeKind, RelativePositions,
};

pub(super) const FAMILY: Family = Family {
    model_type: "mpnet",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    relative: "encoder.relative_attention_bias",
    layer_prefix: "encoder.layer.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "attention.LayerNorm",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "output.LayerNorm",
        query: "attention.attn.q",
        key: "attention.attn.k",
        value: "attention.attn.v",
        attention_output: "attention.attn.o",
        gate: "",
        up: "intermediate.dense",
        gate_up: "",
        down: "output.dense",
        ..HF_LAYER
    })
};

/// Row of the table of positions for the first token: earlier rows are for padding.
const FIRST_ROW: usize = 2;

/// Buckets of distances.
const N_BUCKETS: usize = 32;

/// Distances from this on are of one bucket.
const MAX_DISTANCE: f32 = 128.0;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let n_rows = hf.size("max_position_embeddings")?.unwrap_or(512);
    // The published model computes buckets of this number, whatever the table has.
    hf.only("relative_attention_num_buckets", "32")?;
    let config = hf.llama("mpnet")?;
    let max_sequence_tokens = n_rows.saturating_sub(FIRST_ROW);
    let n_distances = max_sequence_tokens.min(MAX_DISTANCE as usize + 1).max(1);
    let config = DecoderConfig {
        max_sequence_tokens,
        norm_eps: hf.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        activation: if hf.get("hidden_act").is_some() { config.activation } else { Activation::Gelu },
        encoder: Some(EncoderEmbedding {
            positions: Some(LearnedPositions { n_rows, first_row: FIRST_ROW }),
            n_segments: 0,
        }),
        relative: Some(RelativePositions::new(RelativeKind::Bias, N_BUCKETS, n_distances, bucket)),
        has_gates: false,
        ..config
    };
    Ok(post_norm_encoder(config).with_attention(|attention| attention.rope_idx = None))
}

/// The bucket of a distance, position of the query minus position of the key: half of them for either
/// direction, of these half for single distances and half by their logarithm (arXiv:1910.10683).
fn bucket(distance: i64) -> usize {
    let of_direction = N_BUCKETS / 2;
    let n_exact = of_direction / 2;
    let first = if distance < 0 { of_direction } else { 0 };
    let n = distance.unsigned_abs() as usize;
    if n < n_exact {
        return first + n;
    }
    let exact = n_exact as f32;
    // In f32 and in this order, as where the model was trained.
    let share = (n as f32 / exact).ln() / f64::from(MAX_DISTANCE / exact).ln() as f32;
    let large = n_exact + (share * (of_direction - n_exact) as f32) as usize;
    first + large.min(of_direction - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by `MPNetEncoder.relative_position_bucket` of transformers 5.24 with torch 2.15.
    #[test]
    fn buckets_are_those_of_transformers() {
        let distances = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 500];
        let expected = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15];
        for (distance, expected) in distances.into_iter().zip(expected) {
            assert_eq!(bucket(distance), expected, "{distance}");
            let other = if distance == 0 { 0 } else { expected + 16 };
            assert_eq!(bucket(-distance), other, "-{distance}");
        }
    }
}
