//! The forward pass of encoders: one for all families, over any backend, in parts that may be far apart in
//! time. Does not know the source of weights and pictures.
//!
//! Rows are computed in chunks of [`CHUNK_ROWS`]; a row's bits do not depend on its chunk, so features do not
//! depend on where the work was divided.

mod attention;
mod layer;
mod projector_run;
mod sandwich;

use std::sync::Arc;

use throng_core::prompt_media::MediaContent;
use throng_core::scheduling::batch::WorkShare;
use throng_model::backend::{Backend, BackendError, Scratch};
use throng_model::media::{EncodeError, Features};
use throng_model::shapes::KvDtype;

use crate::arrange::Rows;
use crate::config::{ClassToken, VisionConfig};
use crate::patches::{Patches, TileShape, patches_of};
use crate::positions::add_positions;
use crate::weights::{EncoderLayer, EncoderWeights};
use attention::EncoderAttention;
use projector_run::ProjectorRun;

/// Largest side of a picture in pixels that tiles are put together to.
const MAX_SIDE: usize = 1 << 20;

/// Rows that are computed at a time: enough that reading the weights costs little, few enough that a step
/// with some of them is not much longer than its target.
const CHUNK_ROWS: usize = 128;

/// The work on the features of one picture, on a device.
pub struct Encoding<B: Backend> {
    backend: B,
    config: Arc<VisionConfig>,
    weights: Arc<EncoderWeights<B>>,
    patches: Patches,
    /// Height and width of the picture in pixels, if the content has it.
    size: [usize; 2],
    attention: EncoderAttention<B>,
    chunks: Vec<Chunk<B>>,
    attended: B::Buffer,
    scratch: Scratch<B>,
    stage: Stage,
    deepstack: Vec<Vec<f32>>,
    /// Multiplications so far, and in all: approximate, since they only divide the work.
    n_done: usize,
    n_total: usize,
}

/// Rows that are computed together.
struct Chunk<B: Backend> {
    n_rows: usize,
    residual: B::Buffer,
    qkv: B::Buffer,
}

/// The next computation.
enum Stage {
    /// Embeddings of patches, after the existing ones.
    Embed(Vec<f32>),
    /// Keys of a chunk in a layer.
    Keys(usize, usize),
    /// The rest of a layer for a chunk.
    Rest(usize, usize),
    /// Features after a layer, by the projector of this index.
    Deepstack(usize, usize, ProjectorRun),
    /// Features after the last layer.
    Project(ProjectorRun),
}

impl<B: Backend> Encoding<B> {
    /// Work on a content whose keys and values are held in this type.
    ///
    /// # Errors
    /// When the encoder cannot read its pixel values, or memory does not suffice.
    pub fn new(
        mut backend: B,
        config: &Arc<VisionConfig>,
        weights: Arc<EncoderWeights<B>>,
        kv_dtype: KvDtype,
        content: &MediaContent,
    ) -> Result<Self, EncodeError> {
        let patches = patches_of(config, content).map_err(EncodeError::Unreadable)?;
        let [_, height, width] = content.layout().grid.map(|side| side as usize);
        if config.puts_tiles_together() && [height, width].iter().any(|&side| side == 0 || side > MAX_SIDE) {
            return Err(EncodeError::Unreadable(format!("a picture of {width} × {height} pixels")));
        }
        let attention = EncoderAttention::new(&mut backend, config, &patches, kv_dtype)?;
        let columns = [config.n_heads, 2 * config.n_kv_heads].map(|n| n * config.head_dim);
        let chunk = |first: usize| {
            let n_rows = CHUNK_ROWS.min(attention.n_rows() - first);
            let residual = backend.buffer(n_rows, config.hidden_size)?;
            let mut qkv = backend.buffer(n_rows, columns[0] + columns[1])?;
            backend.set_rows(&mut qkv, n_rows);
            Ok(Chunk { n_rows, residual, qkv })
        };
        let chunks: Result<Vec<_>, BackendError> =
            (0..attention.n_rows()).step_by(CHUNK_ROWS).map(chunk).collect();
        let chunks = chunks?;
        let attended = backend.buffer(CHUNK_ROWS, columns[0])?;
        let mlp = [config.mlp_width];
        let scratch = Scratch::new(&backend, CHUNK_ROWS, config.hidden_size, mlp, config.is_gated)?;
        let n_features = content.layout().n_features() as usize;
        let n_total = n_multiplications(config, &weights, &attention, n_features);
        Ok(Self {
            backend,
            config: Arc::clone(config),
            weights,
            patches,
            size: [height, width],
            attention,
            chunks,
            attended,
            scratch,
            stage: Stage::Embed(Vec::new()),
            deepstack: Vec::new(),
            n_done: 0,
            n_total,
        })
    }

    /// Works until the share is done. Returns the features when all is done.
    ///
    /// # Errors
    /// When the device fails.
    pub fn advance(&mut self, share: WorkShare) -> Result<Option<Features>, EncodeError> {
        while share.is_whole() || self.n_done < share.of(self.n_total) {
            if let Some(rows) = self.compute_next()? {
                let deepstack = std::mem::take(&mut self.deepstack);
                return Ok(Some(Features { width: self.config.feature_size, rows, deepstack }));
            }
        }
        Ok(None)
    }

    /// Computes the next chunk. Returns the features after the last layer once all chunks are computed.
    fn compute_next(&mut self) -> Result<Option<Vec<f32>>, BackendError> {
        let weights = Arc::clone(&self.weights);
        let next = match std::mem::replace(&mut self.stage, Stage::Keys(0, 0)) {
            Stage::Embed(embedded) => self.embed(embedded)?,
            Stage::Keys(layer_idx, chunk) => {
                match &weights.layers[layer_idx] {
                    EncoderLayer::Plain(layer) => self.plain_keys((layer_idx, chunk), layer),
                    EncoderLayer::Sandwich(layer) => self.sandwich_keys((layer_idx, chunk), layer)?,
                }
                let [of_keys, _] = n_multiplications_of_row(&self.config, &self.attention);
                self.n_done += self.chunks[chunk].n_rows * of_keys;
                match chunk + 1 < self.chunks.len() {
                    true => Stage::Keys(layer_idx, chunk + 1),
                    false => Stage::Rest(layer_idx, 0),
                }
            }
            Stage::Rest(layer_idx, chunk) => {
                match &weights.layers[layer_idx] {
                    EncoderLayer::Plain(layer) => self.plain_rest((layer_idx, chunk), layer),
                    EncoderLayer::Sandwich(layer) => self.sandwich_rest((layer_idx, chunk), layer)?,
                }
                let [_, of_rest] = n_multiplications_of_row(&self.config, &self.attention);
                self.n_done += self.chunks[chunk].n_rows * of_rest;
                match chunk + 1 < self.chunks.len() {
                    true => Stage::Rest(layer_idx, chunk + 1),
                    false => self.behind(layer_idx, 0)?,
                }
            }
            Stage::Deepstack(layer_idx, idx, mut run) => {
                let (n, features) = run.advance(&mut self.backend, &weights.deepstack[idx].1, self.size)?;
                self.n_done += n;
                match features {
                    None => Stage::Deepstack(layer_idx, idx, run),
                    Some(rows) => {
                        self.deepstack.push(rows);
                        self.behind(layer_idx, idx + 1)?
                    }
                }
            }
            Stage::Project(mut run) => {
                let (n, features) = run.advance(&mut self.backend, &weights.projector, self.size)?;
                self.n_done += n;
                if features.is_some() {
                    return Ok(features);
                }
                Stage::Project(run)
            }
        };
        self.stage = next;
        Ok(None)
    }

    /// The stage after a layer: projectors of its output from this index on, the next layer, or the
    /// projector.
    fn behind(&mut self, layer_idx: usize, first: usize) -> Result<Stage, BackendError> {
        let weights = Arc::clone(&self.weights);
        let mut further = weights.deepstack.iter().enumerate().skip(first);
        if let Some((idx, _)) = further.find(|(_, (after, _))| *after == layer_idx) {
            return Ok(Stage::Deepstack(layer_idx, idx, ProjectorRun::new(self.patch_rows()?)));
        }
        if layer_idx + 1 < weights.layers.len() {
            return Ok(Stage::Keys(layer_idx + 1, 0));
        }
        if let Some(norm) = &weights.post_norm {
            for chunk in &mut self.chunks {
                let mut normed = buffer(&mut self.backend, chunk.n_rows, self.config.hidden_size)?;
                self.backend.norm_rows(&chunk.residual, norm.get(), &mut normed);
                chunk.residual = normed;
            }
        }
        Ok(Stage::Project(ProjectorRun::new(self.patch_rows()?)))
    }

    /// Embeds some patches after the existing ones. Once all are embedded, their positions and class tokens
    /// are added, and the rows become those of the chunks.
    fn embed(&mut self, mut embedded: Vec<f32>) -> Result<Stage, BackendError> {
        let (config, weights) = (Arc::clone(&self.config), Arc::clone(&self.weights));
        let hidden = config.hidden_size;
        let first = embedded.len() / hidden * config.patch_values;
        let end = self.patches.rows.len().min(first + CHUNK_ROWS * config.patch_values);
        let n_rows = (end - first) / config.patch_values;
        let mut input = self.backend.buffer(n_rows, config.patch_values)?;
        self.backend.write_rows(&mut input, &self.patches.rows[first..end]);
        let mut output = buffer(&mut self.backend, n_rows, hidden)?;
        self.backend.matmul(&input, &weights.patch.weight, weights.patch.bias.as_ref(), &mut output);
        if let Some(norm) = &weights.patch_norm {
            let mut normed = buffer(&mut self.backend, n_rows, hidden)?;
            self.backend.norm_rows(&output, norm.get(), &mut normed);
            output = normed;
        }
        embedded.extend_from_slice(self.backend.download(&mut output)?);
        self.n_done += n_rows * config.patch_values * hidden;
        if end < self.patches.rows.len() {
            return Ok(Stage::Embed(embedded));
        }
        // They are not read again.
        self.patches.rows = Vec::new();
        self.place(embedded)?;
        Ok(Stage::Keys(0, 0))
    }

    /// Adds positions and class tokens to the embeddings of all patches, and copies the rows to the chunks.
    fn place(&mut self, mut rows: Vec<f32>) -> Result<(), BackendError> {
        let (config, weights) = (Arc::clone(&self.config), Arc::clone(&self.weights));
        let hidden = config.hidden_size;
        let place = config.class_token;
        add_positions(config.positions, place, &weights.positions, &self.patches, &mut rows, hidden);
        if let Some(place) = place {
            rows = self.with_class_tokens(&rows, place);
        }
        let rows = self.attention.arrange(&rows, hidden);
        for (chunk, rows) in self.chunks.iter_mut().zip(rows.chunks(CHUNK_ROWS * hidden)) {
            self.backend.write_rows(&mut chunk.residual, rows);
            if let Some(norm) = &weights.pre_norm {
                let mut normed = buffer(&mut self.backend, chunk.n_rows, hidden)?;
                self.backend.norm_rows(&chunk.residual, norm.get(), &mut normed);
                chunk.residual = normed;
            }
        }
        Ok(())
    }

    /// The rows of patches with the class token of each tile.
    fn with_class_tokens(&self, rows: &[f32], place: ClassToken) -> Vec<f32> {
        let (hidden, shape) = (self.config.hidden_size, self.patches.shape);
        let mut class_token = self.weights.class_token.clone();
        let of_class = match place {
            ClassToken::First => 0,
            ClassToken::Last => shape.of_tile(),
        };
        if let Some(position) = self.weights.positions.get(of_class * hidden..(of_class + 1) * hidden) {
            class_token.iter_mut().zip(position).for_each(|(x, y)| *x += y);
        }
        let mut with_class = Vec::with_capacity(rows.len() + shape.n_tiles * hidden);
        for tile in rows.chunks_exact(shape.of_tile() * hidden) {
            let parts = match place {
                ClassToken::First => [&class_token[..], tile],
                ClassToken::Last => [tile, &class_token[..]],
            };
            parts.into_iter().for_each(|part| with_class.extend_from_slice(part));
        }
        with_class
    }

    /// The rows of patches in their order in the content, without class tokens.
    fn patch_rows(&mut self) -> Result<Rows, BackendError> {
        let (width, shape) = (self.config.hidden_size, self.patches.shape);
        let mut rows = Vec::with_capacity(self.attention.n_rows() * width);
        for Chunk { residual, .. } in &mut self.chunks {
            let first = rows.len();
            rows.extend_from_slice(self.backend.download(residual)?);
            // The contents of the buffer are unspecified now.
            self.backend.write_rows(residual, &rows[first..]);
        }
        let values = self.attention.restore(&rows, width);
        let Some(place) = self.config.class_token else { return Ok(Rows { values, width, shape }) };
        let of_tile = shape.of_tile() * width;
        let first = if place == ClassToken::First { width } else { 0 };
        let tiles = values.chunks_exact(of_tile + width).map(|tile| &tile[first..][..of_tile]);
        Ok(Rows { values: tiles.flatten().copied().collect(), width, shape })
    }
}

fn buffer<B: Backend>(backend: &mut B, n_rows: usize, width: usize) -> Result<B::Buffer, BackendError> {
    let mut buffer = backend.buffer(n_rows, width)?;
    backend.set_rows(&mut buffer, n_rows);
    Ok(buffer)
}

/// Number of rows of a tile with its class token.
pub(crate) fn rows_of_tile(config: &VisionConfig, shape: TileShape) -> usize {
    shape.of_tile() + usize::from(config.class_token.is_some())
}

/// Multiplications that a row takes in a layer: for its keys, queries and values, and for the rest.
fn n_multiplications_of_row<B: Backend>(
    config: &VisionConfig,
    attention: &EncoderAttention<B>,
) -> [usize; 2] {
    let (hidden, width) = (config.hidden_size, config.n_heads * config.head_dim);
    let of_keys = hidden * (width + 2 * config.n_kv_heads * config.head_dim);
    let of_attention = 2 * width * attention.n_seen() / attention.n_rows().max(1);
    let n_matrices = if config.is_gated { 3 } else { 2 };
    [of_keys, of_attention + width * hidden + n_matrices * hidden * config.mlp_width]
}

/// Multiplications of all stages, about.
fn n_multiplications<B: Backend>(
    config: &VisionConfig,
    weights: &EncoderWeights<B>,
    attention: &EncoderAttention<B>,
    n_features: usize,
) -> usize {
    let of_layer: usize = n_multiplications_of_row(config, attention).iter().sum();
    let of_row = config.patch_values * config.hidden_size + weights.layers.len() * of_layer;
    let of_projectors = weights.deepstack.iter().map(|(_, steps)| steps).chain([&weights.projector]);
    let of_feature = of_projectors.flatten().map(|step| step.n_weights(config.hidden_size)).sum::<usize>();
    attention.n_rows() * of_row + n_features * of_feature
}
