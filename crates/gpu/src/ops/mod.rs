//! Operations of decoders: which kernels each runs, with which parameters. Does not know in which order a
//! model needs them.

mod attention;
pub(crate) mod experts;
pub(crate) mod host_experts;
pub(crate) mod low_rank;
mod products;
pub(crate) mod recurrent;
mod relative;
mod rows;
pub(crate) mod sampling;

use std::ops::Range;
use std::sync::Arc;

use throng_model::backend::{
    AttentionQueries, AttentionShape, Columns, DeviceOps, HeadColumns, IndexQueries, Norm, RelativeScores,
    Router, RowGroups, Scratch as Between,
};
use throng_model::shapes::{Activation, RopeStyle};

use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::{Buffer, KvCache, RopeTables, Vector};
use crate::device::{Device, Storage};
use crate::kernel::ElementOp;
use crate::weights::Matrix;

use experts::Experts;
use low_rank::LowRank;
use products::Product;

/// Buffers within operations.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    experts: experts::ExpertScratch,
    row_lists: low_rank::RowLists,
    /// The buckets of distances that were used last.
    buckets: Option<(Vec<u16>, Arc<Storage>)>,
    /// Scores of the chosen positions.
    scores: Option<Storage>,
}

/// Grows a buffer to a number of f32.
fn grown<'a>(device: &Arc<Device>, buffer: &'a mut Option<Storage>, n: usize) -> &'a Storage {
    if buffer.as_ref().is_none_or(|buffer| buffer.buffer.size() < n as u64 * 4) {
        *buffer = Some(device.storage_or_empty("intermediate results", n * 4));
    }
    buffer.as_ref().expect("it was made")
}

impl DeviceOps for GpuBackend {
    fn embed(&mut self, table: &Matrix, batch: &Batch, scale: f32, out: &mut Buffer) {
        self.run_embed(table, batch, scale, out);
    }

    fn overwrite_rows(&mut self, x: &mut Buffer, first_row: usize, rows: &[f32]) {
        let n_bytes = size_of_val(rows);
        let from = self.device.storage_or_empty("features", n_bytes);
        self.device.queue.write_buffer(&from.buffer, 0, bytemuck::cast_slice(rows));
        self.recorder.copy((&from, 0), (&x.storage, first_row * x.cols * 4), n_bytes);
    }

    fn add_rows(&mut self, x: &mut Buffer, first_row: usize, rows: &[f32]) {
        let from = self.device.storage_or_empty("features", size_of_val(rows));
        self.device.queue.write_buffer(&from.buffer, 0, bytemuck::cast_slice(rows));
        let columns = Columns { first: first_row * x.cols, n_groups: 1, width: x.cols };
        let n_rows = rows.len() / x.cols;
        self.run_elements(ElementOp::Add, x, n_rows, columns, Some((&from, x.cols, 0)), (1.0, 0.0));
    }

    fn matmul(&mut self, x: &Buffer, w: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        self.run_product(&Product::of(x, out), x, w, bias, out);
    }

    fn norm_rows(&mut self, x: &Buffer, norm: Norm<'_, Self>, out: &mut Buffer) {
        self.run_norm_rows(x, norm, out);
    }

    fn norm_columns(&mut self, x: &mut Buffer, columns: Columns, norm: Norm<'_, Self>) {
        self.run_norm_columns(x, columns, norm);
    }

    fn add_low_rank<'a>(
        &mut self,
        x: &Buffer,
        groups: &'a RowGroups,
        of: &dyn Fn(usize) -> Option<&'a LowRank>,
        out: &mut Buffer,
    ) {
        self.run_low_rank(x, groups, of, out);
    }

    fn rope(
        &mut self,
        x: &mut Buffer,
        batch: &Batch,
        tables: &RopeTables,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        self.run_rope(x, batch, tables, table_idx, heads, style);
    }

    fn store_kv(
        &mut self,
        cache: &mut KvCache,
        layer_idx: usize,
        batch: &Batch,
        qkv: &Buffer,
        shape: &AttentionShape,
    ) {
        self.run_store(cache, layer_idx, batch, qkv, shape);
    }

    fn attention(
        &mut self,
        cache: &KvCache,
        layer_idx: usize,
        batch: &Batch,
        queries: AttentionQueries<'_, Self>,
        out: &mut Buffer,
    ) {
        self.run_attention(cache, layer_idx, batch, queries, None, out);
    }

    fn choose_positions(
        &mut self,
        cache: &KvCache,
        cache_idx: usize,
        batch: &Batch,
        queries: IndexQueries<'_, Self>,
        chosen: &mut Buffer,
    ) {
        self.run_choose(cache, cache_idx, batch, queries, chosen);
    }

    fn attention_at(
        &mut self,
        cache: &KvCache,
        layer_idx: usize,
        batch: &Batch,
        queries: AttentionQueries<'_, Self>,
        chosen: &Buffer,
        out: &mut Buffer,
    ) {
        self.run_attention(cache, layer_idx, batch, queries, Some(chosen), out);
    }

    fn relative_attention(
        &mut self,
        batch: &Batch,
        queries: AttentionQueries<'_, Self>,
        relative: RelativeScores<'_, Self>,
        out: &mut Buffer,
    ) {
        self.run_relative(batch, queries, relative, out);
    }

    fn glu(&mut self, gate_up: &Buffer, activation: Activation, out: &mut Buffer) {
        let is_gated = gate_up.cols != out.cols;
        self.run_glu(&gate_up.storage, &out.storage, gate_up.n_rows, out.cols, is_gated, activation);
    }

    fn add(&mut self, x: &mut Buffer, y: &Buffer, multiplier: f32) {
        assert!(x.n_rows == y.n_rows && x.cols == y.cols, "sums of equally many elements");
        let all = Columns { first: 0, n_groups: 1, width: x.cols };
        let y = Some((&y.storage, y.cols, 0));
        self.run_elements(ElementOp::Add, x, x.n_rows, all, y, (multiplier, 0.0));
    }

    fn copy_columns(
        &mut self,
        x: &Buffer,
        from: HeadColumns,
        out: &mut Buffer,
        to: HeadColumns,
        n: usize,
        width: usize,
    ) {
        self.run_copy_columns(x, from, out, to, n, width);
    }

    fn matmul_heads(
        &mut self,
        x: &Buffer,
        from: HeadColumns,
        w: &[Matrix],
        out: &mut Buffer,
        to: HeadColumns,
    ) {
        for (head, w) in w.iter().enumerate() {
            let (x_first, out_first) = (from.first + head * from.stride, to.first + head * to.stride);
            let product = Product { x_first, out_first, ..Product::of(x, out) };
            self.run_product(&product, x, w, None, out);
        }
    }

    fn gate_rows(&mut self, x: &mut Buffer, gate: &Buffer) {
        let all = Columns { first: 0, n_groups: 1, width: x.cols };
        let gate = Some((&gate.storage, 1, 0));
        self.run_elements(ElementOp::GateRows, x, x.n_rows, all, gate, (1.0, 0.0));
    }

    fn gate_columns(&mut self, x: &mut Buffer, gates: &Buffer, first_col: usize) {
        let all = Columns { first: 0, n_groups: 1, width: x.cols };
        let gates = Some((&gates.storage, gates.cols, first_col));
        self.run_elements(ElementOp::GateColumns, x, x.n_rows, all, gates, (1.0, 0.0));
    }

    fn mixture_of_experts(
        &mut self,
        x: &Buffer,
        router: Router<'_, Self>,
        experts: &Experts,
        activation: Activation,
        out: &mut Buffer,
    ) {
        match experts {
            Experts::Device(experts) => self.run_experts(x, router, experts, activation, out),
            Experts::Host(experts) => self.run_host_experts(x, router, experts, activation, out),
        }
    }

    fn gather_logit_rows(&mut self, x: &Buffer, batch: &Batch, wanted: Range<usize>, out: &mut Buffer) {
        self.run_gather(x, batch, wanted, out);
    }

    fn scale_and_cap(&mut self, x: &mut Buffer, scale: f32, softcap: Option<f32>) {
        let all = Columns { first: 0, n_groups: 1, width: x.cols };
        self.run_elements(ElementOp::Scale, x, x.n_rows, all, None, (scale, softcap.unwrap_or(0.0)));
    }

    fn scale_columns(&mut self, x: &mut Buffer, columns: Columns, scale: f32) {
        self.run_elements(ElementOp::Scale, x, x.n_rows, columns, None, (scale, 0.0));
    }

    fn matmul_add(
        &mut self,
        x: &Buffer,
        w: &Matrix,
        bias: Option<&Vector>,
        _: &mut Between<Self>,
        out: &mut Buffer,
    ) {
        let product = Product { adds: true, ..Product::of(x, out) };
        self.run_product(&product, x, w, bias, out);
    }
}
