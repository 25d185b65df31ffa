//! Products with matrices, and rows of embeddings. Kernels for few and for many rows give the same bits.

use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::{Buffer, Vector};
use crate::device::Storage;
use crate::kernel::Kernel;
use crate::recorder::linear_groups;
use crate::weights::{Matrix, Piece, padded};

/// The columns of a product's input and output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) n: usize,
    pub(super) x_stride: usize,
    pub(super) x_first: usize,
    pub(super) out_stride: usize,
    pub(super) out_first: usize,
    /// Whether it is added to the output.
    pub(super) adds: bool,
}

/// Maximum number of rows of a product for which each thread reads its own weights.
const FEW: usize = 8;

/// Number of workgroups along the axis of output columns, and number of layers of them.
pub(super) fn column_groups(n: usize, along_y: usize) -> [u32; 3] {
    let [x, z, _] = linear_groups(n);
    [x, along_y as u32, z]
}

impl Product {
    /// A product of all columns.
    pub(super) fn of(x: &Buffer, out: &Buffer) -> Self {
        Self { n: x.n_rows, x_stride: x.cols, x_first: 0, out_stride: out.cols, out_first: 0, adds: false }
    }

    /// Whether rows can be read four elements at a time.
    pub(super) fn in_vectors(&self, cols: usize) -> bool {
        [self.x_stride, self.x_first, cols].iter().all(|n| n.is_multiple_of(4))
    }

    /// Parameters of a product with a piece of a matrix.
    pub(super) fn params(&self, piece: &Piece, cols: usize, has_bias: bool) -> [u32; 13] {
        [
            self.n,
            piece.n_rows,
            padded(cols) / 4,
            cols,
            self.x_stride,
            self.x_first,
            self.out_stride,
            self.out_first + piece.first_row,
            0,
            piece.scales_at,
            piece.first_row,
            usize::from(has_bias),
            usize::from(self.adds),
        ]
        .map(|number| number as u32)
    }
}

impl GpuBackend {
    pub(super) fn run_product(
        &mut self,
        product: &Product,
        x: &Buffer,
        w: &Matrix,
        bias: Option<&Vector>,
        out: &Buffer,
    ) {
        self.run_product_on(product, &x.storage, w, bias.map(|bias| &bias.0), &out.storage);
    }

    fn run_product_on(
        &mut self,
        product: &Product,
        x: &Storage,
        w: &Matrix,
        bias: Option<&Storage>,
        out: &Storage,
    ) {
        assert!(product.x_first + w.cols <= product.x_stride, "columns of a product's input");
        assert!(product.out_first + w.n_rows <= product.out_stride, "columns of a product's output");
        let n = product.n;
        let in_vectors = product.in_vectors(w.cols);
        for piece in &w.pieces {
            let weights = piece.layout;
            let (kernel, groups) = if n <= FEW {
                let n_tokens = n.next_power_of_two();
                let kernel = Kernel::Few { weights, n_tokens: n_tokens as u32, in_vectors };
                (kernel, column_groups(piece.n_rows.div_ceil(4), n.div_ceil(n_tokens)))
            } else {
                let n_tokens = n.div_ceil(16).next_power_of_two().min(4);
                let kernel = Kernel::Many { weights, n_tokens: n_tokens as u32, in_vectors };
                (kernel, column_groups(piece.n_rows.div_ceil(64), n.div_ceil(16 * n_tokens)))
            };
            let params = product.params(piece, w.cols, bias.is_some());
            let buffers = [x, &piece.storage, bias.unwrap_or(&self.nothing), out];
            self.recorder.run(kernel, &buffers, &params, groups);
        }
    }

    pub(super) fn run_embed(&mut self, table: &Matrix, batch: &Batch, scale: f32, out: &Buffer) {
        for piece in &table.pieces {
            let params = [
                out.n_rows as u32,
                (padded(table.cols) / 4) as u32,
                table.cols as u32,
                piece.first_row as u32,
                piece.n_rows as u32,
                out.cols as u32,
                batch.places.tokens,
                0,
                piece.scales_at as u32,
                scale.to_bits(),
            ];
            let groups = linear_groups((out.n_rows * table.cols.div_ceil(4)).div_ceil(64));
            let buffers = [&piece.storage, &batch.words, &out.storage];
            self.recorder.run(Kernel::Embed(piece.layout), &buffers, &params, groups);
        }
    }
}
