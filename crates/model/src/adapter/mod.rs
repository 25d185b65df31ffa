//! Adapters: low-rank matrices that are added to a model's own linear layers (LoRA, arXiv:2106.09685), many
//! of them over one set of weights. Does not know requests and names; an adapter is a number.

mod error;
mod peft;
mod peft_config;
mod random;
mod step;
mod store;
mod targets;

pub use error::AdapterError;
pub use random::RandomAdapter;
pub use step::StepAdapters;
pub use store::{AdapterLimits, AdapterStore, LoadedAdapter};

pub(crate) use peft::PeftAdapter;

use sha2::{Digest, Sha256};
use throng_core::request::AdapterDigest;
use throng_kernels::low_rank::{LowRank, LowRankPart};
use throng_kernels::quant::Format;

use crate::backend::DeviceMemory;
use crate::config::DecoderConfig;
use targets::{Linear, Target};

/// The matrices of one adapter on a device.
pub struct AdapterWeights<B: DeviceMemory> {
    /// Matrices of each layer of the model.
    pub(crate) layers: Vec<LayerAdapter<B>>,
}

/// Changes of an adapter in one layer.
pub(crate) struct LayerAdapter<B: DeviceMemory> {
    pub(crate) query_key_value: Option<B::LowRank>,
    pub(crate) attention_output: Option<B::LowRank>,
    pub(crate) gate_up: Option<B::LowRank>,
    pub(crate) down: Option<B::LowRank>,
}

/// One pair of matrices in f32, as a source gives it.
struct Pair {
    /// `[rank, cols]`.
    a: Vec<f32>,
    /// `[n_cols, rank]`, rows in the order of the model's own weights.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

/// Source of adapters.
trait AdapterSource {
    /// The rank of the pair for a target of a layer, if the adapter changes it. Shapes have been checked.
    fn rank(&self, layer_idx: usize, target: &Target) -> Option<usize>;

    /// Pair of matrices of a layer.
    fn pair(&self, layer_idx: usize, target: &Target) -> Option<Pair>;
}

/// The largest rank and the bytes of an adapter whose numbers are held in `format`.
fn size_of(source: &dyn AdapterSource, config: &DecoderConfig, format: Format) -> (usize, usize) {
    let (mut largest, mut n_bytes) = (0, 0usize);
    for layer_idx in 0..config.layers.len() {
        for target in targets::of_layer(config, layer_idx) {
            let Some(rank) = source.rank(layer_idx, &target) else { continue };
            largest = largest.max(rank);
            n_bytes = n_bytes.saturating_add(LowRank::bytes_of(rank, target.cols, target.n_cols, format));
        }
    }
    (largest, n_bytes)
}

impl<B: DeviceMemory> AdapterWeights<B> {
    /// Copies an adapter to a device, and computes the digest of its content.
    fn new(
        backend: &B,
        config: &DecoderConfig,
        source: &dyn AdapterSource,
        format: Format,
    ) -> Result<(Self, AdapterDigest), AdapterError> {
        let mut hasher = Sha256::new_with_prefix(b"throng adapter");
        hasher.update(format.name());
        let mut layer = |layer_idx: usize| {
            let targets = targets::of_layer(config, layer_idx);
            let mut of = |linear: Linear| -> Result<Option<B::LowRank>, AdapterError> {
                let of_linear = targets.iter().filter(|target| target.linear == linear);
                let mut pairs: Vec<(&Target, Pair)> =
                    of_linear.filter_map(|target| Some((target, source.pair(layer_idx, target)?))).collect();
                pairs.sort_by_key(|(target, _)| target.first_col);
                let Some((first, _)) = pairs.first() else { return Ok(None) };
                for two in pairs.windows(2) {
                    if two[0].0.first_col + two[0].0.n_cols > two[1].0.first_col {
                        return Err(AdapterError::Twice {
                            layer_idx,
                            modules: [two[0].0.name, two[1].0.name],
                        });
                    }
                }
                let parts: Vec<_> = pairs
                    .iter()
                    .map(|(target, pair)| LowRankPart {
                        first_col: target.first_col,
                        a: &pair.a,
                        b: &pair.b,
                        rank: pair.rank,
                        scale: pair.scale,
                    })
                    .collect();
                parts.iter().for_each(|part| absorb(&mut hasher, layer_idx, linear, part));
                Ok(Some(backend.low_rank(first.cols, &parts, format)?))
            };
            Ok(LayerAdapter {
                query_key_value: of(Linear::QueryKeyValue)?,
                attention_output: of(Linear::AttentionOutput)?,
                gate_up: of(Linear::GateUp)?,
                down: of(Linear::Down)?,
            })
        };
        let layers = (0..config.layers.len()).map(&mut layer).collect::<Result<_, AdapterError>>()?;
        Ok((Self { layers }, AdapterDigest(hasher.finalize().into())))
    }
}

/// Feeds a pair of matrices with its place, so that no two adapters read the same.
fn absorb(hasher: &mut Sha256, layer_idx: usize, linear: Linear, part: &LowRankPart<'_>) {
    let numbers = [layer_idx, linear as usize, part.first_col, part.rank, part.a.len(), part.b.len()];
    numbers.into_iter().for_each(|number| hasher.update((number as u64).to_le_bytes()));
    hasher.update(part.scale.to_le_bytes());
    hasher.update(bytemuck::cast_slice::<f32, u8>(part.a));
    hasher.update(bytemuck::cast_slice::<f32, u8>(part.b));
}
