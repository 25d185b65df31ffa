//! The backend of this machine's processor: packed weights, SIMD ISAs, one pool of threads. Activations are rounded
//! to signed bytes where they meet quantized weights (twice, remainder and all, for keys), and
//! nowhere else. Refuses to know architectures; the arithmetic
//! is in `throng-kernels`.

mod experts;
mod matrix;
mod projections;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use throng_core::batch::BLOCK_TOKENS;
use throng_kernels::Isa;
use throng_kernels::attention::{
    KvFormat, KvLayer, KvShape, NewKv, QueryBatch, QuerySpan, SharedPrefixGroups, attention,
};
use throng_kernels::matmul::Activations;
use throng_kernels::quant::PackedMatrix;
use throng_kernels::reference;
use throng_kernels::rows::{self, Gate, Groups};
use throng_kernels::threads::ThreadPool;

use crate::backend::{AttentionShape, Backend, BackendError, Columns, Expert, GatedUnit, Operand};
use crate::batch_input::BatchInput;
use crate::config::{Activation, RopeStyle, Routing};
use crate::host_buffer::HostBuffer;
use crate::kv_cache::{KvDtype, KvLayout};
use crate::weights::TensorView;

use experts::ExpertsScratch;
pub use matrix::CpuMatrix;

/// From so many rows on, copying them is worth all threads.
const ROWS_WORTH_SHARING: usize = 32;

/// Keys and values of so many tokens have pages from the start: clearing them costs the first prompts some percent.
const TOUCHED_TOKENS: usize = 2048;
/// The most memory that this may take.
const TOUCHED_BYTES: usize = 256 << 20;

/// This machine's processor.
#[derive(Debug)]
pub struct CpuBackend {
    pool: ThreadPool,
    activations: Activations,
    /// What a gate lets through.
    hidden: Activations,
    /// Where gate and up are one part: their product, `[rows, 2 * width]`, and the gated rows behind it.
    gates: Vec<f32>,
    experts: ExpertsScratch,
}

impl CpuBackend {
    /// On so many threads, with the best instructions the machine has.
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::best())
    }

    /// With these instructions.
    ///
    /// # Panics
    /// When the machine does not have them.
    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        let pool = ThreadPool::with_isa(n_threads, isa);
        let (activations, hidden) = (Activations::default(), Activations::default());
        Self { pool, activations, hidden, gates: Vec::new(), experts: ExpertsScratch::default() }
    }
}

/// A batch with what the kernels want to know of it in their own form.
#[derive(Debug, Default)]
pub struct CpuBatch {
    input: BatchInput,
    spans: Vec<QuerySpan>,
    shared_prefixes: SharedPrefixGroups,
    /// Where each token's keys and values go: `16 block + slot`.
    slots: Vec<usize>,
}

impl Backend for CpuBackend {
    type Buffer = HostBuffer;
    type Matrix = CpuMatrix;
    type Vector = Vec<f32>;
    type KvCache = Vec<KvLayer>;
    type Batch = CpuBatch;

    fn buffer(&self, max_rows: usize, cols: usize) -> Result<HostBuffer, BackendError> {
        HostBuffer::new(max_rows, cols)
    }

    fn matrix(&self, parts: &[TensorView<'_>]) -> Result<CpuMatrix, BackendError> {
        CpuMatrix::pack(parts, PackedMatrix::pack, &self.pool)
    }

    const KEEPS_PACKED: bool = true;

    fn packed<'m>(&self, matrix: &'m CpuMatrix) -> &'m [PackedMatrix] {
        &matrix.parts
    }

    fn matrix_of_packed(&self, parts: &[TensorView<'_>]) -> Result<CpuMatrix, BackendError> {
        CpuMatrix::pack(parts, PackedMatrix::from_packed, &self.pool)
    }

    fn refine(&self, matrix: &mut CpuMatrix, rows: Range<usize>) {
        matrix.refined = rows;
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<Vec<KvLayer>, BackendError> {
        let shape = KvShape {
            n_blocks: layout.n_blocks,
            n_kv_heads: layout.n_kv_heads,
            head_dim: layout.head_dim,
            format: match layout.dtype {
                KvDtype::F32 => KvFormat::F32,
                KvDtype::F16 => KvFormat::F16,
                KvDtype::BF16 => KvFormat::BF16,
                KvDtype::Q8_0 => KvFormat::Q8_0,
            },
        };
        let n_bytes = layout.bytes().unwrap_or(usize::MAX);
        let layer =
            || KvLayer::new(shape).ok_or(BackendError::OutOfMemory { what: "keys and values", n_bytes });
        let mut layers = (0..layout.n_layers).map(|_| layer()).collect::<Result<Vec<_>, _>>()?;
        let n_blocks = n_touched_blocks(layout);
        self.each(layers.iter_mut(), |layer| layer.touch(n_blocks));
        Ok(layers)
    }

    fn batch(&self) -> Result<CpuBatch, BackendError> {
        Ok(CpuBatch::default())
    }

    fn n_host_threads(&self) -> usize {
        self.pool.n_threads()
    }

    fn run_on_host(&self, share: &(dyn Fn(usize) + Sync)) {
        self.pool.run(share);
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut CpuBatch) {
        batch.input.copy_from(input);
        batch.spans.clear();
        batch.slots.clear();
        for row in &input.rows {
            batch.spans.push(QuerySpan {
                first_row: row.first_token,
                n_rows: row.n_tokens,
                start: row.start,
                first_block: row.first_block,
            });
            batch.slots.extend((row.start..row.start + row.n_tokens).map(|position| {
                let (block, slot) = input.slot(row, position);
                block * BLOCK_TOKENS + slot
            }));
        }
        batch.shared_prefixes.find(&batch.spans, &batch.input.blocks);
    }

    fn download<'a>(&mut self, x: &'a mut HostBuffer) -> Result<&'a mut [f32], BackendError> {
        Ok(x.as_mut_slice())
    }

    fn set_rows(&mut self, x: &mut HostBuffer, n_rows: usize) {
        x.set_rows(n_rows);
    }

    fn embed(&mut self, table: &CpuMatrix, batch: &CpuBatch, scale: f32, out: &mut HostBuffer) {
        let tokens = &batch.input.tokens;
        self.each_row(out, |row_idx, row| table.parts[0].dequantize_row(tokens[row_idx] as usize, row));
        if scale != 1.0 {
            rows::scale(out.as_mut_slice(), scale, &self.pool);
        }
    }

    fn matmul(&mut self, x: Operand<'_, Self>, w: &CpuMatrix, bias: Option<&Vec<f32>>, out: &mut HostBuffer) {
        self.project(x, w, bias, out, false);
    }

    fn matmul_add(
        &mut self,
        x: Operand<'_, Self>,
        w: &CpuMatrix,
        bias: Option<&Vec<f32>>,
        out: &mut HostBuffer,
    ) {
        self.project(x, w, bias, out, true);
    }

    fn gated_unit(
        &mut self,
        x: Operand<'_, Self>,
        unit: &GatedUnit<Self>,
        activation: Activation,
        out: &mut HostBuffer,
    ) {
        self.take_gated(x, unit, activation);
        self.multiply_hidden(&unit.down, out, false);
    }

    fn gated_unit_add(
        &mut self,
        norm: Option<(&Vec<f32>, f32)>,
        unit: &GatedUnit<Self>,
        activation: Activation,
        x: &mut HostBuffer,
    ) {
        self.take_gated(Operand { x, norm }, unit, activation);
        self.multiply_hidden(&unit.down, x, true);
    }

    fn rms_norm(&mut self, x: &HostBuffer, gain: &Vec<f32>, eps: f32, out: &mut HostBuffer) {
        rows::rms_norm(x.as_slice(), gain, eps, out.as_mut_slice(), &self.pool);
    }

    fn norm_columns(&mut self, x: &mut HostBuffer, columns: Columns, gain: &Vec<f32>, eps: f32) {
        let groups = groups(x.cols(), columns);
        rows::norm_groups(x.as_mut_slice(), groups, gain, eps, &self.pool);
    }

    fn rope(
        &mut self,
        x: &mut HostBuffer,
        batch: &CpuBatch,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        let table = &batch.input.rotations[table_idx];
        let style = match style {
            RopeStyle::HalfSplit => reference::RopeStyle::Half,
            RopeStyle::Interleaved => reference::RopeStyle::Interleaved,
        };
        let groups = groups(x.cols(), heads);
        rows::rope(x.as_mut_slice(), groups, (&table.cos, &table.sin), table.n_pairs, style, &self.pool);
    }

    fn store_kv(
        &mut self,
        cache: &mut Vec<KvLayer>,
        layer_idx: usize,
        batch: &CpuBatch,
        qkv: &HostBuffer,
        shape: &AttentionShape,
    ) {
        let new = NewKv {
            rows: qkv.as_slice(),
            stride: qkv.cols(),
            key_col: Columns::of_keys(shape).first,
            value_col: Columns::of_values(shape).first,
        };
        cache[layer_idx].store(&batch.slots, new, &self.pool);
    }

    fn attention(
        &mut self,
        cache: &Vec<KvLayer>,
        layer_idx: usize,
        batch: &CpuBatch,
        qkv: &HostBuffer,
        shape: &AttentionShape,
        out: &mut HostBuffer,
    ) {
        let queries = QueryBatch {
            rows: qkv.as_slice(),
            stride: qkv.cols(),
            spans: &batch.spans,
            blocks: &batch.input.blocks,
            shared_prefixes: &batch.shared_prefixes,
        };
        attention(shape, &cache[layer_idx], &queries, out.as_mut_slice(), &self.pool);
    }

    fn add(&mut self, x: &mut HostBuffer, y: &HostBuffer, multiplier: f32) {
        rows::add_scaled(x.as_mut_slice(), y.as_slice(), multiplier, &self.pool);
    }

    fn gate_rows(&mut self, x: &mut HostBuffer, gate: &HostBuffer) {
        for (row_idx, gate) in gate.as_slice().iter().enumerate() {
            rows::scale(x.row_mut(row_idx), 1.0 / (1.0 + (-gate).exp()), &self.pool);
        }
    }

    fn experts(
        &mut self,
        x: &HostBuffer,
        router_logits: &HostBuffer,
        experts: &[Expert<CpuMatrix>],
        routing: &Routing,
        activation: Activation,
        out: &mut HostBuffer,
    ) {
        self.experts.run(&self.pool, x, router_logits, experts, routing, gate(activation), out);
    }

    fn gather_logit_rows(
        &mut self,
        x: &HostBuffer,
        batch: &CpuBatch,
        wanted: Range<usize>,
        out: &mut HostBuffer,
    ) {
        for (i, &token_idx) in batch.input.logit_tokens[wanted].iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(token_idx as usize));
        }
    }

    fn finish_logits(&mut self, x: &mut HostBuffer, scale: f32, softcap: Option<f32>) {
        if scale != 1.0 {
            rows::scale(x.as_mut_slice(), scale, &self.pool);
        }
        if let Some(cap) = softcap {
            rows::softcap(x.as_mut_slice(), cap, &self.pool);
        }
    }
}

impl CpuBackend {
    /// Calls `fill` for every row of `out`, on all threads when there are many.
    fn each_row(&self, out: &mut HostBuffer, fill: impl Fn(usize, &mut [f32]) + Sync) {
        let (cols, n_rows) = (out.cols(), out.n_rows());
        let rows = out.as_mut_slice().chunks_exact_mut(cols).enumerate();
        if n_rows < ROWS_WORTH_SHARING {
            return rows.for_each(|(row_idx, row)| fill(row_idx, row));
        }
        self.each(rows, |(row_idx, row)| fill(row_idx, row));
    }

    /// Calls `work` for every item, on all threads.
    fn each<T: Send>(&self, items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
        let items = Mutex::new(items);
        self.pool.run(|_| {
            loop {
                let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(item) = next else { break };
                work(item);
            }
        });
    }
}

/// Blocks whose pages are cleared before the first step: those of the first tokens, which lie side by side.
fn n_touched_blocks(layout: &KvLayout) -> usize {
    let affordable = TOUCHED_BYTES / layout.bytes_per_block().unwrap_or(usize::MAX).max(1);
    affordable.min(TOUCHED_TOKENS / BLOCK_TOKENS)
}

fn groups(stride: usize, columns: Columns) -> Groups {
    Groups { stride, first: columns.first, n_groups: columns.n_groups, width: columns.width }
}

fn gate(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        Activation::GeluTanh => Gate::GeluTanh,
    }
}
