//! gpt-oss (arXiv:2508.10925): sinks in the softmax of attention, a window on every other layer, biases
//! everywhere, experts with a bounded SwiGLU. Checkpoints store the experts in MXFP4.

use super::names::{
    ExpertsLayout, GGUF_POST_ATTENTION_NORM, HF_LAYER, LayerNames, TensorNames, hf as hf_names,
};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{Activation, DecoderConfig, FeedForward, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "gpt_oss",
    aliases: &[],
    gguf_architectures: &["gpt-oss"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_POST_ATTENTION_NORM,
};

static NAMES: TensorNames = hf_names(LayerNames {
    router: "mlp.router",
    experts_gate_up: "mlp.experts.gate_up_proj",
    experts_down: "mlp.experts.down_proj",
    experts_layout: ExpertsLayout { is_transposed: true, is_interleaved: true },
    ..HF_LAYER
});

/// The steepness of the sigmoid and the bound of the activation, which most files leave out.
const ALPHA: f64 = 1.702;
const LIMIT: f64 = 7.0;

/// Layers with a window alternate with layers without.
fn slides(layer_idx: usize) -> bool {
    layer_idx.is_multiple_of(2)
}

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("gpt_oss")?;
    hf.slide(&mut config, slides)?;
    let alpha = hf.number("swiglu_alpha")?.unwrap_or(ALPHA);
    let limit = hf.number("swiglu_limit")?.unwrap_or(LIMIT);
    let n_used = match hf.size("num_experts_per_tok")? {
        Some(n_used) => n_used,
        None => hf.required_size("experts_per_token")?,
    };
    // Said a second time by older files.
    for key in ["experts_per_token", "initial_context_length"] {
        hf.size(key)?;
    }
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_local_experts")?,
        width: hf.required_size("intermediate_size")?,
        routing: of_chosen(n_used),
        shared: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(finish(config, alpha, limit))
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("gpt_oss")?;
    let window = gguf.required_size("attention.sliding_window")?;
    config.set_windows(|layer_idx| slides(layer_idx).then_some(window));
    Ok(finish(config, ALPHA, LIMIT))
}

/// The softmax is taken over the chosen experts only, which is that over all made to sum to 1.
fn of_chosen(n_used: usize) -> Routing {
    Routing::softmax(n_used, true)
}

fn finish(config: DecoderConfig, alpha: f64, limit: f64) -> DecoderConfig {
    let activation = Activation::ClampedSwiglu { alpha: alpha as f32, limit: limit as f32 };
    DecoderConfig { activation, ..config }.with_attention(|attention| attention.has_sinks = true)
}
