//! The operations on the processor. Does not know the order in which a model needs them.

use std::ops::Range;

use throng_kernels::attention::{
    IndexBatch, KvLayer, NewKv, QueryBatch, attention, attention_at, choose_positions,
};
use throng_kernels::low_rank::{LowRank, add_low_rank};
use throng_kernels::relative::{RelativeBatch, relative_attention};
use throng_kernels::rows;

use super::heads::copy_heads;
use super::{CpuBackend, CpuBatch, CpuMatrix};
use crate::backend::host_tensor::HostTensor;
use crate::backend::rotations::Rotations;
use crate::backend::{
    AttentionQueries, AttentionShape, Columns, DeviceOps, Expert, GatedMlp, HeadColumns, IndexQueries, Norm,
    RelativeScores, Router, RowGroups, Scratch, SplitColumns,
};
use crate::config::{Activation, RopeStyle};

impl DeviceOps for CpuBackend {
    fn embed(&mut self, table: &CpuMatrix, batch: &CpuBatch, scale: f32, out: &mut HostTensor) {
        let tokens = &batch.input.tokens;
        self.each_row(out, |row_idx, row| table.parts[0].dequantize_row(tokens[row_idx] as usize, row));
        if scale != 1.0 {
            rows::scale(out.as_mut_slice(), scale, &self.pool);
        }
    }

    fn overwrite_rows(&mut self, x: &mut HostTensor, first_row: usize, rows: &[f32]) {
        let first = first_row * x.cols();
        x.as_mut_slice()[first..][..rows.len()].copy_from_slice(rows);
    }

    fn add_rows(&mut self, x: &mut HostTensor, first_row: usize, rows: &[f32]) {
        let first = first_row * x.cols();
        x.as_mut_slice()[first..].iter_mut().zip(rows).for_each(|(x, y)| *x += y);
    }

    fn matmul(&mut self, x: &HostTensor, w: &CpuMatrix, bias: Option<&Vec<f32>>, out: &mut HostTensor) {
        self.project((x, None), w, bias, out, false);
    }

    fn norm_rows(&mut self, x: &HostTensor, norm: Norm<'_, Self>, out: &mut HostTensor) {
        let Norm { gain, bias, eps } = norm;
        match bias {
            None => rows::rms_norm(x.as_slice(), gain, eps, out.as_mut_slice(), &self.pool),
            Some(bias) => rows::layer_norm(x.as_slice(), gain, bias, eps, out.as_mut_slice(), &self.pool),
        }
    }

    fn norm_columns(&mut self, x: &mut HostTensor, columns: Columns, norm: Norm<'_, Self>) {
        let stride = x.cols();
        if let Some(bias) = norm.bias {
            let gains = (norm.gain.as_slice(), bias.as_slice());
            return rows::layer_norm_groups(x.as_mut_slice(), stride, columns, gains, norm.eps, &self.pool);
        }
        rows::norm_groups(x.as_mut_slice(), stride, columns, norm.gain, norm.eps, &self.pool);
    }

    fn add_low_rank<'a>(
        &mut self,
        x: &HostTensor,
        groups: &'a RowGroups,
        of: &dyn Fn(usize) -> Option<&'a LowRank>,
        out: &mut HostTensor,
    ) {
        let stride = out.cols();
        add_low_rank(x.as_slice(), x.cols(), groups, of, out.as_mut_slice(), stride, &self.pool);
    }

    fn rope(
        &mut self,
        x: &mut HostTensor,
        batch: &CpuBatch,
        tables: &Vec<Rotations>,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        let (table, positions, stride) = (&tables[table_idx], &batch.input.positions, x.cols());
        if let Some(of_sections) = batch.angles_of_sections(tables, table_idx) {
            let n_pairs = table.n_pairs();
            let angles =
                |row_idx: usize| of_sections[2 * n_pairs * row_idx..][..2 * n_pairs].split_at(n_pairs);
            return rows::rope(x.as_mut_slice(), stride, heads, angles, style, &self.pool);
        }
        let angles = |row_idx: usize| table.at(positions[row_idx] as usize);
        rows::rope(x.as_mut_slice(), stride, heads, angles, style, &self.pool);
    }

    fn norm_matmul(
        &mut self,
        x: &HostTensor,
        norm: Norm<'_, Self>,
        w: &CpuMatrix,
        bias: Option<&Vec<f32>>,
        _scratch: &mut Scratch<Self>,
        out: &mut HostTensor,
    ) {
        self.project((x, Some(norm)), w, bias, out, false);
    }

    fn matmul_add(
        &mut self,
        x: &HostTensor,
        w: &CpuMatrix,
        bias: Option<&Vec<f32>>,
        scratch: &mut Scratch<Self>,
        out: &mut HostTensor,
    ) {
        if self.group.is_none() {
            return self.project((x, None), w, bias, out, true);
        }
        scratch.partial.set_rows(x.n_rows());
        self.project((x, None), w, bias, &mut scratch.partial, false);
        self.add_sum(&mut scratch.partial, out);
    }

    fn gated_mlp(
        &mut self,
        x: &HostTensor,
        norm: Option<Norm<'_, Self>>,
        mlp: &GatedMlp<Self>,
        activation: Activation,
        _scratch: &mut Scratch<Self>,
        out: &mut HostTensor,
    ) {
        self.set_hidden((x, norm), mlp, activation);
        self.multiply_hidden(&mlp.down, out, false);
    }

    fn gated_mlp_add(
        &mut self,
        norm: Option<Norm<'_, Self>>,
        mlp: &GatedMlp<Self>,
        activation: Activation,
        scratch: &mut Scratch<Self>,
        x: &mut HostTensor,
    ) {
        self.set_hidden((x, norm), mlp, activation);
        if self.group.is_none() {
            return self.multiply_hidden(&mlp.down, x, true);
        }
        scratch.partial.set_rows(x.n_rows());
        self.multiply_hidden(&mlp.down, &mut scratch.partial, false);
        self.add_sum(&mut scratch.partial, x);
    }

    fn all_reduce(&mut self, partial: &mut HostTensor) {
        self.sum(partial);
    }

    fn embed_part(
        &mut self,
        table: &CpuMatrix,
        batch: &CpuBatch,
        part: Range<usize>,
        scale: f32,
        out: &mut HostTensor,
    ) {
        self.look_up(table, batch, part, scale, out);
    }

    fn gather_columns(&mut self, part: &HostTensor, widths: &[usize], out: &mut HostTensor) {
        self.gather(part, widths, out);
    }

    fn norm_split_columns(&mut self, x: &mut HostTensor, parts: &[SplitColumns<'_, Self>], eps: f32) {
        self.norm_parts(x, parts, eps);
    }

    fn glu(&mut self, gate_up: &HostTensor, activation: Activation, out: &mut HostTensor) {
        let width = out.cols();
        rows::glu(gate_up.as_slice(), width, activation, out.as_mut_slice(), &self.pool);
    }

    fn store_kv(
        &mut self,
        cache: &mut Vec<Option<KvLayer>>,
        layer_idx: usize,
        batch: &CpuBatch,
        qkv: &HostTensor,
        shape: &AttentionShape,
    ) {
        let new = NewKv {
            rows: qkv.as_slice(),
            stride: qkv.cols(),
            key_col: Columns::of_keys(shape).first,
            value_col: Columns::of_values(shape).first,
        };
        let layer = cache[layer_idx].as_mut().expect("the layer has keys and values of its own");
        layer.store(&batch.slots, new, &self.pool);
    }

    fn attention(
        &mut self,
        cache: &Vec<Option<KvLayer>>,
        layer_idx: usize,
        batch: &CpuBatch,
        AttentionQueries { qkv, shape, sinks }: AttentionQueries<'_, Self>,
        out: &mut HostTensor,
    ) {
        let queries = query_batch(batch, qkv, sinks);
        let layer = cache[layer_idx].as_ref().expect("the layer has keys and values of its own");
        attention(shape, layer, &queries, out.as_mut_slice(), &self.pool);
    }

    fn choose_positions(
        &mut self,
        cache: &Vec<Option<KvLayer>>,
        cache_idx: usize,
        batch: &CpuBatch,
        IndexQueries { qkv, weights, shape }: IndexQueries<'_, Self>,
        chosen: &mut HostTensor,
    ) {
        let queries = IndexBatch {
            rows: qkv.as_slice(),
            stride: qkv.cols(),
            weights: weights.as_slice(),
            n_heads: shape.n_heads,
            spans: &batch.input.spans,
            blocks: &batch.input.blocks,
            n_chosen: chosen.cols(),
        };
        let layer = cache[cache_idx].as_ref().expect("the indexer has keys of its own");
        choose_positions(&queries, layer, chosen.as_mut_slice(), &self.pool);
    }

    fn attention_at(
        &mut self,
        cache: &Vec<Option<KvLayer>>,
        layer_idx: usize,
        batch: &CpuBatch,
        AttentionQueries { qkv, shape, sinks }: AttentionQueries<'_, Self>,
        chosen: &HostTensor,
        out: &mut HostTensor,
    ) {
        let queries = query_batch(batch, qkv, sinks);
        let layer = cache[layer_idx].as_ref().expect("the layer has keys and values of its own");
        let chosen = (chosen.as_slice(), chosen.cols());
        attention_at(shape, layer, &queries, chosen, out.as_mut_slice(), &self.pool);
    }

    fn relative_attention(
        &mut self,
        batch: &CpuBatch,
        AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, Self>,
        relative: RelativeScores<'_, Self>,
        out: &mut HostTensor,
    ) {
        let batch = RelativeBatch {
            rows: qkv.as_slice(),
            stride: qkv.cols(),
            spans: &batch.input.spans,
            n_heads: shape.n_heads,
            head_dim: shape.head_dim,
            scale: shape.scale,
            buckets: &relative.positions.buckets,
            n_buckets: relative.positions.n_buckets,
            bias: relative.bias.map(Vec::as_slice),
            of_queries: relative.of_queries.map(HostTensor::as_slice),
            of_keys: relative.of_keys.map(HostTensor::as_slice),
        };
        relative_attention(&batch, out.as_mut_slice(), &self.pool);
    }

    fn add(&mut self, x: &mut HostTensor, y: &HostTensor, multiplier: f32) {
        rows::add_scaled(x.as_mut_slice(), y.as_slice(), multiplier, &self.pool);
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
        self.each_row(out, |row_idx, row| copy_heads(x.row(row_idx), from, row, to, n, width));
    }

    fn matmul_heads(
        &mut self,
        x: &HostTensor,
        from: HeadColumns,
        w: &[CpuMatrix],
        out: &mut HostTensor,
        to: HeadColumns,
    ) {
        self.heads.multiply(x, from, w, out, to, &self.pool);
    }

    fn gate_rows(&mut self, x: &mut HostTensor, gate: &HostTensor) {
        for (row_idx, gate) in gate.as_slice().iter().enumerate() {
            rows::scale(x.row_mut(row_idx), 1.0 / (1.0 + (-gate).exp()), &self.pool);
        }
    }

    fn gate_columns(&mut self, x: &mut HostTensor, gates: &HostTensor, first_col: usize) {
        let cols = x.cols();
        rows::gate_columns(x.as_mut_slice(), cols, gates.as_slice(), gates.cols(), first_col, &self.pool);
    }

    fn mixture_of_experts(
        &mut self,
        x: &HostTensor,
        router: Router<'_, Self>,
        experts: &Vec<Expert<Self>>,
        activation: Activation,
        out: &mut HostTensor,
    ) {
        self.experts.run(&self.pool, x, router, experts, activation, out);
    }

    fn gather_logit_rows(
        &mut self,
        x: &HostTensor,
        batch: &CpuBatch,
        wanted: Range<usize>,
        out: &mut HostTensor,
    ) {
        for (i, &token_idx) in batch.input.logit_tokens[wanted].iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(token_idx as usize));
        }
    }

    fn scale_columns(&mut self, x: &mut HostTensor, columns: Columns, scale: f32) {
        self.each_row(x, |_, row| row[columns.first..columns.end()].iter_mut().for_each(|x| *x *= scale));
    }

    fn scale_and_cap(&mut self, x: &mut HostTensor, scale: f32, softcap: Option<f32>) {
        if scale != 1.0 {
            rows::scale(x.as_mut_slice(), scale, &self.pool);
        }
        if let Some(cap) = softcap {
            rows::softcap(x.as_mut_slice(), cap, &self.pool);
        }
    }
}

fn query_batch<'a>(batch: &'a CpuBatch, qkv: &'a HostTensor, sinks: Option<&'a Vec<f32>>) -> QueryBatch<'a> {
    QueryBatch {
        rows: qkv.as_slice(),
        stride: qkv.cols(),
        spans: &batch.input.spans,
        blocks: &batch.input.blocks,
        ends: &batch.input.ends,
        sinks: sinks.map(Vec::as_slice),
        shared_prefixes: &batch.shared_prefixes,
    }
}
