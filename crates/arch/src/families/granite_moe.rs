//! Granite 3 with experts, with or without a feed-forward that every token uses: Granite's multipliers over
//! experts whose weights sum to 1. Source: the modelling files of `granitemoe` and `granitemoeshared` in
//! transformers.

use super::names::GGUF;
use super::{ConfigError, Family, GgufConfig, HfConfig, granite, granite_hybrid};
use crate::config::{DecoderConfig, FeedForward, Routing, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "granitemoe",
    aliases: &[],
    gguf_architectures: &["granitemoe"],
    from_hf: |hf| from_hf(hf, "granitemoe"),
    from_gguf,
    hf_names: &granite_hybrid::NAMES,
    gguf_names: &GGUF,
};

pub(super) const FAMILY_SHARED: Family = Family {
    model_type: "granitemoeshared",
    // Its files are named as those of the other one.
    gguf_architectures: &[],
    from_hf: |hf| from_hf(hf, "granitemoeshared"),
    ..FAMILY
};

fn from_hf(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let mut config = granite::with_multipliers(hf, family)?;
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_local_experts")?,
        width: hf.required_size("intermediate_size")?,
        routing: Routing::softmax(hf.required_size("num_experts_per_tok")?, true),
        shared: shared(hf.size("shared_intermediate_size")?.unwrap_or(0)),
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let shared_width = gguf.size("expert_shared_feed_forward_length")?.unwrap_or(0);
    let family = if shared_width > 0 { "granitemoeshared" } else { "granitemoe" };
    let mut config = granite::with_gguf_multipliers(gguf, family)?;
    for layer in &mut config.layers {
        if let FeedForward::Experts { shared: of_layer, .. } = &mut layer.feed_forward {
            *of_layer = shared(shared_width);
        }
    }
    Ok(config)
}

fn shared(width: usize) -> Option<SharedExpert> {
    (width > 0).then_some(SharedExpert { width, is_gated: false, has_norms: false })
}
