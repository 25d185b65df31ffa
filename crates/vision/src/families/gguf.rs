//! Encoders in GGUF files (`mmproj`), by the name of their projector. Does not know where the file was found.

use serde_json::{Value, json};
use throng_checkpoint::gguf::{GgufArray, GgufMetadata, GgufValue};
use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{pixtral::alternating, rows_then_columns};
use crate::config::{
    Arrangement, EncoderActivation, NormStyle, PatchInput, Positions, Projection, Rotation, VisionConfig,
};
use crate::names::{EncoderNames, GGUF, GGUF_JOINED};

/// Largest size that is accepted.
const MAX_SIZE: u64 = 1 << 20;

/// Maximum number of tokens of a picture where the file has no limit.
const MAX_TOKENS: usize = 4096;

/// Keys of the file.
struct Keys<'a> {
    metadata: &'a GgufMetadata,
    /// Width of the decoder's residual stream.
    text_width: usize,
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(&format!("clip.{key}"))
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let size = value.as_u64().filter(|&n| n > 0 && n <= MAX_SIZE).map(|n| n as usize);
        size.map(Some).ok_or_else(|| ConfigError::Invalid {
            key: format!("clip.{key}"),
            found: format!("{value:.60?}"),
            expected: "a size".to_owned(),
        })
    }

    fn required(&self, key: &str) -> Result<usize, ConfigError> {
        self.size(key)?.ok_or_else(|| ConfigError::Missing(format!("clip.{key}")))
    }

    /// Name of the projector.
    fn projector(&self) -> &str {
        let keys = ["vision.projector_type", "projector_type"];
        let value = keys.into_iter().find_map(|key| self.value(key));
        value.and_then(GgufValue::as_str).unwrap_or_default()
    }

    fn flag(&self, key: &str) -> bool {
        self.value(key).and_then(GgufValue::as_bool).unwrap_or(false)
    }
}

/// Content of `preprocessor_config.json` and `config.json` of the same model about its pictures. `token_id`
/// finds a token by its text.
pub fn processor_of(metadata: &GgufMetadata, token_id: &dyn Fn(&str) -> Option<usize>) -> Option<[Value; 2]> {
    let keys = Keys { metadata, text_width: 0 };
    let size = |key: &str| keys.size(key).ok().flatten();
    let numbers = |key: &str| match keys.value(key) {
        Some(GgufValue::Array(GgufArray::F32(numbers))) => Some(numbers.clone()),
        _ => None,
    };
    let (patch, side) = (size("vision.patch_size")?, size("vision.image_size")?);
    let merge = size("vision.spatial_merge_size");
    let (mean, std) = (numbers("vision.image_mean"), numbers("vision.image_std"));
    let vision = json!({ "patch_size": patch, "image_size": side });
    let (processor, model) = match keys.projector() {
        "qwen3vl_merger" => {
            let merge = merge.unwrap_or(2);
            let unit = (patch * merge).pow(2);
            let min = size("vision.image_min_pixels").unwrap_or((1 << 16).min(MAX_TOKENS * unit));
            let max = size("vision.image_max_pixels").unwrap_or(MAX_TOKENS * unit);
            let processor = json!({
                "image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch, "merge_size": merge,
                "temporal_patch_size": 2, "min_pixels": min, "max_pixels": max,
            });
            (processor, json!({ "model_type": "qwen3_vl", "image_token_id": token_id("<|image_pad|>")? }))
        }
        "gemma3" => {
            let pooled = side / patch / size("vision.projector.scale_factor").unwrap_or(4);
            let token = token_id("<image_soft_token>").or_else(|| token_id("<unused0>"))?;
            let processor = json!({
                "image_processor_type": "Gemma3ImageProcessor", "size": { "height": side, "width": side },
            });
            let model = json!({
                "model_type": "gemma3", "image_token_index": token, "mm_tokens_per_image": pooled * pooled,
            });
            (processor, model)
        }
        "pixtral" => {
            let longest = size("vision.preproc_image_size").unwrap_or(side);
            let processor = json!({
                "image_processor_type": "PixtralImageProcessor", "size": { "longest_edge": longest },
            });
            let model = json!({
                "model_type": "mistral3", "image_token_index": token_id("[IMG]")?,
                "spatial_merge_size": merge.unwrap_or(1),
            });
            (processor, model)
        }
        _ => return None,
    };
    let (mut processor, mut model) = (processor, model);
    if let (Some(mean), Some(std)) = (mean, std) {
        (processor["image_mean"], processor["image_std"]) = (json!(mean), json!(std));
    }
    model["vision_config"] = vision;
    Some([processor, model])
}

/// The encoder of a file; an error that names the projector if it is unknown.
pub fn from_gguf(
    metadata: &GgufMetadata,
    text_width: usize,
) -> Result<(VisionConfig, &'static EncoderNames), ConfigError> {
    let keys = Keys { metadata, text_width };
    match keys.projector() {
        "qwen3vl_merger" => Ok((qwen_3(&keys)?, &GGUF_JOINED)),
        "gemma3" => Ok((gemma_3(&keys)?, &GGUF)),
        "pixtral" => Ok((pixtral(&keys)?, &GGUF)),
        other => Err(ConfigError::Variant {
            key: "clip.projector_type".to_owned(),
            found: other.chars().take(80).collect(),
            expected: "qwen3vl_merger, gemma3, pixtral",
        }),
    }
}

/// An encoder without a projector.
fn encoder(keys: &Keys<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let hidden_size = keys.required("vision.embedding_length")?;
    let n_heads = keys.required("vision.attention.head_count")?;
    let patch_size = keys.required("vision.patch_size")?;
    let eps = keys.value("vision.attention.layer_norm_epsilon").and_then(GgufValue::as_f64).unwrap_or(1e-6);
    let activation = match (keys.flag("use_gelu"), keys.flag("use_silu")) {
        (true, _) => EncoderActivation::Plain(Activation::GeluTanh),
        (_, true) => EncoderActivation::Plain(Activation::Silu),
        _ => EncoderActivation::QuickGelu,
    };
    Ok(VisionConfig {
        family,
        patches: PatchInput::Tiles,
        patch_values: 3 * patch_size * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: n_heads,
        head_dim: hidden_size / n_heads,
        mlp_width: keys.required("vision.feed_forward_length")?,
        is_gated: false,
        activation,
        sandwich: None,
        pixel_scale: None,
        norm: NormStyle { eps: eps as f32, gain_offset: 0.0 },
        positions: Positions::None,
        rotation: None,
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: false,
        has_post_norm: false,
        windows: None,
        n_layers: keys.required("vision.block_count")?,
        projector: Vec::new(),
        deepstack: Vec::new(),
        feature_size: keys.text_width,
    })
}

fn linear(name: &str, width: usize) -> Projection {
    Projection::Linear { name: name.to_owned(), width, is_transposed: false }
}

fn qwen_3(keys: &Keys<'_>) -> Result<VisionConfig, ConfigError> {
    let config = encoder(keys, "qwen3_vl")?;
    let merge = keys.size("vision.spatial_merge_size")?.unwrap_or(2);
    let joined = config.hidden_size * merge * merge;
    let norm = |name: &str| Projection::Norm(name.to_owned(), config.norm);
    let join = || Projection::Arrange(Arrangement::Join(merge * merge));
    let gelu = || Projection::Activation(Activation::Gelu);
    let flags: &[bool] = match keys.value("vision.is_deepstack_layers") {
        Some(GgufValue::Array(GgufArray::Bool(flags))) => flags,
        _ => &[],
    };
    let layers = (0..config.n_layers).filter(|&layer_idx| flags.get(layer_idx) == Some(&true));
    let of_layer = |layer_idx: usize| {
        let at = |name: &str| format!("v.deepstack.{layer_idx}.{name}");
        let steps = [
            join(),
            norm(&at("norm")),
            linear(&at("fc1"), joined),
            gelu(),
            linear(&at("fc2"), keys.text_width),
        ];
        (layer_idx, steps.into())
    };
    Ok(VisionConfig {
        patches: PatchInput::Rows { merge },
        patch_values: 2 * config.patch_values,
        positions: Positions::Bilinear { side: keys.required("vision.image_size")? / config.patch_size },
        rotation: Some(rows_then_columns(10_000.0, config.head_dim)),
        deepstack: layers.map(of_layer).collect(),
        projector: vec![
            norm("v.post_ln"),
            join(),
            linear("mm.0", joined),
            gelu(),
            linear("mm.2", keys.text_width),
        ],
        ..config
    })
}

/// The encoder of Gemma 3. Its stored gains include the added 1.
fn gemma_3(keys: &Keys<'_>) -> Result<VisionConfig, ConfigError> {
    let config = encoder(keys, "gemma3")?;
    let side = keys.size("vision.projector.scale_factor")?.unwrap_or(4);
    let places = keys.required("vision.image_size")? / config.patch_size;
    Ok(VisionConfig {
        positions: Positions::Table { n_rows: places * places },
        has_post_norm: true,
        projector: vec![
            Projection::Arrange(Arrangement::Average { side, factor: 1.0 }),
            Projection::Norm("mm.soft_emb_norm".to_owned(), config.norm),
            Projection::Linear {
                name: "mm.input_projection.weight".to_owned(),
                width: keys.text_width,
                is_transposed: true,
            },
        ],
        ..config
    })
}

/// The converter permutes the rows of queries and keys, so that neighbours rotate.
fn pixtral(keys: &Keys<'_>) -> Result<VisionConfig, ConfigError> {
    let config = encoder(keys, "pixtral")?;
    let side = keys.size("vision.spatial_merge_size")?.unwrap_or(1);
    let rotation = Rotation { is_interleaved: true, ..alternating(10_000.0, config.head_dim) };
    let mut projector = Vec::new();
    if side > 1 {
        projector.extend([
            Projection::Norm("mm.input_norm".to_owned(), NormStyle { eps: 1e-5, gain_offset: 0.0 }),
            Projection::Arrange(Arrangement::ShuffleChannels { side }),
            linear("mm.patch_merger", config.hidden_size),
        ]);
    }
    projector.extend([
        linear("mm.1", keys.text_width),
        Projection::Activation(Activation::Gelu),
        linear("mm.2", keys.text_width),
    ]);
    Ok(VisionConfig { is_gated: true, has_pre_norm: true, rotation: Some(rotation), projector, ..config })
}
