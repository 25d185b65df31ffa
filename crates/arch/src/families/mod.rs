//! The families of decoders, one small file each: from a family's configuration to a [`DecoderConfig`] and
//! the names of its tensors. Does not know how anything is computed.

mod bert;
mod cohere;
mod deberta;
mod deepseek;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gguf_config;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod gte;
mod hf_config;
mod hunyuan;
pub mod known;
mod lfm2;
mod limits;
mod llama;
mod llama4;
mod minicpm;
mod minimax_m2;
mod mistral;
mod mixtral;
mod modernbert;
mod mpnet;
mod muse_glimmer;
mod names;
mod nemotron_h;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod read_keys;
mod rope_scaling;
mod seed_oss;
mod smollm3;
mod understood;
mod unnamed;

use throng_kernels::quant::Format;

pub use gguf_config::GgufConfig;
pub use hf_config::HfConfig;
pub use names::{ExpertsLayout, LayerNames, TensorNames};
use read_keys::ReadKeys;
pub use unnamed::FAMILY as UNNAMED;

use crate::config::{DecoderConfig, Mixer};
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::GgufMetadata;
use throng_checkpoint::nvfp4::factors_of;

/// A family of models.
struct Family {
    /// `model_type` of its `config.json`.
    model_type: &'static str,
    /// Other values of `model_type` that mean the same text model.
    aliases: &'static [&'static str],
    /// `general.architecture` of its GGUF files; empty if they have another family's name.
    gguf_architectures: &'static [&'static str],
    /// Reader of a `config.json`.
    from_hf: fn(&HfConfig) -> Result<DecoderConfig, ConfigError>,
    /// Reader of GGUF metadata.
    from_gguf: fn(&GgufConfig<'_>) -> Result<DecoderConfig, ConfigError>,
    /// Names of the tensors in a safetensors checkpoint.
    hf_names: &'static TensorNames,
    /// Names of the tensors in GGUF files.
    gguf_names: &'static TensorNames,
}

impl Family {
    fn is_called(&self, model_type: &str) -> bool {
        self.model_type == model_type || self.aliases.contains(&model_type)
    }
}

const FAMILIES: [&Family; 54] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &phimoe::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &exaone4::FAMILY,
    &cohere::FAMILY,
    &cohere::FAMILY_2,
    &smollm3::FAMILY,
    &granite::FAMILY,
    &granite_moe::FAMILY,
    &granite_moe::FAMILY_SHARED,
    &minicpm::FAMILY,
    &minicpm::FAMILY_3,
    &mixtral::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_moe::FAMILY_VL,
    &ernie4_5::FAMILY,
    &ernie4_5_moe::FAMILY,
    &glm4::FAMILY_2024,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &minimax_m2::FAMILY,
    &seed_oss::FAMILY,
    &hunyuan::FAMILY,
    &hunyuan::FAMILY_MOE,
    &lfm2::FAMILY,
    &lfm2::FAMILY_MOE,
    &qwen3_next::FAMILY,
    &qwen3_next::FAMILY_3_5,
    &qwen3_next::FAMILY_3_5_MOE,
    &nemotron_h::FAMILY,
    &falcon_h1::FAMILY,
    &granite_hybrid::FAMILY,
    &gpt_oss::FAMILY,
    &gemma4::FAMILY,
    &deepseek::FAMILY,
    &llama4::FAMILY,
    &muse_glimmer::FAMILY,
    &bert::FAMILY,
    &bert::FAMILY_XLM_ROBERTA,
    &nomic_bert::FAMILY,
    &mpnet::FAMILY,
    &deberta::FAMILY,
    &gte::FAMILY,
    &gte::FAMILY_JINA_3,
    &modernbert::FAMILY,
];

/// Names of multimodal models whose text model is of a family that the part of the file about text names.
const MULTIMODAL: [&str; 11] = [
    "smolvlm",
    "idefics3",
    "llava",
    "llava_next",
    "llava_onevision",
    "internvl",
    "aya_vision",
    "cohere2_vision",
    "kimi_k25",
    "lfm2_vl",
    "minicpmv4_6",
];

/// Refuses GGUF files of a family whose GGUF files are not read.
fn without_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Err(ConfigError::not_supported(gguf.architecture()))
}

/// A model's architecture, and the names of the tensors in its file.
#[derive(Debug, Clone)]
pub struct Architecture {
    /// Architecture of the model.
    pub config: DecoderConfig,
    /// The names of its tensors.
    pub names: &'static TensorNames,
    /// Keys of the `config.json` that were not read and that, as far as is known, do not change results.
    pub unread_keys: Vec<String>,
}

impl Architecture {
    /// Reads a `config.json` (either spelling: that of transformers 5 or the older one).
    ///
    /// # Errors
    /// When it is not a configuration of a supported family or its sizes are invalid.
    pub fn from_config_json(json: &[u8]) -> Result<Self, ConfigError> {
        let hf = HfConfig::parse(json)?;
        let model_type = hf.model_type();
        let named = |name: &str| {
            let family = FAMILIES.iter().find(|family| family.is_called(name));
            family.ok_or_else(|| ConfigError::not_supported(name))
        };
        // Some multimodal files have a model_type of their own; that of their text_config names the family.
        let of_text = hf.text_model_type().filter(|_| MULTIMODAL.contains(&model_type));
        let mut family = named(of_text.unwrap_or(model_type))?;
        if of_text.is_some() {
            // Patches that SmolVLM and Idefics 3 join, which their encoder reads.
            hf.get("scale_factor");
        }
        // A multimodal file may hold a text model of another family.
        if let Some(text_type) = hf.text_model_type().filter(|text_type| !family.is_called(text_type)) {
            family = named(text_type)?;
        }
        hf.check_quantization()?;
        let mut config = (family.from_hf)(&hf)?;
        direction(&hf, &mut config)?;
        let names = [hf.text_model_type().unwrap_or(model_type), model_type, family.model_type];
        let unread_keys = hf.check_understood(ReadKeys::of(&names).as_ref())?;
        limits::check(&config)?;
        Ok(Self { config, names: family.hf_names, unread_keys })
    }

    /// Reads a `config.json` whose `model_type` is no family's, with the tensors beside it: Llama, with norms
    /// on heads, biases, windows and experts where the files have them. Whether all tensors are read is for
    /// the caller to check.
    ///
    /// # Errors
    /// An error that names the first key that is not understood.
    pub fn of_unnamed(json: &[u8], tensors: &dyn TensorSource) -> Result<Self, ConfigError> {
        let hf = HfConfig::parse(json)?;
        unnamed::architecture(&hf, tensors).map_err(|reason| reason.of_unnamed(hf.model_type()))
    }

    /// Reads the metadata of a GGUF file; a few sizes are those of its tensors.
    ///
    /// # Errors
    /// When it is not a model of a supported family or its sizes are invalid.
    pub fn from_gguf(metadata: &GgufMetadata, tensors: &dyn TensorSource) -> Result<Self, ConfigError> {
        let gguf = GgufConfig::new(metadata, tensors)?;
        let architecture = gguf.architecture();
        let family = FAMILIES
            .iter()
            .find(|family| family.gguf_architectures.contains(&architecture))
            .ok_or_else(|| ConfigError::not_supported(architecture))?;
        let mut config = (family.from_gguf)(&gguf)?;
        if gguf.flag("attention.causal")? == Some(false) {
            config.attentions_mut().for_each(|attention| attention.is_bidirectional = true);
        }
        limits::check(&config)?;
        check_factors(&config, &family.gguf_names.layer, tensors)?;
        Ok(Self { config, names: family.gguf_names, unread_keys: Vec::new() })
    }
}

/// Makes a decoder attend in both directions if its file says that it is not causal, as an embedding model's
/// does. Windows of such layers are not known to apply in either direction.
fn direction(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    if hf.flag("is_causal")?.unwrap_or(true) || config.is_bidirectional() {
        return Ok(());
    }
    let is_plain = |mixer: &Mixer| match mixer {
        Mixer::Attention(attention) => attention.sliding_window.is_none() && attention.chunk.is_none(),
        _ => false,
    };
    if !config.layers.iter().all(|layer| is_plain(&layer.mixer)) {
        return Err(ConfigError::Variant {
            key: "is_causal".to_owned(),
            found: "false".to_owned(),
            expected: "true, or false with attention to all tokens",
        });
    }
    config.attentions_mut().for_each(|attention| attention.is_bidirectional = true);
    Ok(())
}

/// Refuses factors of tensors in other formats than NVFP4, whose factors are the only ones that are read. The
/// factors of a router and of its experts are part of some families.
fn check_factors(
    config: &DecoderConfig,
    names: &LayerNames,
    tensors: &dyn TensorSource,
) -> Result<(), ConfigError> {
    let of_routing = [names.router_scale, names.expert_scales];
    for tensor in tensors.names().into_iter().filter_map(|name| tensors.tensor(name)) {
        let Some(factors) = factors_of(tensor.name).filter(|name| tensors.tensor(name).is_some()) else {
            continue;
        };
        let is_known = config.has_expert_scales() && of_routing.iter().any(|name| factors.ends_with(name));
        if tensor.format != Format::NVFP4 && !is_known {
            return Err(ConfigError::Variant {
                key: factors,
                found: format!("a factor of a tensor in {}", tensor.format.name()),
                expected: "factors of tensors in NVFP4",
            });
        }
    }
    Ok(())
}

/// Names of a model's layers in transformers, for any kind of file.
pub fn hf_layer_names(config: &DecoderConfig) -> &'static LayerNames {
    let family = FAMILIES.iter().find(|family| family.model_type == config.family);
    &family.map_or(&names::HF, |family| family.hf_names).layer
}

/// The families that can be loaded, by `model_type`.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// Reason why a configuration was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A family that Throng does not support.
    #[error("not supported yet: {model_type} (supported: {supported})")]
    NotSupported {
        /// The architecture that the file names.
        model_type: String,
        /// Families that can be loaded.
        supported: String,
    },
    /// The family is supported, but not with this value.
    #[error("not supported yet: {key} = {found} (supported: {expected})")]
    Variant {
        /// Name of the key.
        key: String,
        /// Value of the key.
        found: String,
        /// Families that can be loaded.
        expected: &'static str,
    },
    /// The family is supported, but the effect of this key is unknown.
    #[error(
        "not supported yet: {key} = {found} (the configuration of {model_type} has a key whose meaning is not known)"
    )]
    Unknown {
        /// Name of the family.
        model_type: String,
        /// Name of the key.
        key: String,
        /// Value of the key.
        found: String,
    },
    /// A family that Throng does not support, which is not Llama under another name.
    #[error("not supported yet: {model_type}, whose name is not known and which is not like Llama: {reason}")]
    Unnamed {
        /// The architecture that the file names.
        model_type: String,
        /// Setting that is not understood.
        reason: Box<ConfigError>,
    },
    /// No known operation reads this tensor.
    #[error("the tensor {0} is not understood")]
    UnknownTensor(String),
    /// The weights are in a quantized format that safetensors files do not declare.
    #[error(
        "the model is quantized to {found}, which is not supported yet: take a folder with its F32, F16 or BF16 weights, or \
         a GGUF file of it"
    )]
    Quantized {
        /// The format by its usual name, and its key in `config.json`.
        found: String,
    },
    /// The file is not a JSON object.
    #[error("config.json is not a JSON object: {0}")]
    Json(String),
    /// A required key is missing.
    #[error("the configuration lacks {0}")]
    Missing(String),
    /// A value of the wrong type or out of range.
    #[error("the configuration has {key} = {found}, expected {expected}")]
    Invalid {
        /// Name of the key.
        key: String,
        /// Value of the key.
        found: String,
        /// Expected value.
        expected: String,
    },
}

impl ConfigError {
    fn not_supported(model_type: &str) -> Self {
        let supported = supported().collect::<Vec<_>>().join(", ");
        Self::NotSupported { model_type: shorten(model_type), supported }
    }

    /// Changes the error to that of a family without a name, with the `model_type`.
    pub fn of_unnamed(self, model_type: &str) -> Self {
        Self::Unnamed { model_type: shorten(model_type), reason: Box::new(self) }
    }

    fn invalid(key: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Invalid { key: key.into(), found: shorten(&found.to_string()), expected: expected.into() }
    }
}

/// A value, shortened for an error: a file may hold megabytes.
fn shorten(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
