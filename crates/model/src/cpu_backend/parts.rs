//! Operations of a backend that has a part of each layer: combines its results with those of the other ranks.
//! Does not know how ranks communicate.

use std::ops::Range;

use throng_kernels::rows;

use super::{CpuBackend, CpuBatch, CpuMatrix};
use crate::backend::SplitColumns;
use crate::backend::host_tensor::HostTensor;

impl CpuBackend {
    /// Sums over the ranks, in place.
    pub(super) fn sum(&mut self, x: &mut HostTensor) {
        if let Some(group) = &mut self.group {
            group.sum(x.as_mut_slice());
        }
    }

    /// Adds the sum over the ranks.
    pub(super) fn add_sum(&mut self, partial: &mut HostTensor, out: &mut HostTensor) {
        self.sum(partial);
        rows::add_scaled(out.as_mut_slice(), partial.as_slice(), 1.0, &self.pool);
    }

    /// Embeddings of the tokens whose rows are in this part; zeros for others.
    pub(super) fn look_up(
        &mut self,
        table: &CpuMatrix,
        batch: &CpuBatch,
        part: Range<usize>,
        scale: f32,
        out: &mut HostTensor,
    ) {
        let tokens = &batch.input.tokens;
        self.each_row(out, |row_idx, row| match tokens[row_idx] as usize {
            token if part.contains(&token) => table.parts[0].dequantize_row(token - part.start, row),
            _ => row.fill(0.0),
        });
        if scale != 1.0 {
            rows::scale(out.as_mut_slice(), scale, &self.pool);
        }
    }

    /// The columns of all ranks side by side.
    pub(super) fn gather(&mut self, part: &HostTensor, widths: &[usize], out: &mut HostTensor) {
        match &mut self.group {
            Some(group) => group.gather_columns(part.as_slice(), widths, out.as_mut_slice()),
            None => out.as_mut_slice().copy_from_slice(part.as_slice()),
        }
    }

    /// Root mean square norms of columns that other ranks have parts of. Squares are summed along a row in
    /// order.
    pub(super) fn norm_parts(&mut self, x: &mut HostTensor, parts: &[SplitColumns<'_, Self>], eps: f32) {
        let n_sums = parts.first().map_or(1, |part| part.n_sums);
        let mut sums = vec![0.0_f32; x.n_rows() * n_sums];
        for (row_idx, sums) in sums.chunks_exact_mut(n_sums).enumerate() {
            let row = x.row(row_idx);
            for part in parts.iter().filter(|part| part.is_counted) {
                let squares = row[part.columns.first..part.columns.end()].iter();
                sums[part.sum_idx] += squares.map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() as f32;
            }
        }
        if let Some(group) = &mut self.group {
            group.sum(&mut sums);
        }
        for (row_idx, sums) in sums.chunks_exact(n_sums).enumerate() {
            let row = x.row_mut(row_idx);
            for part in parts {
                let factor = 1.0 / (sums[part.sum_idx] / part.n_columns as f32 + eps).sqrt();
                let gains = &part.gain[part.first_gain..];
                let columns = &mut row[part.columns.first..part.columns.end()];
                columns.iter_mut().zip(gains).for_each(|(x, gain)| *x = *x * factor * gain);
            }
        }
    }
}
