//! GLM-4.1V and GLM-4.5V (arXiv:2507.01006): patches in blocks of 2 × 2, learned positions by bicubic
//! interpolation and rotated ones, a convolution over blocks after the layers.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{VisionFamily, rows_then_columns};
use crate::config::{
    Arrangement, EncoderActivation, NormStyle, PatchInput, Positions, Projection, VisionConfig,
};
use crate::json::VisionJson;
use crate::names::GLM;

pub const GLM_4V: VisionFamily = VisionFamily {
    model_type: "glm4v",
    from_json,
    names: &GLM,
    prefixes: &["model.visual.", "visual."],
    projector_prefixes: &["model.visual.", "visual."],
};

pub const GLM_4V_MOE: VisionFamily = VisionFamily { model_type: "glm4v_moe", ..GLM_4V };

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let (hidden_size, n_heads) = (json.size("hidden_size", Some(1536))?, json.size("num_heads", Some(12))?);
    let head_dim = hidden_size / n_heads;
    let merge = json.size("spatial_merge_size", Some(2))?;
    let patch_size = json.size("patch_size", Some(14))?;
    let side = json.size("image_size", Some(336))? / patch_size;
    let feature_size = json.size("out_hidden_size", Some(json.text_width))?;
    let linear =
        |name: &str| Projection::Linear { name: name.to_owned(), width: feature_size, is_transposed: false };
    let names = ["gate_proj", "up_proj", "down_proj"].map(|name| format!("merger.{name}"));
    Ok(VisionConfig {
        family,
        patches: PatchInput::Rows { merge },
        patch_values: json.size("in_channels", Some(3))?
            * json.size("temporal_patch_size", Some(2))?
            * patch_size
            * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: n_heads,
        head_dim,
        // The width that the file names is that of the merger.
        mlp_width: feature_size,
        is_gated: true,
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::Silu))?,
        sandwich: None,
        pixel_scale: None,
        norm: NormStyle { eps: json.number("rms_norm_eps", 1e-5)? as f32, gain_offset: 0.0 },
        positions: Positions::Bicubic { side },
        rotation: Some(rows_then_columns(10_000.0, head_dim)),
        class_token: None,
        has_patch_norm: true,
        has_pre_norm: false,
        has_post_norm: true,
        windows: None,
        n_layers: json.size("depth", Some(24))?,
        projector: vec![
            Projection::Arrange(Arrangement::JoinChannels(merge * merge)),
            linear("downsample"),
            linear("merger.proj"),
            Projection::Norm(
                "merger.post_projection_norm".to_owned(),
                NormStyle { eps: 1e-5, gain_offset: 0.0 },
            ),
            Projection::Activation(Activation::Gelu),
            Projection::GatedMlp {
                names,
                hidden: json.size("intermediate_size", Some(13_696))?,
                width: feature_size,
                activation: Activation::Silu,
            },
        ],
        deepstack: Vec::new(),
        feature_size,
    })
}
