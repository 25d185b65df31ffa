//! Models of published sizes, for tests. Sizes are those of the config.json files of their repositories.

use throng_plan::ModelShape;
use throng_plan::model_shape::TransformerSizes;

fn dense(name: &str, n_layers: f64, hidden_size: f64, heads: (f64, f64), ffn: f64) -> ModelShape {
    let sizes = TransformerSizes {
        n_layers,
        hidden_size,
        n_heads: heads.0,
        n_kv_heads: heads.1,
        head_dim: 128.0,
        feed_forward: ffn,
        vocabulary_size: 128_256.0,
        experts: None,
        tied_embeddings: false,
        max_sequence_tokens: 131_072,
    };
    ModelShape::transformer(name, &sizes).expect("sizes")
}

/// Llama 3.1 70B.
pub fn llama_70b() -> ModelShape {
    dense("Llama-3.1-70B", 80.0, 8192.0, (64.0, 8.0), 28672.0)
}

/// Llama 3.1 8B.
pub fn llama_8b() -> ModelShape {
    dense("Llama-3.1-8B", 32.0, 4096.0, (32.0, 8.0), 14336.0)
}

/// Mixtral 8x7B.
pub fn mixtral() -> ModelShape {
    let sizes = TransformerSizes {
        n_layers: 32.0,
        hidden_size: 4096.0,
        n_heads: 32.0,
        n_kv_heads: 8.0,
        head_dim: 128.0,
        feed_forward: 14336.0,
        vocabulary_size: 32_000.0,
        experts: Some((8.0, 2.0)),
        tied_embeddings: false,
        max_sequence_tokens: 32_768,
    };
    ModelShape::transformer("Mixtral-8x7B", &sizes).expect("sizes")
}
