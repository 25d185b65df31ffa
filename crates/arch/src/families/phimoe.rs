//! Phi 3.5 and Phi mini and tiny with experts (arXiv:2404.14219, arXiv:2506.18349): layer norms with biases,
//! two experts of each token chosen by SparseMixer, and an output projection with a bias. Source: the
//! modelling file of `phimoe` in transformers.

use super::mixtral;
use super::names::GGUF;
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, NormKind, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "phimoe",
    aliases: &[],
    gguf_architectures: &["phimoe"],
    from_hf,
    from_gguf,
    hf_names: &mixtral::NAMES,
    gguf_names: &GGUF,
};

/// Jitter of the router if the file has none; GGUF files never have it.
const JITTER: f64 = 0.01;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let hf = &hf.with_defaults(&[("rope_theta", 1_000_000)]);
    let mut config = DecoderConfig { norm_kind: NormKind::Layer, ..hf.llama("phimoe")? };
    hf.slide(&mut config, |_| true)?;
    hf.only("num_experts_per_tok", "2")?;
    // Noise of training, and tensors whose presence says the same.
    for key in ["input_jitter_noise", "lm_head_bias"] {
        hf.get(key);
    }
    let jitter = hf.number("router_jitter_noise")?.unwrap_or(JITTER) as f32;
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_local_experts")?,
        width: hf.required_size("intermediate_size")?,
        routing: Routing::sparse_mixer(2, jitter),
        shared: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = DecoderConfig { norm_kind: NormKind::Layer, ..gguf.llama("phimoe")? };
    if let Some(window) = gguf.size("attention.sliding_window")?.filter(|window| *window > 0) {
        config.set_windows(|_| Some(window));
    }
    for layer in &mut config.layers {
        if let FeedForward::Experts { routing, .. } = &mut layer.feed_forward {
            *routing = Routing::sparse_mixer(routing.n_used, JITTER as f32);
        }
    }
    Ok(config)
}
