//! Gemma 4: pictures of any shape, positions by two tables and by rotation of half a head each, norms around
//! each block, averages of 3 × 3 patches.

use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use super::VisionFamily;
use crate::config::{
    Arrangement, EncoderActivation, NormStyle, PatchInput, Positions, Projection, Rotation, Sandwich,
    VisionConfig,
};
use crate::json::{VisionJson, invalid};
use crate::names;

pub const GEMMA_4: VisionFamily = VisionFamily {
    model_type: "gemma4",
    from_json,
    names: &names::GEMMA_4,
    prefixes: &["model.vision_tower.", "vision_tower."],
    projector_prefixes: &["model.embed_vision.", "embed_vision."],
};

fn from_json(json: &VisionJson<'_>, family: &'static str) -> Result<VisionConfig, ConfigError> {
    json.only("attention_bias", "false")?;
    let hidden_size = json.size("hidden_size", Some(768))?;
    let n_heads = json.size("num_attention_heads", Some(12))?;
    let head_dim = json.size("head_dim", Some(64))?;
    if !head_dim.is_multiple_of(4) {
        return Err(invalid("head_dim", &head_dim, "a multiple of 4"));
    }
    let patch_size = json.size("patch_size", Some(16))?;
    let eps = json.number("rms_norm_eps", 1e-6)? as f32;
    let theta = json.vision.get("rope_parameters").and_then(|rope| rope.get("rope_theta")?.as_f64());
    let side = json.size("pooling_kernel_size", Some(3))?;
    let factor = (hidden_size as f64).sqrt() as f32;
    let standardizes = json.vision.get("standardize").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let standardize = Arrangement::Standardize { names: ["std_bias", "std_scale"] };
    let clips = json.vision.get("use_clipped_linears").and_then(serde_json::Value::as_bool).unwrap_or(false);
    Ok(VisionConfig {
        family,
        patches: PatchInput::Rows { merge: 1 },
        patch_values: 3 * patch_size * patch_size,
        patch_size,
        hidden_size,
        n_heads,
        n_kv_heads: json.size("num_key_value_heads", Some(n_heads))?,
        head_dim,
        mlp_width: json.size("intermediate_size", Some(3072))?,
        is_gated: true,
        activation: json.activation("hidden_activation", EncoderActivation::Plain(Activation::GeluTanh))?,
        sandwich: Some(Sandwich { clips }),
        pixel_scale: Some((0.5, 2.0)),
        norm: NormStyle { eps, gain_offset: 0.0 },
        positions: Positions::Axes { n: json.size("position_embedding_size", Some(10_240))? },
        rotation: Some(rotation(theta.unwrap_or(100.0), head_dim)),
        class_token: None,
        has_patch_norm: false,
        has_pre_norm: false,
        has_post_norm: false,
        windows: None,
        n_layers: json.size("num_hidden_layers", Some(16))?,
        projector: [Projection::Arrange(Arrangement::Average { side, factor })]
            .into_iter()
            .chain(standardizes.then_some(Projection::Arrange(standardize)))
            .chain([
                Projection::PlainNorm(eps),
                Projection::Linear {
                    name: "embedding_projection".to_owned(),
                    width: json.text_width,
                    is_transposed: false,
                },
            ])
            .collect(),
        deepstack: Vec::new(),
        feature_size: json.text_width,
    })
}

/// Pairs of the first half of a head rotate by the column, those of the second by the row, once the elements
/// of heads are in the order of [`half_pairs`].
fn rotation(theta: f64, head_dim: usize) -> Rotation {
    let n = head_dim / 4;
    let frequency = |pair: usize| theta.powf(-2.0 * (pair % n.max(1)) as f64 / (head_dim / 2) as f64);
    Rotation {
        frequencies: (0..2 * n).map(frequency).collect(),
        sections: (0..2 * n).map(|pair| if pair < n { 2 } else { 1 }).collect(),
        first: 0,
        is_interleaved: false,
    }
}

/// The stored index of each element of a head: each half of a head has its own pairs, which become pairs of
/// the two halves of the head.
pub fn half_pairs(head_dim: usize) -> impl Iterator<Item = usize> {
    let n = head_dim / 4;
    [0, 2 * n, n, 3 * n].into_iter().flat_map(move |first| first..first + n)
}
