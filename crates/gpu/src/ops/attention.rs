//! Keys and values of new tokens, and attention over those of a sequence.

use throng_kernels::attention::ALL_POSITIONS;
use throng_model::backend::{AttentionQueries, AttentionShape, Columns, IndexQueries};

use super::grown;
use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::{Buffer, KvCache, KvLayer};
use crate::kernel::Kernel;
use crate::recorder::linear_groups;

/// Maximum number of queries of a workgroup.
const MOST_QUERIES: usize = 8;

/// Division of queries into workgroups.
pub(super) struct Tiling {
    /// Number of queries of a workgroup.
    pub(super) n_queries: usize,
    /// Number of heads of a KV head in a tile.
    pub(super) tile_heads: usize,
    /// Number of tiles of heads of a KV head.
    pub(super) n_head_tiles: usize,
    /// Number of tokens of a tile.
    pub(super) tile_rows: usize,
}

impl Tiling {
    /// Tiles of queries in groups of this number of heads, as large as fit in shared memory.
    pub(super) fn new(group: usize, most_rows: usize, query_bytes: usize, shared_bytes: usize) -> Self {
        let wanted = (group * most_rows).next_power_of_two().min(MOST_QUERIES);
        let mut n_queries = wanted;
        while n_queries > 1 && n_queries * query_bytes > shared_bytes {
            n_queries /= 2;
        }
        let tile_heads = group.min(n_queries);
        let tile_rows = (n_queries / tile_heads).max(1);
        Self { n_queries, tile_heads, n_head_tiles: group.div_ceil(tile_heads), tile_rows }
    }
}

/// Positions of a split.
const SPLIT: usize = 128;
/// Workgroups from which on each has all splits of its queries: they keep a device busy.
const MANY_GROUPS: usize = 64;

/// Number of splits that workgroups of their own process; 1: each workgroup processes all splits of its
/// queries. Both give the same bits.
fn n_splits(batch: &Batch, n_groups: usize) -> usize {
    let longest = batch.input.spans.iter().map(|span| span.start + span.n_rows).max().unwrap_or(1);
    if n_groups >= MANY_GROUPS { 1 } else { longest.div_ceil(SPLIT).min(65535) }
}

/// Maximum number of new tokens of a sequence.
pub(super) fn most_rows(batch: &Batch) -> usize {
    batch.input.spans.iter().map(|span| span.n_rows).max().unwrap_or(1)
}

impl GpuBackend {
    pub(super) fn run_store(
        &mut self,
        cache: &KvCache,
        layer_idx: usize,
        batch: &Batch,
        qkv: &Buffer,
        shape: &AttentionShape,
    ) {
        let layer = layer_of(cache, layer_idx);
        let parts = [
            (Some(&layer.keys), Columns::of_keys(shape).first, true),
            (layer.values.as_ref(), Columns::of_values(shape).first, false),
        ];
        let n = batch.input.n_tokens() * shape.n_kv_heads * shape.head_dim.div_ceil(32);
        for (part, first, is_key) in parts {
            let Some(part) = part else { continue };
            let places = &batch.places;
            let numbers = [n, shape.n_kv_heads, shape.head_dim, qkv.cols, first].map(|n| n as u32);
            let mut params = [0; 8];
            params[..5].copy_from_slice(&numbers);
            params[5..].copy_from_slice(&[places.row_spans, places.spans, places.blocks]);
            let kernel = Kernel::Store { layout: layer.layout, is_key };
            let buffers = [&qkv.storage, &batch.words, part];
            self.recorder.run(kernel, &buffers, &params, linear_groups(n.div_ceil(64)));
        }
    }

    pub(super) fn run_attention(
        &mut self,
        cache: &KvCache,
        layer_idx: usize,
        batch: &Batch,
        queries: AttentionQueries<'_, Self>,
        chosen: Option<&Buffer>,
        out: &Buffer,
    ) {
        let AttentionQueries { qkv, shape, sinks } = queries;
        let layer = layer_of(cache, layer_idx);
        let group = shape.n_heads / shape.n_kv_heads;
        let (dim4, value4) = (shape.head_dim.div_ceil(4), shape.value_dim().div_ceil(4));
        let query_bytes = 16 * (dim4 + value4) + 4 * 128 + 128;
        let shared_bytes = self.device.description().max_shared_bytes as usize;
        // Tokens with positions of their own share no keys.
        let most_rows = if chosen.is_some() { 1 } else { most_rows(batch) };
        let tiling = Tiling::new(group, most_rows, query_bytes, shared_bytes);
        let (tiles, n_tiles) = batch.tiles(if chosen.is_some() { 1 } else { tiling.tile_rows });
        let mut params = attend_params(shape, &tiling, qkv, out);
        params[15..21].copy_from_slice(&[
            u32::from(sinks.is_some()),
            u32::from(!batch.input.ends.is_empty()),
            batch.places.ends,
            batch.places.spans,
            batch.places.blocks,
            layer.layout.panel_words() as u32,
        ]);
        params[28] = chosen.map_or(0, |chosen| chosen.cols as u32);
        params[29] = ALL_POSITIONS.to_bits();
        let n_groups = shape.n_kv_heads * tiling.n_head_tiles * n_tiles;
        let n_splits = if chosen.is_some() { 1 } else { n_splits(batch, n_groups) };
        params[30] = n_splits as u32;
        let (layout, n_queries, value4) = (layer.layout, tiling.n_queries as u32, value4 as u32);
        let kernel = match chosen {
            Some(_) => Kernel::AttendChosen { layout, n_queries, value4 },
            None => {
                let values_in_keys = layer.values.is_none();
                Kernel::Attend { layout, n_queries, value4, values_in_keys, in_parts: n_splits > 1 }
            }
        };
        let has_sinks = sinks.is_some();
        let sinks = sinks.map_or(&self.nothing, |sinks| &sinks.0);
        let n_queries = batch.input.n_tokens() * shape.n_heads;
        let part = value4 as usize * 4 + 2;
        let parts = if n_splits > 1 { n_queries * n_splits * part } else { 0 };
        let parts = (parts > 0).then(|| grown(&self.device, &mut self.scratch.scores, parts));
        let written = parts.unwrap_or(&out.storage);
        let values = layer.values.as_ref().unwrap_or(&layer.keys);
        let mut buffers = vec![&qkv.storage, &layer.keys, values, &batch.words, &*tiles, sinks, written];
        buffers.extend(chosen.map(|chosen| &chosen.storage));
        let groups = [shape.n_kv_heads * tiling.n_head_tiles, n_tiles, n_splits].map(|number| number as u32);
        self.recorder.run(kernel, &buffers, &params, groups);
        if let Some(parts) = parts {
            let numbers =
                [shape.n_heads, n_splits, shape.value_dim(), out.cols, usize::from(has_sinks), n_queries];
            let params = numbers.map(|number| number as u32);
            let buffers = [parts, sinks, &out.storage];
            self.recorder.run(Kernel::Join { value4 }, &buffers, &params, linear_groups(n_queries));
        }
    }

    pub(super) fn run_choose(
        &mut self,
        cache: &KvCache,
        cache_idx: usize,
        batch: &Batch,
        IndexQueries { qkv, weights, shape }: IndexQueries<'_, Self>,
        chosen: &Buffer,
    ) {
        let layer = layer_of(cache, cache_idx);
        let longest = batch.input.spans.iter().map(|span| span.start + span.n_rows).max().unwrap_or(1);
        let most_rows = (SCORE_BYTES / (longest * 4)).max(1);
        for first_row in (0..qkv.n_rows).step_by(most_rows) {
            let n = most_rows.min(qkv.n_rows - first_row);
            let scores = grown(&self.device, &mut self.scratch.scores, n * longest);
            let places = &batch.places;
            let params = [
                n as u32,
                shape.n_heads as u32,
                shape.head_dim as u32,
                qkv.cols as u32,
                layer.layout.panel_words() as u32,
                places.row_spans,
                places.spans,
                places.blocks,
                chosen.cols as u32,
                first_row as u32,
                longest as u32,
                ALL_POSITIONS.to_bits(),
            ];
            let kernel = Kernel::Choose { layout: layer.layout };
            let buffers =
                [&qkv.storage, &layer.keys, &weights.storage, &batch.words, scores, &chosen.storage];
            self.recorder.run(kernel, &buffers, &params, linear_groups(n));
        }
    }
}

/// Bytes of scores of an indexer, beyond which rows are processed in parts.
const SCORE_BYTES: usize = 64 << 20;

fn layer_of(cache: &KvCache, layer_idx: usize) -> &KvLayer {
    cache.layers[layer_idx].as_ref().expect("a layer with keys and values")
}

/// Parameters of attention that depend on the shape.
pub(super) fn attend_params(
    shape: &AttentionShape,
    tiling: &Tiling,
    qkv: &Buffer,
    out: &Buffer,
) -> [u32; 31] {
    let number = |n: Option<usize>| n.unwrap_or(0) as u32;
    let mut params = [0; 31];
    params[..15].copy_from_slice(&[
        shape.n_kv_heads as u32,
        (shape.n_heads / shape.n_kv_heads) as u32,
        tiling.tile_heads as u32,
        tiling.n_head_tiles as u32,
        shape.head_dim as u32,
        shape.value_dim() as u32,
        number(shape.values_in_keys) / 4,
        qkv.cols as u32,
        out.cols as u32,
        shape.scale.to_bits(),
        shape.softcap.unwrap_or(0.0).to_bits(),
        number(shape.window),
        number(shape.chunk),
        shape.first_position as u32,
        u32::from(shape.is_bidirectional),
    ]);
    params
}
