//! Operations on rows: norms, activations, rotations, sums, copies.

use std::ops::Range;

use throng_model::backend::{Columns, HeadColumns, Norm};
use throng_model::shapes::{Activation, RopeStyle};

use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::{Buffer, RopeTables};
use crate::device::Storage;
use crate::kernel::{ElementOp, Kernel};
use crate::recorder::linear_groups;

impl GpuBackend {
    pub(super) fn run_norm_rows(&mut self, x: &Buffer, norm: Norm<'_, Self>, out: &Buffer) {
        let all = Columns { first: 0, n_groups: 1, width: x.cols };
        let params = norm_params(x, all, &norm, out.cols);
        let groups = linear_groups(x.n_rows);
        let bias = norm.bias.map_or(&self.nothing, |bias| &bias.0);
        let buffers = [&x.storage, &norm.gain.0, bias, &out.storage];
        self.recorder.run(Kernel::Norm { in_place: false }, &buffers, &params, groups);
    }

    pub(super) fn run_norm_columns(&mut self, x: &Buffer, columns: Columns, norm: Norm<'_, Self>) {
        let params = norm_params(x, columns, &norm, x.cols);
        let groups = linear_groups(x.n_rows * columns.n_groups);
        let bias = norm.bias.map_or(&self.nothing, |bias| &bias.0);
        let buffers = [&x.storage, &norm.gain.0, bias];
        self.recorder.run(Kernel::Norm { in_place: true }, &buffers, &params, groups);
    }

    pub(super) fn run_glu(
        &mut self,
        gate_up: &Storage,
        out: &Storage,
        n_rows: usize,
        width: usize,
        is_gated: bool,
        activation: Activation,
    ) {
        let (number, alpha, limit) = match activation {
            Activation::Silu => (0, 0.0, 0.0),
            Activation::GeluTanh => (1, 0.0, 0.0),
            Activation::Gelu => (2, 0.0, 0.0),
            Activation::Relu => (3, 0.0, 0.0),
            Activation::ClampedSwiglu { alpha, limit } => (4, alpha, limit),
        };
        let n = n_rows * width;
        let stride = if is_gated { 2 * width } else { width };
        let params = [
            n as u32,
            width as u32,
            stride as u32,
            u32::from(is_gated),
            number,
            alpha.to_bits(),
            limit.to_bits(),
        ];
        self.recorder.run(Kernel::Glu, &[gate_up, out], &params, linear_groups(n.div_ceil(64)));
    }

    /// An operation on elements of the first rows of `x`, in place, with those of another buffer at the given
    /// stride and first column.
    pub(super) fn run_elements(
        &mut self,
        op: ElementOp,
        x: &Buffer,
        n_rows: usize,
        columns: Columns,
        y: Option<(&Storage, usize, usize)>,
        (scale, cap): (f32, f32),
    ) {
        let width = columns.n_groups * columns.width;
        let n = n_rows * width;
        let (y_stride, y_first) = y.map_or((0, 0), |(_, stride, first)| (stride, first));
        let params = [
            n as u32,
            width as u32,
            x.cols as u32,
            columns.first as u32,
            y_stride as u32,
            y_first as u32,
            scale.to_bits(),
            cap.to_bits(),
        ];
        let buffers: Vec<&Storage> =
            std::iter::once(&x.storage).chain(y.map(|(storage, ..)| storage)).collect();
        self.recorder.run(Kernel::Element(op), &buffers, &params, linear_groups(n.div_ceil(64)));
    }

    pub(super) fn run_rope(
        &mut self,
        x: &Buffer,
        batch: &Batch,
        tables: &RopeTables,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        let table = &tables.tables[table_idx];
        let angles = batch.angles(tables.id, table_idx, table);
        let n = x.n_rows * heads.n_groups * table.n_pairs();
        let is_interleaved = style == RopeStyle::Interleaved;
        let numbers = [n, table.n_pairs(), heads.n_groups, heads.width, x.cols, heads.first];
        let mut params = [0; 7];
        params[..6].copy_from_slice(&numbers.map(|number| number as u32));
        params[6] = u32::from(is_interleaved);
        let groups = linear_groups(n.div_ceil(64));
        self.recorder.run(Kernel::Rope, &[&x.storage, &angles], &params, groups);
    }

    pub(super) fn run_copy_columns(
        &mut self,
        x: &Buffer,
        from: HeadColumns,
        out: &Buffer,
        to: HeadColumns,
        n_groups: usize,
        width: usize,
    ) {
        let n = x.n_rows * n_groups * width;
        let numbers = [n, width, n_groups, x.cols, from.first, from.stride, out.cols, to.first, to.stride, 0];
        let params = numbers.map(|number| number as u32);
        let buffers = [&x.storage, &out.storage];
        self.recorder.run(Kernel::Copy { chosen: false }, &buffers, &params, linear_groups(n.div_ceil(64)));
    }

    pub(super) fn run_gather(&mut self, x: &Buffer, batch: &Batch, wanted: Range<usize>, out: &Buffer) {
        let n = wanted.len() * x.cols;
        let rows_at = batch.places.logit_tokens as usize + wanted.start;
        let numbers = [n, x.cols, 1, x.cols, 0, 0, out.cols, 0, 0, rows_at];
        let params = numbers.map(|number| number as u32);
        let buffers = [&x.storage, &out.storage, &batch.words];
        self.recorder.run(Kernel::Copy { chosen: true }, &buffers, &params, linear_groups(n.div_ceil(64)));
    }
}

fn norm_params(x: &Buffer, columns: Columns, norm: &Norm<'_, GpuBackend>, out_stride: usize) -> [u32; 9] {
    let gain_stride = if norm.bias.is_some() { columns.width } else { 0 };
    [
        columns.n_groups as u32,
        columns.first as u32,
        columns.width as u32,
        x.cols as u32,
        out_stride as u32,
        gain_stride as u32,
        u32::from(norm.bias.is_some()),
        norm.eps.to_bits(),
        (x.n_rows * columns.n_groups) as u32,
    ]
}
