//! The reference backend for tests: every operation in plain f32 loops over dequantized weights, with keys
//! and values always in f32. Activations are never rounded, so its results differ from exact arithmetic by
//! float rounding only. It has no fusions and is not meant to be fast.

mod chosen;
mod experts;
mod recurrent;
mod relative;
mod routing;

use std::ops::Range;

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::quant::{Format, dequantize_row};
use throng_kernels::reference;

use crate::backend::host_tensor::HostTensor;
use crate::backend::rotations::Rotations;
use crate::backend::{
    AttentionQueries, AttentionShape, Backend, BackendError, BlockCopy, Capability, Columns, DeviceMemory,
    DeviceOps, Expert, HeadColumns, IndexQueries, LowRankPart, MatrixRole, Norm, RelativeScores, Router,
    RowGroups,
};
use crate::batch_input::BatchInput;
use crate::config::{Activation, RopeStyle, RopeTable};
use crate::kv_cache::KvLayout;
use throng_checkpoint::TensorView;

use experts::glu_row;

/// Plain loops on one thread.
#[derive(Debug, Default)]
pub struct ReferenceBackend;

/// A dequantized matrix, `[rows, cols]`.
#[derive(Debug)]
pub struct ReferenceMatrix {
    data: Vec<f32>,
    cols: usize,
}

impl ReferenceMatrix {
    fn n_rows(&self) -> usize {
        self.data.len() / self.cols
    }
}

/// A pair of low-rank matrices.
#[derive(Debug)]
pub struct ReferenceLowRank {
    first_col: usize,
    /// `[rank, cols]`.
    a: Vec<f32>,
    /// `[n, rank]`.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

/// Keys and values of every layer, `[n_blocks, 16, n_kv_heads, head_dim]` each.
#[derive(Debug)]
pub struct ReferenceKvCache {
    n_blocks: usize,
    layers: Vec<KvLayer>,
}

#[derive(Debug)]
struct KvLayer {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Backend for ReferenceBackend {
    fn has(&self, _capability: Capability) -> bool {
        true
    }
}

impl DeviceMemory for ReferenceBackend {
    type Buffer = HostTensor;
    type Matrix = ReferenceMatrix;
    type Experts = Vec<Expert<Self>>;
    type Vector = Vec<f32>;
    type LowRank = Vec<ReferenceLowRank>;
    type RopeTables = Vec<Rotations>;
    type KvCache = ReferenceKvCache;
    type Batch = BatchInput;

    fn buffer(&self, max_rows: usize, cols: usize) -> Result<HostTensor, BackendError> {
        HostTensor::new(max_rows, cols)
    }

    fn n_rows(&self, x: &HostTensor) -> usize {
        x.n_rows()
    }

    fn set_rows(&mut self, x: &mut HostTensor, n_rows: usize) {
        x.set_rows(n_rows);
    }

    fn matrix(&self, _: MatrixRole, parts: &[TensorView<'_>]) -> Result<ReferenceMatrix, BackendError> {
        let cols = parts.first().and_then(|part| part.shape.last().copied()).unwrap_or(1);
        let mut data = Vec::new();
        for part in parts {
            assert_eq!(part.shape.last(), Some(&cols), "parts of one matrix have equally long rows");
            let n: usize = part.shape.iter().product();
            let start = data.len();
            allocate(&mut data, "weights", start + n)?;
            dequantize_row(part.format, part.data, &mut data[start..]);
        }
        Ok(ReferenceMatrix { data, cols })
    }

    fn experts(&self, experts: Vec<Expert<Self>>) -> Result<Vec<Expert<Self>>, BackendError> {
        Ok(experts)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    /// The numbers stay f32 in any format.
    fn low_rank(
        &self,
        _: usize,
        parts: &[LowRankPart<'_>],
        _: Format,
    ) -> Result<Vec<ReferenceLowRank>, BackendError> {
        let held = |&LowRankPart { first_col, a, b, rank, scale }: &LowRankPart<'_>| ReferenceLowRank {
            first_col,
            a: a.to_vec(),
            b: b.to_vec(),
            rank,
            scale,
        };
        Ok(parts.iter().map(held).collect())
    }

    fn rope_tables(&self, ropes: &[RopeTable], n_positions: usize) -> Result<Vec<Rotations>, BackendError> {
        ropes.iter().map(|rope| Rotations::new(rope, n_positions)).collect()
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<ReferenceKvCache, BackendError> {
        let mut layers = Vec::new();
        for shape in &layout.layers {
            let n = shape.map_or(0, |s| s.n_blocks * BLOCK_TOKENS * s.n_kv_heads * s.head_dim);
            let has_values = shape.is_none_or(|shape| shape.values_in_keys.is_none());
            let mut layer = KvLayer { keys: Vec::new(), values: Vec::new() };
            allocate(&mut layer.keys, "keys", n)?;
            allocate(&mut layer.values, "values", if has_values { n } else { 0 })?;
            layers.push(layer);
        }
        Ok(ReferenceKvCache { n_blocks: layout.n_blocks, layers })
    }

    fn copy_blocks(&mut self, cache: &mut ReferenceKvCache, copies: &[BlockCopy]) {
        for layer in &mut cache.layers {
            let n = layer.keys.len() / cache.n_blocks;
            for &BlockCopy { from, to } in copies {
                let (from, to) = (from as usize * n..(from as usize + 1) * n, to as usize * n);
                layer.keys.copy_within(from.clone(), to);
                if !layer.values.is_empty() {
                    layer.values.copy_within(from, to);
                }
            }
        }
    }

    fn batch(&self) -> Result<BatchInput, BackendError> {
        Ok(BatchInput::default())
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut BatchInput) {
        assert!(input.carried.is_empty(), "tokens are chosen on the host");
        batch.copy_from(input);
    }

    fn write_rows(&mut self, x: &mut HostTensor, rows: &[f32]) {
        x.set_rows(rows.len() / x.cols());
        x.as_mut_slice().copy_from_slice(rows);
    }

    fn download<'a>(&mut self, x: &'a mut HostTensor) -> Result<&'a mut [f32], BackendError> {
        Ok(x.as_mut_slice())
    }
}

impl DeviceOps for ReferenceBackend {
    fn embed(&mut self, table: &ReferenceMatrix, batch: &BatchInput, scale: f32, out: &mut HostTensor) {
        for (i, &token) in batch.tokens.iter().enumerate() {
            let row = &table.data[token as usize * table.cols..][..table.cols];
            out.row_mut(i).copy_from_slice(row);
        }
        reference::scale(out.as_mut_slice(), scale);
    }

    fn overwrite_rows(&mut self, x: &mut HostTensor, first_row: usize, rows: &[f32]) {
        let first = first_row * x.cols();
        x.as_mut_slice()[first..][..rows.len()].copy_from_slice(rows);
    }

    fn add_rows(&mut self, x: &mut HostTensor, first_row: usize, rows: &[f32]) {
        let first = first_row * x.cols();
        x.as_mut_slice()[first..].iter_mut().zip(rows).for_each(|(x, y)| *x += y);
    }

    fn matmul(&mut self, x: &HostTensor, w: &ReferenceMatrix, bias: Option<&Vec<f32>>, out: &mut HostTensor) {
        multiply(x.as_slice(), w, out.as_mut_slice());
        if let Some(bias) = bias {
            reference::add_bias(out.as_mut_slice(), bias);
        }
    }

    fn norm_rows(&mut self, x: &HostTensor, norm: Norm<'_, Self>, out: &mut HostTensor) {
        match norm.bias {
            None => reference::rms_norm(x.as_slice(), norm.gain, norm.eps, out.as_mut_slice()),
            Some(bias) => reference::layer_norm(x.as_slice(), norm.gain, bias, norm.eps, out.as_mut_slice()),
        }
    }

    fn norm_columns(&mut self, x: &mut HostTensor, columns: Columns, norm: Norm<'_, Self>) {
        let mut normed = vec![0.0; columns.width];
        if let Some(bias) = norm.bias {
            let mut groups = (0..columns.n_groups).cycle();
            return for_each_group(x, columns, |_, group| {
                let at = groups.next().expect("a cycle") * columns.width;
                let (gain, bias) = (&norm.gain[at..][..columns.width], &bias[at..][..columns.width]);
                reference::layer_norm(group, gain, bias, norm.eps, &mut normed);
                group.copy_from_slice(&normed);
            });
        }
        for_each_group(x, columns, |_, group| {
            reference::rms_norm(group, norm.gain, norm.eps, &mut normed);
            group.copy_from_slice(&normed);
        });
    }

    fn add_low_rank<'a>(
        &mut self,
        x: &HostTensor,
        groups: &'a RowGroups,
        of: &dyn Fn(usize) -> Option<&'a Vec<ReferenceLowRank>>,
        out: &mut HostTensor,
    ) {
        for group in 0..groups.len() {
            for part in of(group).into_iter().flatten() {
                for &row in groups.rows(group) {
                    let out = &mut out.row_mut(row)[part.first_col..][..part.b.len() / part.rank];
                    reference::add_low_rank(x.row(row), &part.a, &part.b, part.scale, out);
                }
            }
        }
    }

    fn rope(
        &mut self,
        x: &mut HostTensor,
        batch: &BatchInput,
        tables: &Vec<Rotations>,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        let table = &tables[table_idx];
        let mut angles = Vec::new();
        for_each_group(x, heads, |row_idx, head| match batch.rotary.get(row_idx) {
            Some(&position) if table.has_sections() => {
                angles.clear();
                table.gather(position, &mut angles);
                let (cos, sin) = angles.split_at(table.n_pairs());
                reference::rope(head, cos, sin, style);
            }
            _ => {
                let (cos, sin) = table.at(batch.positions[row_idx] as usize);
                reference::rope(head, cos, sin, style);
            }
        });
    }

    fn store_kv(
        &mut self,
        cache: &mut ReferenceKvCache,
        layer_idx: usize,
        batch: &BatchInput,
        qkv: &HostTensor,
        shape: &AttentionShape,
    ) {
        let layer = &mut cache.layers[layer_idx];
        let width = shape.n_kv_heads * shape.head_dim;
        for span in &batch.spans {
            for i in 0..span.n_rows {
                let (block, slot) = batch.slot(span, span.start + i);
                let to = (block * BLOCK_TOKENS + slot) * width;
                let from = qkv.row(span.first_row + i);
                layer.keys[to..to + width].copy_from_slice(&from[Columns::of_keys(shape).first..][..width]);
                if shape.values_in_keys.is_none() {
                    let values = &from[Columns::of_values(shape).first..][..width];
                    layer.values[to..to + width].copy_from_slice(values);
                }
            }
        }
    }

    fn attention(
        &mut self,
        cache: &ReferenceKvCache,
        layer_idx: usize,
        batch: &BatchInput,
        AttentionQueries { qkv, shape, sinks }: AttentionQueries<'_, Self>,
        out: &mut HostTensor,
    ) {
        let layer = &cache.layers[layer_idx];
        for span in &batch.spans {
            let mut kv = reference::PagedKv {
                keys: &layer.keys,
                values: &layer.values,
                block_table: &batch.blocks[span.first_block..],
                block_tokens: BLOCK_TOKENS,
                n_tokens: span.start + span.n_rows,
            };
            for i in 0..span.n_rows {
                let q = &qkv.row(span.first_row + i)[..shape.n_heads * shape.head_dim];
                let sinks = sinks.map(Vec::as_slice);
                let row_idx = span.first_row + i;
                let shape = match batch.ends.get(row_idx) {
                    // Within the window a picture's tokens see those after them, too.
                    Some(&end) if end as usize > span.start + i + 1 => {
                        kv.n_tokens = end as usize;
                        &AttentionShape { is_bidirectional: true, ..*shape }
                    }
                    _ => shape,
                };
                reference::attention(shape, q, sinks, &kv, span.start + i, out.row_mut(row_idx));
            }
        }
    }

    fn choose_positions(
        &mut self,
        cache: &ReferenceKvCache,
        cache_idx: usize,
        batch: &BatchInput,
        queries: IndexQueries<'_, Self>,
        chosen: &mut HostTensor,
    ) {
        chosen::choose(&cache.layers[cache_idx], batch, queries, chosen);
    }

    fn attention_at(
        &mut self,
        cache: &ReferenceKvCache,
        layer_idx: usize,
        batch: &BatchInput,
        queries: AttentionQueries<'_, Self>,
        chosen: &HostTensor,
        out: &mut HostTensor,
    ) {
        chosen::attend(&cache.layers[layer_idx], batch, queries, chosen, out);
    }

    fn relative_attention(
        &mut self,
        batch: &BatchInput,
        queries: AttentionQueries<'_, Self>,
        relative: RelativeScores<'_, Self>,
        out: &mut HostTensor,
    ) {
        relative::attend(batch, queries, relative, out);
    }

    fn glu(&mut self, gate_up: &HostTensor, activation: Activation, out: &mut HostTensor) {
        for row_idx in 0..gate_up.n_rows() {
            glu_row(gate_up.row(row_idx), activation, out.row_mut(row_idx));
        }
    }

    fn add(&mut self, x: &mut HostTensor, y: &HostTensor, multiplier: f32) {
        assert_eq!(x.as_slice().len(), y.as_slice().len());
        for (x, y) in x.as_mut_slice().iter_mut().zip(y.as_slice()) {
            *x += y * multiplier;
        }
    }

    fn copy_columns(
        &mut self,
        x: &HostTensor,
        from: HeadColumns,
        out: &mut HostTensor,
        to: HeadColumns,
        n: usize,
        width: usize,
    ) {
        for row_idx in 0..x.n_rows() {
            for head in 0..n {
                let (from, to) = (from.first + head * from.stride, to.first + head * to.stride);
                out.row_mut(row_idx)[to..to + width].copy_from_slice(&x.row(row_idx)[from..from + width]);
            }
        }
    }

    fn matmul_heads(
        &mut self,
        x: &HostTensor,
        from: HeadColumns,
        w: &[ReferenceMatrix],
        out: &mut HostTensor,
        to: HeadColumns,
    ) {
        for row_idx in 0..x.n_rows() {
            for (head, w) in w.iter().enumerate() {
                let (from, to) = (from.first + head * from.stride, to.first + head * to.stride);
                let out = &mut out.row_mut(row_idx)[to..to + w.n_rows()];
                multiply(&x.row(row_idx)[from..from + w.cols], w, out);
            }
        }
    }

    fn gate_rows(&mut self, x: &mut HostTensor, gate: &HostTensor) {
        for (row_idx, gate) in gate.as_slice().iter().enumerate() {
            reference::scale(x.row_mut(row_idx), 1.0 / (1.0 + (-gate).exp()));
        }
    }

    fn gate_columns(&mut self, x: &mut HostTensor, gates: &HostTensor, first_col: usize) {
        for row_idx in 0..x.n_rows() {
            let gates = &gates.row(row_idx)[first_col..];
            x.row_mut(row_idx).iter_mut().zip(gates).for_each(|(x, gate)| *x *= reference::sigmoid(*gate));
        }
    }

    fn mixture_of_experts(
        &mut self,
        x: &HostTensor,
        router: Router<'_, Self>,
        experts: &Vec<Expert<Self>>,
        activation: Activation,
        out: &mut HostTensor,
    ) {
        experts::mix(x, router, experts, activation, out);
    }

    fn gather_logit_rows(
        &mut self,
        x: &HostTensor,
        batch: &BatchInput,
        wanted: Range<usize>,
        out: &mut HostTensor,
    ) {
        for (i, &token_idx) in batch.logit_tokens[wanted].iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(token_idx as usize));
        }
    }

    fn scale_columns(&mut self, x: &mut HostTensor, columns: Columns, scale: f32) {
        for_each_group(x, columns, |_, group| reference::scale(group, scale));
    }

    fn scale_and_cap(&mut self, x: &mut HostTensor, scale: f32, softcap: Option<f32>) {
        reference::scale(x.as_mut_slice(), scale);
        if let Some(cap) = softcap {
            reference::softcap(x.as_mut_slice(), cap);
        }
    }
}

fn multiply(x: &[f32], w: &ReferenceMatrix, out: &mut [f32]) {
    reference::matmul(x, &w.data, out, x.len() / w.cols, w.cols, w.n_rows());
}

fn for_each_group(x: &mut HostTensor, columns: Columns, mut f: impl FnMut(usize, &mut [f32])) {
    for row_idx in 0..x.n_rows() {
        let row = &mut x.row_mut(row_idx)[columns.first..][..columns.n_groups * columns.width];
        row.chunks_exact_mut(columns.width).for_each(|group| f(row_idx, group));
    }
}

/// Grows `data` to `n` zeros and more, with an error instead of aborting.
fn allocate(data: &mut Vec<f32>, what: &'static str, n: usize) -> Result<(), BackendError> {
    let error = |_| BackendError::OutOfMemory { what, n_bytes: n.saturating_mul(size_of::<f32>()) };
    data.try_reserve_exact(n - data.len()).map_err(error)?;
    data.resize(n, 0.0);
    Ok(())
}
