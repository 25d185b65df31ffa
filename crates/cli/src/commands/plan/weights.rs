//! Types of a model's weights: in its files, in this program's memory, or by a configuration alone.

use serde_json::{Map, Value};
use throng_checkpoint::quantized::{Layout, Scheme};
use throng_kernels::quant::{ComputePath, Format};
use throng_model::LoadedModel;
use throng_model::config::{DecoderConfig, FeedForward};
use throng_model::load::WeightSummary;
use throng_plan::ModelShape;
use throng_plan::machine::ComputeType;
use throng_plan::model_shape::{LayerShape, Matrix, WeightType};

use super::layers::layer_shape;

/// The type in which the weights are stored: engines of accelerators multiply it as it is.
pub fn stored(model: &LoadedModel, shape: &ModelShape) -> WeightType {
    of_summary(&model.stored_summary(), shape, |format| match format {
        Format::F32 => ComputeType::F32,
        Format::FP8 | Format::MXFP8 => ComputeType::Fp8,
        Format::MXFP4 | Format::NVFP4 | Format::NVFP4_SCALED => ComputeType::Fp4,
        format if format.is_float() => ComputeType::Bf16,
        _ => ComputeType::Int8,
    })
}

/// The type in which `throng serve` holds and multiplies the weights.
pub fn held(model: &LoadedModel, shape: &ModelShape) -> WeightType {
    of_summary(&model.weight_summary(), shape, |format| match ComputePath::of(format) {
        ComputePath::Int8 { .. } => ComputeType::Int8,
        ComputePath::Float(Format::F32) => ComputeType::F32,
        ComputePath::Float(_) => ComputeType::Bf16,
    })
}

/// Bits of a parameter such that all weights have their real size; also the arithmetic of most of them.
fn of_summary(summary: &WeightSummary, shape: &ModelShape, compute: fn(Format) -> ComputeType) -> WeightType {
    let most = summary.formats.first().map_or(Format::BF16, |(format, _)| *format);
    WeightType { bits: summary.n_bytes as f64 * 8.0 / shape.n_parameters(), compute: compute(most) }
}

/// The type of the weights according to a configuration, with a remark if they are quantized.
pub fn configured(
    config: &Map<String, Value>,
    decoder: &DecoderConfig,
    shape: &ModelShape,
) -> (WeightType, Option<String>) {
    let plain = plain_type(config);
    let (name, layouts) = match Scheme::of_config(config) {
        Ok(Some(scheme)) => (scheme.name, layouts(decoder, |layer| scheme.of_layer(layer))),
        Ok(None) if is_mxfp4(config) => {
            ("MXFP4", layouts(decoder, |layer| layer.contains("experts").then_some(Layout::MXFP4)))
        }
        Ok(None) => return (plain, None),
        Err(error) => {
            let note = format!(
                "The weights are taken as {}: {error} is not read here; --weights says another type.",
                plain.compute.name()
            );
            return (plain, Some(note));
        }
    };
    let quantized: f64 = layouts.iter().map(|(_, n)| n).sum();
    let bits: f64 = layouts.iter().map(|(layout, n)| n * layout.stored_bits()).sum();
    let n_parameters = shape.n_parameters();
    let bits = (bits + (n_parameters - quantized) * plain.bits) / n_parameters;
    let most = layouts.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(layout, _)| *layout);
    let compute = most.map_or(plain.compute, compute_type);
    let note = format!("The weights are taken as {bits:.2} bits each, by the configuration of {name}.");
    (WeightType { bits, compute }, Some(note))
}

/// The type of weights that are not quantized.
fn plain_type(config: &Map<String, Value>) -> WeightType {
    let of = |config: &Map<String, Value>| {
        ["dtype", "torch_dtype"].iter().find_map(|key| config.get(*key)?.as_str().map(str::to_owned))
    };
    let dtype = of(config).or_else(|| of(config.get("text_config")?.as_object()?));
    match dtype.as_deref() {
        Some("float32") => WeightType { bits: 32.0, compute: ComputeType::F32 },
        _ => WeightType::BF16,
    }
}

/// Whether experts are in MXFP4, which the loader of the family reads and no scheme.
fn is_mxfp4(config: &Map<String, Value>) -> bool {
    config.get("quantization_config").is_some_and(|quantized| quantized["quant_method"] == "mxfp4")
}

fn compute_type(layout: Layout) -> ComputeType {
    match (layout.is_float(), layout.code_bits()) {
        (true, 4) => ComputeType::Fp4,
        (true, _) => ComputeType::Fp8,
        (false, 8) => ComputeType::Int8,
        // Smaller integers are widened before they are multiplied.
        (false, _) => ComputeType::Bf16,
    }
}

/// Parameters in each layout. A layer's matrices are taken to be stored as one of its largest is.
fn layouts(decoder: &DecoderConfig, of: impl Fn(&str) -> Option<Layout>) -> Vec<(Layout, f64)> {
    let mut all: Vec<(Layout, f64)> = Vec::new();
    let mut add = |layer: String, n_parameters: f64| {
        let Some(layout) = of(&layer) else { return };
        match all.iter_mut().find(|(known, _)| *known == layout) {
            Some((_, n)) => *n += n_parameters,
            None => all.push((layout, n_parameters)),
        }
    };
    for (i, layer) in decoder.layers.iter().enumerate() {
        let LayerShape { matrices, experts, .. } = layer_shape(layer, decoder);
        let dense = if matches!(layer.feed_forward, FeedForward::Dense { .. }) {
            "mlp.down_proj"
        } else {
            "self_attn.o_proj"
        };
        add(format!("model.layers.{i}.{dense}"), matrices.iter().map(Matrix::n_parameters).sum());
        if let Some(experts) = experts {
            let name = format!("model.layers.{i}.mlp.experts.0.down_proj");
            add(name, experts.n_experts * experts.n_parameters());
        }
    }
    all
}
