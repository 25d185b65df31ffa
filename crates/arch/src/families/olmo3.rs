//! OLMo 3 (arXiv:2512.13961): OLMo 2 with windows on three layers of four, whose rotary embedding is not
//! scaled. In GGUF files its architecture is that of OLMo 2.

use super::names::GGUF;
use super::{ConfigError, Family, HfConfig, olmo2};
use crate::config::DecoderConfig;

pub(super) const FAMILY: Family = Family {
    model_type: "olmo3",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: olmo2::from_gguf,
    hf_names: &olmo2::NAMES,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = olmo2::finish(hf.llama("olmo3")?);
    hf.slide(&mut config, olmo2::slides)?;
    let theta = hf.rope_theta("sliding_attention")?;
    let local = HfConfig::plain_rope(theta, hf.head_dim()?)?;
    Ok(olmo2::with_local_rope(config, local))
}
