//! InternVL 3 (arXiv:2504.10479): tiles, outputs of blocks scaled, four patches joined, no class token in
//! the end.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{VisionFamily, siglip::siglip};
use crate::config::{
    Arrangement, ClassToken, EncoderActivation, NormStyle, Positions, Projection, VisionConfig,
};
use crate::json::{VisionJson, invalid};
use crate::names::INTERN;

pub const INTERN_VL: VisionFamily = VisionFamily {
    model_type: "internvl",
    from_json,
    names: &INTERN,
    prefixes: &["vision_tower.", "model.vision_tower."],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
};

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    json.only("norm_type", "layer_norm")?;
    json.only("use_qk_norm", "false")?;
    json.only("use_absolute_position_embeddings", "true")?;
    let config = siglip(json, family)?;
    let Positions::Table { n_rows } = config.positions else { return Ok(config) };
    let ratio = json.model.get("downsample_ratio").map_or(Some(0.5), serde_json::Value::as_f64);
    let side = ratio.filter(|ratio| (0.1..=1.0).contains(ratio)).map(|ratio| (1.0 / ratio).round() as usize);
    let side = side.ok_or_else(|| invalid("downsample_ratio", &format!("{ratio:?}"), "0.5"))?;
    let linear = |name: &str| Projection::Linear {
        name: name.to_owned(),
        width: json.text_width,
        is_transposed: false,
    };
    Ok(VisionConfig {
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::Gelu))?,
        positions: Positions::Table { n_rows: n_rows + 1 },
        class_token: Some(ClassToken::First),
        // Pooling that nothing reads takes the place of the norm.
        has_post_norm: json.vision.get("use_mean_pooling") == Some(&serde_json::Value::Bool(false)),
        projector: vec![
            Projection::Arrange(Arrangement::Shuffle { side }),
            Projection::Norm("layer_norm".to_owned(), NormStyle { eps: 1e-5, gain_offset: 0.0 }),
            linear("linear_1"),
            Projection::Activation(Activation::Gelu),
            linear("linear_2"),
        ],
        ..config
    })
}
