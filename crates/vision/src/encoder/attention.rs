//! Attention in both directions among the patches of a tile, of the whole picture or of windows of it. Does
//! not know weights.

use throng_model::backend::{AttentionQueries, Backend, BackendError};
use throng_model::batch_input::{BatchInput, QuerySpan};
use throng_model::config::{RopeStyle, RopeTable};
use throng_model::kv_cache::{KvDtype, KvLayout, KvShape};
use throng_model::shapes::{AttentionShape, Columns};

use super::{CHUNK_ROWS, rows_of_tile};
use crate::config::{ClassToken, VisionConfig};
use crate::patches::Patches;
use throng_core::scheduling::batch::BLOCK_TOKENS;

/// Attention among the rows of one picture, whose rows are computed in chunks: the keys and values of all
/// rows of a layer are stored before the first query of the layer reads them.
pub struct EncoderAttention<B: Backend> {
    shape: AttentionShape,
    cache: B::KvCache,
    /// Chunks of the rows that attend to each other on layers with global attention.
    whole: Vec<ChunkBatches<B>>,
    /// Chunks of the rows that attend to each other on the other layers.
    windows: Option<Vec<ChunkBatches<B>>>,
    full_layers: Vec<usize>,
    ropes: Option<(B::RopeTables, RopeStyle)>,
    /// Index of each row among the patches of the content; empty if rows are in that order.
    order: Vec<usize>,
    n_rows: usize,
    /// Number of pairs of rows that attend to each other on a layer with global attention.
    n_seen: usize,
}

/// The rows of a chunk, for the two passes over them.
struct ChunkBatches<B: Backend> {
    /// Batch with the rows' own places, for rotation and for storing.
    storing: B::Batch,
    /// Batch with the same rows at the last positions, so that they attend to all: in both directions, a
    /// query's result does not depend on its own position.
    looking: B::Batch,
}

impl<B: Backend> EncoderAttention<B> {
    pub(super) fn new(
        backend: &mut B,
        config: &VisionConfig,
        patches: &Patches,
        kv_dtype: KvDtype,
    ) -> Result<Self, BackendError> {
        let per_tile = rows_of_tile(config, patches.shape);
        let n_rows = per_tile * patches.shape.n_tiles;
        let mut order = Vec::new();
        let mut of_windows = None;
        if let Some(windows) = &config.windows {
            let (in_windows, lengths) = window_order(patches, config.merge(), windows.side);
            order = in_windows;
            of_windows = Some(lengths);
        }
        let rotary = rotary(config, patches, &order);
        let whole = chunk_batches(backend, &vec![per_tile; patches.shape.n_tiles], &rotary)?;
        let windows = of_windows.as_ref().map(|lengths| chunk_batches(backend, lengths, &rotary));
        let blocks_of = |lengths: &[usize]| lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS)).sum::<usize>();
        let n_blocks = patches.shape.n_tiles * per_tile.div_ceil(BLOCK_TOKENS);
        let n_blocks = n_blocks.max(of_windows.as_deref().map_or(0, blocks_of));
        let scale = match config.sandwich {
            None => (1.0 / (config.head_dim as f64).sqrt()) as f32,
            Some(_) => 1.0,
        };
        let shape = AttentionShape {
            is_bidirectional: true,
            ..AttentionShape::new(config.n_heads, config.n_kv_heads, config.head_dim, scale)
        };
        let layer = KvShape::of(&shape, n_blocks, kv_dtype);
        let cache = backend.kv_cache(&KvLayout { n_blocks, layers: vec![Some(layer)] })?;
        let rope = |rotation: &crate::config::Rotation| {
            let table = RopeTable {
                frequencies: rotation.frequencies.clone(),
                amplitude: 1.0,
                growth: None,
                sections: rotation.sections.clone(),
                short: None,
            };
            let n_positions = patches.shape.n_rows.max(patches.shape.n_cols) + rotation.first as usize + 1;
            let style = if rotation.is_interleaved { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
            Ok::<_, BackendError>((backend.rope_tables(&[table], n_positions)?, style))
        };
        let ropes = config.rotation.as_ref().map(rope).transpose()?;
        let full_layers =
            config.windows.as_ref().map(|windows| windows.full_layers.clone()).unwrap_or_default();
        let (windows, n_seen) = (windows.transpose()?, per_tile * n_rows);
        Ok(Self { shape, cache, whole, windows, full_layers, ropes, order, n_rows, n_seen })
    }

    /// Heads and the positions that they attend to.
    pub(super) fn shape(&self) -> &AttentionShape {
        &self.shape
    }

    /// Number of rows with class tokens.
    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Rows in the order in which they are computed.
    pub(super) fn arrange(&self, rows: &[f32], width: usize) -> Vec<f32> {
        if self.order.is_empty() {
            return rows.to_vec();
        }
        self.order.iter().flat_map(|idx| &rows[idx * width..][..width]).copied().collect()
    }

    /// Rows in the order of the content.
    pub(super) fn restore(&self, rows: &[f32], width: usize) -> Vec<f32> {
        if self.order.is_empty() {
            return rows.to_vec();
        }
        let mut restored = vec![0.0; rows.len()];
        for (row, idx) in rows.chunks_exact(width).zip(&self.order) {
            restored[idx * width..][..width].copy_from_slice(row);
        }
        restored
    }

    /// Number of pairs of rows of which one attends to the other, on a layer with global attention.
    pub(super) fn n_seen(&self) -> usize {
        self.n_seen
    }

    /// Rotates queries and keys of a chunk in a layer, and stores its keys and values.
    pub(super) fn store(&mut self, backend: &mut B, (layer_idx, chunk): (usize, usize), qkv: &mut B::Buffer) {
        let Self { shape, cache, whole, windows, full_layers, ropes, .. } = self;
        let batch = &batches_of(whole, windows, full_layers, layer_idx)[chunk].storing;
        if let Some((tables, style)) = ropes {
            let heads = Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..Columns::of_queries(shape) };
            backend.rope(qkv, batch, tables, 0, heads, *style);
        }
        backend.store_kv(cache, 0, batch, qkv, shape);
    }

    /// Attention of a chunk's queries in a layer, once all chunks of the layer were stored.
    pub(super) fn attend(
        &mut self,
        backend: &mut B,
        (layer_idx, chunk): (usize, usize),
        qkv: &B::Buffer,
        attended: &mut B::Buffer,
    ) {
        let Self { shape, cache, whole, windows, full_layers, .. } = self;
        let batch = &batches_of(whole, windows, full_layers, layer_idx)[chunk].looking;
        backend.attention(cache, 0, batch, AttentionQueries { qkv, shape, sinks: None }, attended);
    }
}

/// The batches of the chunks of a layer.
fn batches_of<'a, B: Backend>(
    whole: &'a [ChunkBatches<B>],
    windows: &'a Option<Vec<ChunkBatches<B>>>,
    full_layers: &[usize],
    layer_idx: usize,
) -> &'a [ChunkBatches<B>] {
    match windows {
        Some(windows) if !full_layers.contains(&layer_idx) => windows,
        _ => whole,
    }
}

/// Batches of the chunks of rows in groups of these lengths, within which they attend to each other.
fn chunk_batches<B: Backend>(
    backend: &mut B,
    lengths: &[usize],
    rotary: &[[u32; 3]],
) -> Result<Vec<ChunkBatches<B>>, BackendError> {
    let mut batch = |input: &BatchInput| {
        let mut batch = backend.batch()?;
        backend.upload(input, &mut batch);
        Ok(batch)
    };
    let inputs = inputs_of(lengths, rotary);
    let batches = inputs
        .iter()
        .map(|[storing, looking]| Ok(ChunkBatches { storing: batch(storing)?, looking: batch(looking)? }));
    batches.collect()
}

/// The inputs of [`ChunkBatches`]. The blocks of all groups follow each other.
fn inputs_of(lengths: &[usize], rotary: &[[u32; 3]]) -> Vec<[BatchInput; 2]> {
    let n_rows: usize = lengths.iter().sum();
    let n_blocks: usize = lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS)).sum();
    let chunk = |first: usize| {
        let rows = first..n_rows.min(first + CHUNK_ROWS);
        let mut input = BatchInput {
            tokens: vec![0; rows.len()],
            blocks: (0..n_blocks as u32).collect(),
            ..BatchInput::default()
        };
        input.rotary = rotary.get(rows.clone()).unwrap_or_default().to_vec();
        let mut looking = input.clone();
        let (mut group_start, mut first_block) = (0, 0);
        for &n in lengths {
            let own = rows.start.max(group_start)..rows.end.min(group_start + n);
            if !own.is_empty() {
                let span = QuerySpan {
                    first_row: own.start - first,
                    n_rows: own.len(),
                    start: own.start - group_start,
                    first_block,
                };
                for (input, start) in [(&mut input, span.start), (&mut looking, n - own.len())] {
                    input.spans.push(QuerySpan { start, ..span });
                    input.positions.extend((start as u32..).take(own.len()));
                }
            }
            group_start += n;
            first_block += n.div_ceil(BLOCK_TOKENS);
        }
        [input, looking]
    };
    (0..n_rows).step_by(CHUNK_ROWS).map(chunk).collect()
}

/// Row and column of each row, class tokens at 0; empty for rows without rotary embeddings.
fn rotary(config: &VisionConfig, patches: &Patches, order: &[usize]) -> Vec<[u32; 3]> {
    let Some(rotation) = &config.rotation else { return Vec::new() };
    let place = |[row, col]: [u32; 2]| [0, row + rotation.first, col + rotation.first];
    if !order.is_empty() {
        return order.iter().map(|&idx| place(patches.places[idx])).collect();
    }
    let mut rows = Vec::new();
    for tile in patches.places.chunks_exact(patches.shape.of_tile()) {
        let of_class = config.class_token.map(|_| [0; 3]);
        let patches = tile.iter().map(|&at| place(at));
        match config.class_token {
            Some(ClassToken::First) => rows.extend(of_class.into_iter().chain(patches)),
            _ => rows.extend(patches.chain(of_class)),
        }
    }
    rows
}

/// The patches in windows of `side × side` blocks from the top left, ragged at the right and below, and the
/// number of patches of each window.
fn window_order(patches: &Patches, merge: usize, side: usize) -> (Vec<usize>, Vec<usize>) {
    let per_block = merge * merge;
    let blocks_per_row = patches.shape.n_cols / merge;
    let n_blocks = patches.places.len() / per_block;
    let window_of = |block: usize| (block / blocks_per_row / side, block % blocks_per_row / side);
    let mut blocks: Vec<usize> = (0..n_blocks).collect();
    blocks.sort_by_key(|&block| (window_of(block), block));
    let lengths =
        blocks.chunk_by(|&a, &b| window_of(a) == window_of(b)).map(|blocks| blocks.len() * per_block);
    let lengths = lengths.collect();
    let order = blocks.into_iter().flat_map(|block| block * per_block..(block + 1) * per_block).collect();
    (order, lengths)
}
