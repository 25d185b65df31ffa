//! SigLIP (arXiv:2303.15343) as Gemma 3 (arXiv:2503.19786), SmolVLM (arXiv:2504.05299) and Idefics 3 have
//! it: tiles of one size, a position for each place.

use serde_json::Value;
use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::VisionFamily;
use crate::config::{
    Arrangement, EncoderActivation, Newlines, NormStyle, PatchInput, Positions, Projection, VisionConfig,
};
use crate::json::{VisionJson, invalid};
use crate::names::SIGLIP;

pub const GEMMA_3: VisionFamily = VisionFamily {
    model_type: "gemma3",
    from_json: gemma_3,
    names: &SIGLIP,
    prefixes: &[
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
        "vision_tower.",
        "model.vision_tower.",
    ],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
};

pub const LLAVA_ONEVISION: VisionFamily =
    VisionFamily { model_type: "llava_onevision", from_json: onevision, ..GEMMA_3 };

pub const SMOL_VLM: VisionFamily = VisionFamily {
    model_type: "smolvlm",
    from_json: idefics_3,
    names: &SIGLIP,
    prefixes: &["model.vision_model.", "vision_model."],
    projector_prefixes: &["model.connector.", "connector."],
};

pub const IDEFICS_3: VisionFamily = VisionFamily { model_type: "idefics3", ..SMOL_VLM };

/// The encoder without a projector.
pub fn siglip(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let hidden_size = json.size("hidden_size", Some(768))?;
    let n_heads = json.size("num_attention_heads", Some(12))?;
    let patch_size = json.size("patch_size", Some(16))?;
    let side = json.size("image_size", Some(224))? / patch_size;
    let eps = json.number("layer_norm_eps", 1e-6)? as f32;
    if !hidden_size.is_multiple_of(n_heads) || side == 0 {
        return Err(invalid("num_attention_heads", &n_heads, "a divisor of hidden_size"));
    }
    Ok(VisionConfig {
        family,
        patches: PatchInput::Tiles,
        patch_values: json.size("num_channels", Some(3))? * patch_size * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: n_heads,
        head_dim: hidden_size / n_heads,
        mlp_width: json.size("intermediate_size", Some(3072))?,
        is_gated: false,
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::GeluTanh))?,
        sandwich: None,
        pixel_scale: None,
        norm: NormStyle { eps, gain_offset: 0.0 },
        positions: Positions::Table { n_rows: side * side },
        rotation: None,
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: false,
        has_post_norm: true,
        windows: None,
        n_layers: json.size("num_hidden_layers", Some(12))?,
        projector: Vec::new(),
        deepstack: Vec::new(),
        feature_size: json.text_width,
    })
}

/// Patches averaged to a number of tokens, normed, and projected by a matrix whose rows are inputs.
fn gemma_3(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = siglip(json, family)?;
    let n_tokens = json.model_size("mm_tokens_per_image", Some(256))?;
    let n = n_tokens.isqrt();
    if n * n != n_tokens {
        return Err(invalid("mm_tokens_per_image", &n_tokens, "a square"));
    }
    let Positions::Table { n_rows } = config.positions else { return Ok(config) };
    let side = n_rows.isqrt() / n.max(1);
    if side == 0 {
        return Err(invalid("mm_tokens_per_image", &n_tokens, "at most the patches of a picture"));
    }
    let norm = NormStyle { eps: config.norm.eps, gain_offset: 1.0 };
    let projector = vec![
        Projection::Arrange(Arrangement::Average { side, factor: 1.0 }),
        Projection::Norm("mm_soft_emb_norm".to_owned(), norm),
        Projection::Linear {
            name: "mm_input_projection_weight".to_owned(),
            width: json.text_width,
            is_transposed: true,
        },
    ];
    Ok(VisionConfig { projector, ..config })
}

/// LLaVA-OneVision (arXiv:2408.03326): the whole picture, and tiles of it put together.
fn onevision(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = siglip(json, family)?;
    let sizes = json.model.get("image_grid_pinpoints").and_then(Value::as_array);
    let size = |size: &Value| {
        let side = |i: usize| size.get(i)?.as_u64().filter(|&n| n > 0 && n <= 1 << 16).map(|n| n as usize);
        Some([side(0)?, side(1)?])
    };
    let sizes = sizes.and_then(|sizes| sizes.iter().map(size).collect::<Option<Vec<_>>>());
    let sizes = sizes.ok_or_else(|| invalid("image_grid_pinpoints", &"no list", "a list of sizes"))?;
    let aspect = json.model.get("vision_aspect_ratio").and_then(Value::as_str).unwrap_or("anyres_max_9");
    let max_tiles = aspect.strip_prefix("anyres_max_").and_then(|n| n.parse().ok());
    let linear = |name: &str| Projection::Linear {
        name: name.to_owned(),
        width: json.text_width,
        is_transposed: false,
    };
    let newlines = Newlines {
        name: "image_newline".to_owned(),
        sizes,
        tile: json.size("image_size", Some(384))?,
        max_tiles,
    };
    let projector = vec![
        linear("linear_1"),
        Projection::Activation(Activation::Gelu),
        linear("linear_2"),
        Projection::Arrange(Arrangement::Newlines(newlines)),
    ];
    Ok(VisionConfig { projector, has_post_norm: false, ..config })
}

/// Blocks of patches joined and projected.
fn idefics_3(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = siglip(json, family)?;
    let side = json.model_size("scale_factor", Some(2))?;
    let projector = vec![
        Projection::Arrange(Arrangement::Shuffle { side }),
        Projection::Linear {
            name: "modality_projection.proj".to_owned(),
            width: json.text_width,
            is_transposed: false,
        },
    ];
    Ok(VisionConfig { projector, ..config })
}
