//! The division of a model's layers between a device and the processor. Does not copy weights.

use std::num::NonZeroUsize;

use throng_model::LoadedModel;
use throng_model::backend::BackendError;
use throng_model::config::{Stage, StageError};
use throng_model::load::LoadError;
use throng_model::parallel::PartError;
use throng_model::tensor_role::TensorRole;

/// Number of layers that a device computes. They are the last ones, with the head behind them; the processor
/// computes the embedding and the layers before them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// All layers if they fit into the device's memory, else as many as fit.
    #[default]
    Fit,
    /// All layers.
    All,
    /// The last layers; of a model with fewer layers all.
    Last(NonZeroUsize),
}

/// Share of the device's free memory that weights may take if all layers are on the device; keys, values and
/// activations need the rest.
const SHARE_OF_WHOLE: f64 = 0.85;
/// The same share if some layers are on the processor.
const SHARE_OF_PART: f64 = 0.8;

impl GpuLayers {
    /// The first layer on the device; 0: the whole model is on it. `available_bytes` are those of the
    /// device's memory; `None`: unknown. Experts may be on the processor.
    ///
    /// # Errors
    /// When the model cannot be divided as requested, or not even its last layer fits.
    pub(crate) fn first_layer(
        self,
        model: &LoadedModel,
        available_bytes: Option<u64>,
        has_experts: bool,
    ) -> Result<usize, LoadError> {
        let n_layers = model.config.layers.len();
        match self {
            Self::All => Ok(0),
            Self::Last(n) if n.get() >= n_layers => Ok(0),
            Self::Last(n) => {
                check(model, n_layers - n.get())?;
                Ok(n_layers - n.get())
            }
            Self::Fit => {
                let Some(available) = available_bytes else { return Ok(0) };
                let within = |share: f64| (available as f64 * share) as u64;
                let bytes = model.layer_bytes_of(|role| has_experts || role != TensorRole::Expert);
                let sum = |bytes: &[u64]| bytes.iter().sum::<u64>();
                let of_experts = sum(&model.layer_bytes()) - sum(&bytes);
                if model.weight_summary().n_bytes.saturating_sub(of_experts) <= within(SHARE_OF_WHOLE) {
                    return Ok(0);
                }
                first_fitting(model, &bytes, within(SHARE_OF_PART))
            }
        }
    }
}

/// The first layer from which on the weights take at most `most_bytes`, given those of each layer between
/// those of the embedding and of the head.
fn first_fitting(model: &LoadedModel, bytes: &[u64], most_bytes: u64) -> Result<usize, LoadError> {
    let n_layers = model.config.layers.len();
    let mut sum = bytes[n_layers + 1];
    let mut first_layer = n_layers;
    while first_layer > 1 && sum + bytes[first_layer] <= most_bytes {
        sum += bytes[first_layer];
        first_layer -= 1;
    }
    if first_layer == n_layers {
        let n_bytes = usize::try_from(sum + bytes[n_layers]).unwrap_or(usize::MAX);
        return Err(BackendError::OutOfMemory { what: "the last layer and the head", n_bytes }.into());
    }
    later_half(model, first_layer)
}

/// The first layer at or behind `first_layer` before which the model can be divided.
///
/// # Errors
/// The reason why it cannot be divided before `first_layer`, if it cannot behind it either.
pub(crate) fn later_half(model: &LoadedModel, first_layer: usize) -> Result<usize, LoadError> {
    let n_layers = model.config.layers.len();
    let found = (first_layer..n_layers).find(|&layer| check(model, layer).is_ok());
    match found {
        Some(layer) => Ok(layer),
        None => Err(check(model, first_layer).err().unwrap_or_else(|| {
            PartError::from(StageError::Layers { layers: first_layer..n_layers, n_layers }).into()
        })),
    }
}

fn check(model: &LoadedModel, first_layer: usize) -> Result<(), LoadError> {
    if model.pooler.is_some() {
        return Err(PartError::Pooling.into());
    }
    Stage::halves(&model.config, first_layer).map(drop).map_err(|error| PartError::from(error).into())
}
