//! Mixtral (arXiv:2401.04088): Mistral with a mixture of experts in every layer. In GGUF files its
//! architecture is `llama`.

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf};
use super::{ConfigError, Family, HfConfig, llama};
use crate::config::{DecoderConfig, FeedForward, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "mixtral",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: llama::from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

/// Names of experts as Mixtral and others have them.
pub(super) static NAMES: TensorNames = hf(LayerNames {
    router: "block_sparse_moe.gate",
    expert_gate: "block_sparse_moe.experts.{}.w1",
    expert_up: "block_sparse_moe.experts.{}.w3",
    expert_down: "block_sparse_moe.experts.{}.w2",
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("mixtral")?;
    hf.slide(&mut config, |_| true)?;
    let n_used = hf.size("num_experts_per_tok")?.unwrap_or(2);
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_local_experts")?,
        width: hf.required_size("intermediate_size")?,
        routing: Routing::softmax(n_used, true),
        shared: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}
