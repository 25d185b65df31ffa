//! The forward pass of encoders: one for all families, over any backend. Does not know where weights and
//! pictures come from.

mod attention;
mod sandwich;

use std::sync::Arc;

use throng_core::prompt_media::MediaContent;
use throng_model::backend::{Backend, BackendError, Scratch};
use throng_model::media::{EncodeError, Features};
use throng_model::shapes::{Activation, KvDtype};

use crate::arrange::Rows;
use crate::config::{ClassToken, EncoderActivation, VisionConfig};
use crate::patches::{Patches, TileShape, patches_of};
use crate::positions::add_positions;
use crate::weights::{EncoderLayer, EncoderWeights, LayerWeights, Step};
use attention::EncoderAttention;

/// Largest side of a picture in pixels that tiles are put together to.
const MAX_SIDE: usize = 1 << 20;

/// An encoder on a device.
pub struct Encoder<B: Backend> {
    backend: B,
    config: Arc<VisionConfig>,
    weights: Arc<EncoderWeights<B>>,
    kv_dtype: KvDtype,
}

/// Buffers of the layers for the rows of one picture.
struct Workspace<B: Backend> {
    residual: B::Buffer,
    attended: B::Buffer,
    qkv: B::Buffer,
    scratch: Scratch<B>,
}

impl<B: Backend> Encoder<B> {
    /// An encoder whose keys and values are held in this type.
    pub fn new(
        backend: B,
        config: Arc<VisionConfig>,
        weights: Arc<EncoderWeights<B>>,
        kv_dtype: KvDtype,
    ) -> Self {
        Self { backend, config, weights, kv_dtype }
    }

    /// The features of a content.
    ///
    /// # Errors
    /// When its pixel values are not those that the encoder reads, or the device fails.
    pub fn encode(&mut self, content: &MediaContent) -> Result<Features, EncodeError> {
        let config = Arc::clone(&self.config);
        let patches = patches_of(&config, content).map_err(EncodeError::Unreadable)?;
        let size = content.layout().grid.map(|side| side as usize);
        if config.puts_tiles_together() && size.iter().any(|&side| side == 0 || side > MAX_SIDE) {
            return Err(EncodeError::Unreadable(format!("a picture of {} × {} pixels", size[2], size[1])));
        }
        let attention = EncoderAttention::new(&mut self.backend, &config, &patches, self.kv_dtype)?;
        let n_rows = attention.n_rows();
        let mut ws = self.workspace(n_rows)?;
        let embedded = self.embed(&patches)?;
        let arranged = attention.arrange(&embedded, config.hidden_size);
        self.backend.write_rows(&mut ws.residual, &arranged);
        let weights = Arc::clone(&self.weights);
        if let Some(norm) = &weights.pre_norm {
            let mut normed = self.buffer(n_rows, config.hidden_size)?;
            self.backend.norm_rows(&ws.residual, norm.get(), &mut normed);
            ws.residual = normed;
        }
        let mut attention = attention;
        let mut deepstack = Vec::new();
        for (layer_idx, layer) in weights.layers.iter().enumerate() {
            match layer {
                EncoderLayer::Plain(layer) => self.layer(layer_idx, layer, &mut attention, &mut ws),
                EncoderLayer::Sandwich(layer) => {
                    self.sandwich(layer_idx, layer, &mut attention, &mut ws)?;
                }
            }
            for (_, steps) in weights.deepstack.iter().filter(|(after, _)| *after == layer_idx) {
                let rows = self.patch_rows(&mut ws.residual, &attention, &patches)?;
                deepstack.push(self.project(rows, steps, [size[1], size[2]])?);
            }
        }
        if let Some(norm) = &weights.post_norm {
            let mut normed = self.buffer(n_rows, config.hidden_size)?;
            self.backend.norm_rows(&ws.residual, norm.get(), &mut normed);
            ws.residual = normed;
        }
        let rows = self.patch_rows(&mut ws.residual, &attention, &patches)?;
        let rows = self.project(rows, &weights.projector, [size[1], size[2]])?;
        Ok(Features { width: config.feature_size, rows, deepstack })
    }

    fn buffer(&mut self, n_rows: usize, width: usize) -> Result<B::Buffer, BackendError> {
        let mut buffer = self.backend.buffer(n_rows, width)?;
        self.backend.set_rows(&mut buffer, n_rows);
        Ok(buffer)
    }

    fn workspace(&mut self, n_rows: usize) -> Result<Workspace<B>, BackendError> {
        let config = Arc::clone(&self.config);
        let width = config.n_heads * config.head_dim;
        Ok(Workspace {
            residual: self.buffer(n_rows, config.hidden_size)?,
            attended: self.buffer(n_rows, width)?,
            qkv: self.buffer(n_rows, width + 2 * config.n_kv_heads * config.head_dim)?,
            scratch: Scratch::new(
                &self.backend,
                n_rows,
                config.hidden_size,
                [config.mlp_width],
                config.is_gated,
            )?,
        })
    }

    /// Embeddings of the patches with those of their positions; with class tokens where there are any.
    fn embed(&mut self, patches: &Patches) -> Result<Vec<f32>, BackendError> {
        let (config, weights) = (Arc::clone(&self.config), Arc::clone(&self.weights));
        let hidden = config.hidden_size;
        let n_patches = patches.places.len();
        let mut input = self.backend.buffer(n_patches, config.patch_values)?;
        self.backend.write_rows(&mut input, &patches.rows);
        let mut embedded = self.buffer(n_patches, hidden)?;
        self.backend.matmul(&input, &weights.patch.weight, weights.patch.bias.as_ref(), &mut embedded);
        if let Some(norm) = &weights.patch_norm {
            let mut normed = self.buffer(n_patches, hidden)?;
            self.backend.norm_rows(&embedded, norm.get(), &mut normed);
            embedded = normed;
        }
        let mut rows = self.backend.download(&mut embedded)?.to_vec();
        add_positions(config.positions, config.class_token, &weights.positions, patches, &mut rows, hidden);
        let Some(place) = config.class_token else { return Ok(rows) };
        let mut class_token = weights.class_token.clone();
        let of_class = match place {
            ClassToken::First => 0,
            ClassToken::Last => patches.shape.of_tile(),
        };
        if let Some(position) = weights.positions.get(of_class * hidden..(of_class + 1) * hidden) {
            class_token.iter_mut().zip(position).for_each(|(x, y)| *x += y);
        }
        let mut with_class = Vec::with_capacity(rows.len() + patches.shape.n_tiles * hidden);
        for tile in rows.chunks_exact(patches.shape.of_tile() * hidden) {
            let parts = match place {
                ClassToken::First => [&class_token[..], tile],
                ClassToken::Last => [tile, &class_token[..]],
            };
            parts.into_iter().for_each(|part| with_class.extend_from_slice(part));
        }
        Ok(with_class)
    }

    fn layer(
        &mut self,
        layer_idx: usize,
        weights: &LayerWeights<B>,
        attention: &mut EncoderAttention<B>,
        ws: &mut Workspace<B>,
    ) {
        let Workspace { residual, attended, qkv, scratch } = ws;
        let backend = &mut self.backend;
        let linear = &weights.query_key_value;
        let norm = weights.attention_norm.get();
        backend.norm_matmul(residual, norm, &linear.weight, linear.bias.as_ref(), scratch, qkv);
        attention.attend(backend, layer_idx, qkv, attended);
        let output = &weights.output;
        backend.matmul_add(attended, &output.weight, output.bias.as_ref(), scratch, residual);
        let norm = Some(weights.mlp_norm.get());
        match self.config.activation {
            EncoderActivation::Plain(activation) => {
                backend.gated_mlp_add(norm, &weights.mlp, activation, scratch, residual);
            }
            EncoderActivation::QuickGelu => quick_gelu_mlp(backend, weights, residual, scratch),
        }
    }

    /// The rows of patches in their order in the content, without class tokens.
    fn patch_rows(
        &mut self,
        residual: &mut B::Buffer,
        attention: &EncoderAttention<B>,
        patches: &Patches,
    ) -> Result<Rows, BackendError> {
        let width = self.config.hidden_size;
        let rows = self.backend.download(residual)?.to_vec();
        // The contents of the buffer are unspecified now.
        self.backend.write_rows(residual, &rows);
        let values = attention.restore(&rows, width);
        let Some(place) = self.config.class_token else {
            return Ok(Rows { values, width, shape: patches.shape });
        };
        let of_tile = patches.shape.of_tile() * width;
        let first = if place == ClassToken::First { width } else { 0 };
        let tiles = values.chunks_exact(of_tile + width).map(|tile| &tile[first..][..of_tile]);
        Ok(Rows { values: tiles.flatten().copied().collect(), width, shape: patches.shape })
    }

    /// The rows that a projector makes.
    fn project(
        &mut self,
        mut rows: Rows,
        steps: &[Step<B>],
        size: [usize; 2],
    ) -> Result<Vec<f32>, BackendError> {
        for step in steps {
            if let Step::Arrange(arrangement, stored) = step {
                rows = arrangement.apply(rows, stored, size);
                continue;
            }
            let n_rows = rows.values.len() / rows.width;
            let mut input = self.backend.buffer(n_rows, rows.width)?;
            self.backend.write_rows(&mut input, &rows.values);
            let width = match step {
                Step::Linear(_, width) | Step::GatedMlp(_, _, width) => *width,
                _ => rows.width,
            };
            let mut output = self.buffer(n_rows, width)?;
            match step {
                Step::Norm(norm) => self.backend.norm_rows(&input, norm.get(), &mut output),
                Step::Linear(linear, _) => {
                    self.backend.matmul(&input, &linear.weight, linear.bias.as_ref(), &mut output);
                }
                Step::Activation(activation) => self.backend.glu(&input, *activation, &mut output),
                Step::GatedMlp(mlp, activation, _) => {
                    let mut scratch = Scratch::new(&self.backend, n_rows, rows.width, [mlp.width], true)?;
                    self.backend.gated_mlp(&input, None, mlp, *activation, &mut scratch, &mut output);
                    self.backend.all_reduce(&mut output);
                }
                Step::Arrange(..) => {}
            }
            let values = self.backend.download(&mut output)?.to_vec();
            rows = Rows { values, width, ..rows };
        }
        Ok(rows.values)
    }
}

/// CLIP's feed-forward network: `x · sigmoid(a x)` is SiLU of `a x`, divided by `a`.
fn quick_gelu_mlp<B: Backend>(
    backend: &mut B,
    weights: &LayerWeights<B>,
    residual: &mut B::Buffer,
    scratch: &mut Scratch<B>,
) {
    const STEEPNESS: f32 = 1.702;
    let n_rows = backend.n_rows(residual);
    let Scratch { normed, partial, mlps } = scratch;
    let mlp = &mut mlps[0];
    for buffer in [&mut *normed, &mut *partial, &mut mlp.gate_up, &mut mlp.hidden] {
        backend.set_rows(buffer, n_rows);
    }
    backend.norm_rows(residual, weights.mlp_norm.get(), normed);
    let (up, down) = (&weights.mlp.gate_up, &weights.mlp.down);
    backend.matmul(normed, &up.weight, up.bias.as_ref(), &mut mlp.gate_up);
    backend.scale_and_cap(&mut mlp.gate_up, STEEPNESS, None);
    backend.glu(&mlp.gate_up, Activation::Silu, &mut mlp.hidden);
    backend.scale_and_cap(&mut mlp.hidden, 1.0 / STEEPNESS, None);
    backend.matmul(&mlp.hidden, &down.weight, down.bias.as_ref(), partial);
    backend.all_reduce(partial);
    backend.add(residual, partial, 1.0);
}

/// Number of rows of a tile with its class token.
pub(crate) fn rows_of_tile(config: &VisionConfig, shape: TileShape) -> usize {
    shape.of_tile() + usize::from(config.class_token.is_some())
}
