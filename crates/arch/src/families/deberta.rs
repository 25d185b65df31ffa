//! DeBERTa 2 and 3 (arXiv:2006.03654, arXiv:2111.09543): BERT with products of queries and keys with
//! embeddings of distances in the scores of attention. Source: the modelling file of `deberta_v2` in
//! transformers.

use serde_json::Value;

use super::bert::post_norm_encoder;
use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{
    Activation, DecoderConfig, EncoderEmbedding, LearnedPositions, RelativeKind, RelativePositions,
};

pub(super) const FAMILY: Family = Family {
    model_type: "deberta-v2",
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
    segments: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    relative: "encoder.rel_embeddings",
    relative_norm: "encoder.LayerNorm",
    layer_prefix: "encoder.layer.",
    ..hf(LayerNames {
        pre_attention_norm: "",
        post_attention_norm: "attention.output.LayerNorm",
        pre_feed_forward_norm: "",
        post_feed_forward_norm: "output.LayerNorm",
        query: "attention.self.query_proj",
        key: "attention.self.key_proj",
        value: "attention.self.value_proj",
        relative_query: "attention.self.pos_query_proj",
        relative_key: "attention.self.pos_key_proj",
        attention_output: "attention.output.dense",
        gate: "",
        up: "intermediate.dense",
        gate_up: "",
        down: "output.dense",
        ..HF_LAYER
    })
};

/// Maximum number of buckets of distances in either direction.
const MAX_BUCKETS: usize = 1 << 12;
/// Maximum number of distinct distances in either direction.
const MAX_DISTANCES: usize = 1 << 16;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.only("relative_attention", "true")?;
    hf.only("conv_kernel_size", "0")?;
    let config = hf.llama("deberta-v2")?;
    for (key, size) in [("embedding_size", config.hidden_size), ("attention_head_size", hf.head_dim()?)] {
        if let Some(other) = hf.size(key)?.filter(|other| *other != size) {
            return Err(ConfigError::invalid(key, other, size.to_string()));
        }
    }
    let n_rows = hf.size("max_position_embeddings")?.unwrap_or(512);
    let has_positions = hf.flag("position_biased_input")?.unwrap_or(true);
    let relative = relative(hf, n_rows)?;
    let n_products = match relative.kind {
        RelativeKind::Bias => 0,
        RelativeKind::Disentangled { has_keys, has_queries, .. } => {
            usize::from(has_keys) + usize::from(has_queries)
        }
    };
    let config = DecoderConfig {
        norm_eps: hf.number("layer_norm_eps")?.unwrap_or(1e-7) as f32,
        activation: if hf.get("hidden_act").is_some() { config.activation } else { Activation::Gelu },
        encoder: Some(EncoderEmbedding {
            positions: has_positions.then_some(LearnedPositions { n_rows, first_row: 0 }),
            n_segments: hf.size("type_vocab_size")?.unwrap_or(0),
        }),
        relative: Some(relative),
        has_gates: false,
        ..config
    };
    Ok(post_norm_encoder(config).with_attention(|attention| {
        attention.rope_idx = None;
        attention.scale = (1.0 / ((attention.head_dim * (1 + n_products)) as f64).sqrt()) as f32;
    }))
}

fn relative(hf: &HfConfig, max_tokens: usize) -> Result<RelativePositions, ConfigError> {
    // −1 stands for the default.
    let positive =
        |key: &str| Ok::<_, ConfigError>(hf.number(key)?.filter(|n| *n >= 1.0).map(|n| n as usize));
    let max_distance = positive("max_relative_positions")?.unwrap_or(max_tokens);
    let by_logarithm = positive("position_buckets")?;
    let span = by_logarithm.unwrap_or(max_distance);
    if !(2..=MAX_BUCKETS).contains(&span) || max_distance <= span / 2 + 1 {
        return Err(ConfigError::invalid("buckets of distances", span, "at most as many as distances"));
    }
    let kinds = match hf.get("pos_att_type") {
        Some(Value::String(kinds)) => kinds.split('|').map(|kind| kind.trim().to_owned()).collect(),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    if let Some(other) = kinds.iter().find(|kind| !["c2p", "p2c"].contains(&kind.as_str())) {
        return Err(ConfigError::invalid("pos_att_type", other, "c2p or p2c"));
    }
    let norms = hf.get("norm_rel_ebd").and_then(Value::as_str).unwrap_or("none").to_lowercase();
    let has = |kind: &str| kinds.iter().any(|other| other == kind);
    let kind = RelativeKind::Disentangled {
        has_keys: has("c2p"),
        has_queries: has("p2c"),
        shares_projections: hf.flag("share_att_key")?.unwrap_or(false),
        has_norm: norms.split('|').any(|norm| norm.trim() == "layer_norm"),
    };
    let bucket = |distance: i64| {
        let place = match by_logarithm {
            Some(n_buckets) => bucket_by_logarithm(distance, n_buckets, max_distance),
            None => distance,
        };
        (place + span as i64).clamp(0, 2 * span as i64 - 1) as usize
    };
    Ok(RelativePositions::new(kind, 2 * span, max_tokens.min(MAX_DISTANCES), bucket))
}

/// Buckets of single distances up to half of the buckets, then of ranges by the logarithm of the distance.
fn bucket_by_logarithm(distance: i64, n_buckets: usize, max_distance: usize) -> i64 {
    let n_exact = (n_buckets / 2) as i64;
    if distance.abs() <= n_exact {
        return distance;
    }
    let exact = n_exact as f32;
    // In f32 and in this order, as where the model was trained.
    let longest = ((max_distance as f64 - 1.0) / f64::from(exact)) as f32;
    let share = (distance.abs() as f32 / exact).ln() / longest.ln();
    ((share * (exact - 1.0)).ceil() as i64 + n_exact) * distance.signum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by `make_log_bucket_position` of transformers 5.24 with torch 2.15.
    #[test]
    fn buckets_are_those_of_transformers() {
        let distances =
            [0, 1, 127, 128, 129, 130, 150, 180, 200, 255, 256, 257, 300, 400, 480, 510, 511, 512];
        let expected = [0, 1, 127, 128, 129, 130, 143, 160, 169, 192, 192, 192, 207, 233, 250, 255, 255, 256];
        for (distance, expected) in distances.into_iter().zip(expected) {
            assert_eq!(bucket_by_logarithm(distance, 256, 512), expected, "{distance}");
            assert_eq!(bucket_by_logarithm(-distance, 256, 512), -expected, "-{distance}");
        }
    }
}
