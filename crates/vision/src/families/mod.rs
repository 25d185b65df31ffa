//! The families of encoders, one small file each: from `vision_config` to a [`VisionConfig`] and the names of
//! tensors. Does not know how anything is computed.

mod gemma4;
mod gguf;
mod glm;
mod intern;
mod llama4;
mod llava;
mod pixtral;
mod qwen;
mod siglip;

pub use gemma4::half_pairs;
pub use gguf::{from_gguf, processor_of};

use throng_checkpoint::TensorSource;
use throng_model::arch::ConfigError;

use crate::config::{Rotation, VisionConfig};
use crate::json::VisionJson;
use crate::names::EncoderNames;

/// A family of encoders.
pub struct VisionFamily {
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Reader of a `config.json`.
    pub from_json: fn(&VisionJson<'_>, &'static str) -> Result<VisionConfig, ConfigError>,
    /// Names of the tensors.
    pub names: &'static EncoderNames,
    /// Prefixes of the names of the encoder's tensors, of which a file uses one.
    pub prefixes: &'static [&'static str],
    /// Beginnings of the names of the projector's tensors.
    pub projector_prefixes: &'static [&'static str],
}

const FAMILIES: [&VisionFamily; 17] = [
    &qwen::QWEN_2_5_VL,
    &qwen::QWEN_3_VL,
    &qwen::QWEN_3_VL_MOE,
    &qwen::QWEN_3_5,
    &qwen::QWEN_3_5_MOE,
    &siglip::GEMMA_3,
    &gemma4::GEMMA_4,
    &siglip::LLAVA_ONEVISION,
    &siglip::SMOL_VLM,
    &siglip::IDEFICS_3,
    &pixtral::MISTRAL_3,
    &pixtral::PIXTRAL,
    &llava::LLAVA,
    &intern::INTERN_VL,
    &llama4::LLAMA_4,
    &glm::GLM_4V,
    &glm::GLM_4V_MOE,
];

impl VisionFamily {
    /// The family of a `model_type`, and of its encoder's where one `model_type` has several.
    pub fn of(model_type: &str, encoder_type: Option<&str>) -> Option<&'static Self> {
        if model_type == "llava" && encoder_type == Some("pixtral") {
            return Some(&pixtral::PIXTRAL);
        }
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
    }

    /// The beginning of the encoder's tensors and of the projector's in a file.
    pub fn prefixes_in(&self, tensors: &dyn TensorSource) -> Option<(&'static str, &'static str)> {
        let names = tensors.stored_names();
        let begins = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
        let patch = self.names.patch;
        let of_encoder = self.prefixes.iter().find(|prefix| begins(&format!("{prefix}{patch}")))?;
        let of_projector = self.projector_prefixes.iter().find(|prefix| begins(prefix))?;
        Some((of_encoder, of_projector))
    }
}

/// Rows rotate the first half of the pairs and columns the other, with the same frequencies.
fn rows_then_columns(theta: f64, head_dim: usize) -> Rotation {
    let n = head_dim / 4;
    let frequency = |i: usize| theta.powf(-2.0 * (i % n.max(1)) as f64 / (head_dim / 2) as f64);
    Rotation {
        frequencies: (0..2 * n).map(frequency).collect(),
        sections: (0..2 * n).map(|pair| if pair < n { 1 } else { 2 }).collect(),
        first: 0,
        is_interleaved: false,
    }
}
