//! Pixtral (arXiv:2410.07073), as Mistral 3 and LLaVA's files have it: pictures of any shape, rows and
//! columns rotate.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::VisionFamily;
use crate::config::{
    Arrangement, EncoderActivation, NormStyle, PatchInput, Positions, Projection, Rotation, VisionConfig,
};
use crate::json::VisionJson;
use crate::names;

pub const MISTRAL_3: VisionFamily = VisionFamily {
    model_type: "mistral3",
    from_json: mistral_3,
    names: &names::PIXTRAL,
    prefixes: &["vision_tower.", "model.vision_tower."],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
};

pub const PIXTRAL: VisionFamily = VisionFamily { model_type: "pixtral", from_json: pixtral, ..MISTRAL_3 };

/// The encoder without a projector.
fn encoder(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let hidden_size = json.size("hidden_size", Some(1024))?;
    let n_heads = json.size("num_attention_heads", Some(16))?;
    let head_dim = json.size("head_dim", Some(hidden_size / n_heads))?;
    let patch_size = json.size("patch_size", Some(16))?;
    let theta = json.number("rope_theta", 10_000.0)?;
    Ok(VisionConfig {
        family,
        patches: PatchInput::Tiles,
        patch_values: json.size("num_channels", Some(3))? * patch_size * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: n_heads,
        head_dim,
        mlp_width: json.size("intermediate_size", Some(4096))?,
        is_gated: true,
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::Silu))?,
        sandwich: None,
        pixel_scale: None,
        norm: NormStyle { eps: 1e-5, gain_offset: 0.0 },
        positions: Positions::None,
        rotation: Some(alternating(theta, head_dim)),
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: true,
        has_post_norm: false,
        windows: None,
        n_layers: json.size("num_hidden_layers", Some(24))?,
        projector: Vec::new(),
        deepstack: Vec::new(),
        feature_size: json.text_width,
    })
}

/// Rows rotate by the even frequencies, columns by the odd ones.
pub fn alternating(theta: f64, head_dim: usize) -> Rotation {
    let n = head_dim / 4;
    let frequency = |pair: usize| {
        let idx = if pair < n { 2 * pair } else { 2 * (pair - n) + 1 };
        theta.powf(-2.0 * idx as f64 / head_dim as f64)
    };
    Rotation {
        frequencies: (0..2 * n).map(frequency).collect(),
        sections: (0..2 * n).map(|pair| if pair < n { 1 } else { 2 }).collect(),
        first: 0,
        is_interleaved: false,
    }
}

fn linear(name: &str, width: usize) -> Projection {
    Projection::Linear { name: name.to_owned(), width, is_transposed: false }
}

fn mistral_3(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = encoder(json, family)?;
    let side = json.model_size("spatial_merge_size", Some(2))?;
    let norm = NormStyle { eps: json.text_number("rms_norm_eps", 1e-5)? as f32, gain_offset: 0.0 };
    let projector = vec![
        Projection::Norm("norm".to_owned(), norm),
        Projection::Arrange(Arrangement::ShuffleChannels { side }),
        linear("patch_merger.merging_layer", config.hidden_size),
        linear("linear_1", json.text_width),
        Projection::Activation(Activation::Gelu),
        linear("linear_2", json.text_width),
    ];
    Ok(VisionConfig { projector, ..config })
}

fn pixtral(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let config = encoder(json, family)?;
    let projector = vec![
        linear("linear_1", json.text_width),
        Projection::Activation(Activation::Gelu),
        linear("linear_2", json.text_width),
    ];
    Ok(VisionConfig { projector, ..config })
}
