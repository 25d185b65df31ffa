//! Qwen2.5-VL (arXiv:2502.13923), whose patches attend to others of their window on most layers, Qwen3-VL
//! (arXiv:2511.21631) and Qwen 3.5: patches in blocks of 2 × 2, positions interpolated and rotated, and with
//! Qwen3-VL features of earlier layers, which are added after the decoder's first layers.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::{VisionFamily, rows_then_columns};
use crate::config::{
    Arrangement, EncoderActivation, NormStyle, PatchInput, Positions, Projection, VisionConfig, Windows,
};
use crate::json::{VisionJson, invalid};
use crate::names::{QWEN, QWEN_2_5};

pub const QWEN_3_VL: VisionFamily = VisionFamily {
    model_type: "qwen3_vl",
    from_json,
    names: &QWEN,
    prefixes: &["model.visual.", "visual."],
    projector_prefixes: &["model.visual.", "visual."],
};

pub const QWEN_3_VL_MOE: VisionFamily = VisionFamily { model_type: "qwen3_vl_moe", ..QWEN_3_VL };
pub const QWEN_3_5: VisionFamily = VisionFamily { model_type: "qwen3_5", ..QWEN_3_VL };
pub const QWEN_3_5_MOE: VisionFamily = VisionFamily { model_type: "qwen3_5_moe", ..QWEN_3_VL };

pub const QWEN_2_5_VL: VisionFamily =
    VisionFamily { model_type: "qwen2_5_vl", from_json: qwen_2_5, names: &QWEN_2_5, ..QWEN_3_VL };

const NORM: NormStyle = NormStyle { eps: 1e-6, gain_offset: 0.0 };

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let (hidden_size, n_heads) = (json.size("hidden_size", None)?, json.size("num_heads", None)?);
    let head_dim = hidden_size / n_heads;
    let merge = json.size("spatial_merge_size", Some(2))?;
    let patch_size = json.size("patch_size", Some(16))?;
    let n_positions = json.size("num_position_embeddings", None)?;
    let side = n_positions.isqrt();
    if side * side != n_positions {
        return Err(invalid("num_position_embeddings", &n_positions, "a square"));
    }
    let feature_size = json.size("out_hidden_size", Some(json.text_width))?;
    let joined = hidden_size * merge * merge;
    let merger = |name: &str, norms_joined: bool| {
        let norm = Projection::Norm(format!("{name}.norm"), NORM);
        let join = Projection::Arrange(Arrangement::Join(merge * merge));
        let linear = |part: &str, width| Projection::Linear {
            name: format!("{name}.{part}"),
            width,
            is_transposed: false,
        };
        let [first, second] = if norms_joined { [join, norm] } else { [norm, join] };
        vec![
            first,
            second,
            linear("linear_fc1", joined),
            Projection::Activation(Activation::Gelu),
            linear("linear_fc2", feature_size),
        ]
    };
    let layers = json.sizes("deepstack_visual_indexes")?;
    let n_layers = json.size("depth", None)?;
    if !layers.is_sorted_by(|a, b| a < b) || layers.iter().any(|&layer_idx| layer_idx >= n_layers) {
        return Err(invalid("deepstack_visual_indexes", &format!("{layers:?}"), "increasing layers"));
    }
    let deepstack = layers.into_iter().enumerate();
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
        mlp_width: json.size("intermediate_size", None)?,
        is_gated: false,
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::GeluTanh))?,
        sandwich: None,
        pixel_scale: None,
        norm: NORM,
        positions: Positions::Bilinear { side },
        rotation: Some(rows_then_columns(10_000.0, head_dim)),
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: false,
        has_post_norm: false,
        windows: None,
        n_layers,
        projector: merger("merger", false),
        deepstack: deepstack
            .map(|(i, layer_idx)| (layer_idx, merger(&format!("deepstack_merger_list.{i}"), true)))
            .collect(),
        feature_size,
    })
}

/// Qwen2.5-VL: no learned positions, root mean square norms and gates.
fn qwen_2_5(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    let (hidden_size, n_heads) = (json.size("hidden_size", Some(1280))?, json.size("num_heads", Some(16))?);
    let head_dim = hidden_size / n_heads;
    let merge = json.size("spatial_merge_size", Some(2))?;
    let patch_size = json.size("patch_size", Some(14))?;
    let side = json.size("window_size", Some(112))? / patch_size / merge;
    if side == 0 {
        return Err(invalid("window_size", &side, "a window of at least one block of patches"));
    }
    let channels = match json.vision.contains_key("in_channels") {
        true => json.size("in_channels", Some(3))?,
        false => json.size("in_chans", Some(3))?,
    };
    let joined = hidden_size * merge * merge;
    let linear = |name: &str, width| Projection::Linear {
        name: format!("merger.mlp.{name}"),
        width,
        is_transposed: false,
    };
    let mut full_layers = json.sizes("fullatt_block_indexes")?;
    if full_layers.is_empty() {
        full_layers = vec![7, 15, 23, 31];
    }
    let feature_size = json.size("out_hidden_size", Some(json.text_width))?;
    Ok(VisionConfig {
        family,
        patches: PatchInput::Rows { merge },
        patch_values: channels * json.size("temporal_patch_size", Some(2))? * patch_size * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: n_heads,
        head_dim,
        mlp_width: json.size("intermediate_size", Some(3420))?,
        is_gated: true,
        activation: json.activation("hidden_act", EncoderActivation::Plain(Activation::Silu))?,
        sandwich: None,
        pixel_scale: None,
        norm: NORM,
        positions: Positions::None,
        rotation: Some(rows_then_columns(10_000.0, head_dim)),
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: false,
        has_post_norm: false,
        windows: Some(Windows { side, full_layers }),
        n_layers: json.size("depth", Some(32))?,
        projector: vec![
            Projection::Norm("merger.ln_q".to_owned(), NORM),
            Projection::Arrange(Arrangement::Join(merge * merge)),
            linear("0", joined),
            Projection::Activation(Activation::Gelu),
            linear("2", feature_size),
        ],
        deepstack: Vec::new(),
        feature_size,
    })
}
