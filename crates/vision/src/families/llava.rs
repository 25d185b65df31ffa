//! LLaVA 1.5 (arXiv:2310.03744): CLIP's patches before its last layer, without the class token.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{VisionFamily, siglip::siglip};
use crate::config::{ClassToken, EncoderActivation, NormStyle, Positions, Projection, VisionConfig};
use crate::json::{VisionJson, invalid};
use crate::names::SIGLIP;

pub const LLAVA: VisionFamily = VisionFamily {
    model_type: "llava",
    from_json,
    names: &SIGLIP,
    prefixes: &["vision_tower.vision_model.", "model.vision_tower.vision_model."],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
};

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    json.only("model_type", "clip_vision_model")?;
    let config = clip(json, family)?;
    let linear = |name: &str| Projection::Linear {
        name: name.to_owned(),
        width: json.text_width,
        is_transposed: false,
    };
    let projector = vec![linear("linear_1"), Projection::Activation(Activation::Gelu), linear("linear_2")];
    Ok(VisionConfig { projector, ..config })
}

/// CLIP up to the hidden states that the file names.
fn clip(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = siglip(json, family)?;
    let Positions::Table { n_rows } = config.positions else { return Ok(config) };
    let layer = json.model.get("vision_feature_layer").map_or(Some(-2), serde_json::Value::as_i64);
    let n_skipped = layer.filter(|layer| (-8..0).contains(layer)).map(|layer| (-1 - layer) as usize);
    let n_layers = n_skipped.and_then(|n| config.n_layers.checked_sub(n));
    let n_layers = n_layers.ok_or_else(|| invalid("vision_feature_layer", &format!("{layer:?}"), "-2"))?;
    Ok(VisionConfig {
        norm: NormStyle { eps: json.number("layer_norm_eps", 1e-5)? as f32, gain_offset: 0.0 },
        activation: json.activation("hidden_act", EncoderActivation::QuickGelu)?,
        positions: Positions::Table { n_rows: n_rows + 1 },
        class_token: Some(ClassToken::First),
        has_pre_norm: true,
        has_post_norm: false,
        n_layers,
        ..config
    })
}
