//! Llama 4: tiles and a small copy of the whole, the class token last, neighbours rotated by row and column.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{VisionFamily, siglip::siglip};
use crate::config::{
    Arrangement, ClassToken, EncoderActivation, NormStyle, Positions, Projection, Rotation, VisionConfig,
};
use crate::json::{VisionJson, invalid};
use crate::names;

pub const LLAMA_4: VisionFamily = VisionFamily {
    model_type: "llama4",
    from_json,
    names: &names::LLAMA_4,
    prefixes: &["vision_model.", "model.vision_model."],
    projector_prefixes: &["", "model."],
};

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = siglip(json, family)?;
    let Positions::Table { n_rows } = config.positions else { return Ok(config) };
    let ratio = json.number("pixel_shuffle_ratio", 0.5)?;
    if !(0.1..=1.0).contains(&ratio) {
        return Err(invalid("pixel_shuffle_ratio", &ratio, "0.5"));
    }
    let side = (1.0 / ratio).round() as usize;
    let linear =
        |name: &str, width| Projection::Linear { name: name.to_owned(), width, is_transposed: false };
    let (hidden, output) =
        (json.size("projector_input_dim", None)?, json.size("projector_output_dim", None)?);
    Ok(VisionConfig {
        norm: NormStyle { eps: json.number("norm_eps", 1e-5)? as f32, gain_offset: 0.0 },
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::Gelu))?,
        positions: Positions::Table { n_rows: n_rows + 1 },
        rotation: Some(columns_then_rows(json.number("rope_theta", 10_000.0)?, config.head_dim)),
        class_token: Some(ClassToken::Last),
        has_pre_norm: true,
        has_post_norm: true,
        projector: vec![
            Projection::Arrange(Arrangement::Shuffle { side }),
            linear("vision_model.vision_adapter.mlp.fc1", hidden),
            Projection::Activation(Activation::Gelu),
            linear("vision_model.vision_adapter.mlp.fc2", output),
            Projection::Activation(Activation::Gelu),
            linear("multi_modal_projector.linear_1", json.text_width),
        ],
        ..config
    })
}

/// Columns rotate the first half of the pairs and rows the other, counted from 1; the class token is not
/// rotated.
fn columns_then_rows(theta: f64, head_dim: usize) -> Rotation {
    let n = head_dim / 4;
    let frequency = |pair: usize| theta.powf(-2.0 * (pair % n.max(1)) as f64 / (head_dim / 2) as f64);
    Rotation {
        frequencies: (0..2 * n).map(frequency).collect(),
        sections: (0..2 * n).map(|pair| if pair < n { 2 } else { 1 }).collect(),
        first: 1,
        is_interleaved: true,
    }
}
