//! Products of heads with matrices of their own, all in one parallel run. Does not know the meaning of heads.

use throng_kernels::matmul::{Activations, Product, matmul};
use throng_kernels::threads::ThreadPool;

use super::CpuMatrix;
use crate::backend::HeadColumns;
use crate::backend::host_tensor::HostTensor;

/// The heads of the rows, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct HeadsScratch {
    /// Rows of one head.
    rows: Vec<f32>,
    /// Activations of each head.
    activations: Vec<Activations>,
    /// The list of products; empty between calls.
    products: Vec<Product<'static>>,
}

impl HeadsScratch {
    pub(super) fn multiply(
        &mut self,
        x: &HostTensor,
        from: HeadColumns,
        w: &[CpuMatrix],
        out: &mut HostTensor,
        to: HeadColumns,
        pool: &ThreadPool,
    ) {
        self.activations.resize_with(self.activations.len().max(w.len()), Activations::default);
        for (head, (w, activations)) in w.iter().zip(&mut self.activations).enumerate() {
            let cols = w.cols();
            self.rows.resize(x.n_rows() * cols, 0.0);
            let first = from.first + head * from.stride;
            for (row_idx, row) in self.rows.chunks_exact_mut(cols).enumerate() {
                row.copy_from_slice(&x.row(row_idx)[first..first + cols]);
            }
            activations.set(&self.rows, cols, w.forms(), pool);
        }
        let stride = out.cols();
        let mut products = emptied(std::mem::take(&mut self.products));
        products.extend(w.iter().zip(&self.activations).enumerate().flat_map(|(head, (w, x))| {
            let first_col = to.first + head * to.stride;
            w.products(x, None, 0).map(move |product| {
                let first_col = first_col + product.first_col;
                Product { first_col, ..product }
            })
        }));
        matmul(&products, out.as_mut_slice(), stride, pool);
        self.products = emptied(products);
    }
}

/// Copies `width` columns of each of `n` heads.
pub(super) fn copy_heads(
    x: &[f32],
    from: HeadColumns,
    out: &mut [f32],
    to: HeadColumns,
    n: usize,
    width: usize,
) {
    for head in 0..n {
        let (from, to) = (from.first + head * from.stride, to.first + head * to.stride);
        out[to..to + width].copy_from_slice(&x[from..from + width]);
    }
}

/// Empties the vector and reuses its allocation for products of another lifetime.
pub(super) fn emptied<'a>(mut products: Vec<Product<'_>>) -> Vec<Product<'a>> {
    products.clear();
    products.into_iter().map_while(|_| None).collect()
}
