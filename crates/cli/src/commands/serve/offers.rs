//! Lines printed at the start about the use of a model. Does not know the model's weights.

use throng_gateway::{PoolingModel, PoolingOutput};

/// Uses of models that generate text.
pub const TEXT: &str = "chat in a browser, or use it as an OpenAI API at /v1";

/// Uses of a model with this pooling; of a generative model if `pooling` is `None`.
pub fn of(pooling: Option<&PoolingModel>) -> &'static str {
    match pooling.map(|pooling| &pooling.output) {
        None => TEXT,
        Some(PoolingOutput::Embedding) => {
            "embeddings at /v1/embeddings, similarity at /v1/rerank and /v1/score; this model does not chat"
        }
        Some(PoolingOutput::Labels { names, .. }) if names.len() == 1 => {
            "reranking at /v1/rerank, scores at /v1/score and /v1/classify; this model does not chat"
        }
        Some(PoolingOutput::Labels { .. }) => "classes of texts at /v1/classify; this model does not chat",
    }
}
