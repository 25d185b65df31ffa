//! Stacked matrices and their products. Does not know the use of a product.

use std::ops::Range;

use throng_kernels::matmul::{Activations, Forms, Gated, Product, matmul};
use throng_kernels::quant::{Format, PackError, PackedMatrix};
use throng_kernels::threads::ThreadPool;

use crate::backend::{BackendError, MatrixRole};
use crate::config::Activation;
use throng_checkpoint::TensorView;

/// Packs a matrix of a format, rows, columns and bytes.
pub(super) type MakePacked = fn(Format, usize, usize, &[u8], &ThreadPool) -> Result<PackedMatrix, PackError>;

/// Stacked matrices, each packed in its own format.
#[derive(Debug)]
pub struct CpuMatrix {
    pub(super) parts: Vec<PackedMatrix>,
    /// Rows that are multiplied with a second int8 term of the activations too, the error of the first.
    pub(super) refined: Range<usize>,
}

impl CpuMatrix {
    /// Packs the parts by one of the functions of [`PackedMatrix`].
    pub(super) fn pack(
        role: MatrixRole,
        parts: &[TensorView<'_>],
        make: MakePacked,
        pool: &ThreadPool,
    ) -> Result<Self, BackendError> {
        let of_part = |part: &TensorView<'_>| {
            let [rows, cols] = *part.shape else {
                return Err(BackendError::Unsupported(format!("a matrix of shape {:?}", part.shape)));
            };
            make(part.format, rows, cols, part.data, pool).map_err(|error| match error {
                PackError::OutOfMemory(n_bytes) => BackendError::OutOfMemory { what: "weights", n_bytes },
                PackError::Shape => {
                    BackendError::Unsupported(format!("{} {:?}", part.format.name(), part.shape))
                }
            })
        };
        let refined = match role {
            // Such models are trained with activations of sixteen bits, and small errors choose other experts.
            _ if parts.iter().all(|part| Forms::of(part.format).mxfp4) => {
                0..parts.iter().map(|part| part.shape[0]).sum()
            }
            // Errors in keys are magnified by the softmax over positions and read again by every later query.
            MatrixRole::QueryKeyValue { n_query_rows, n_key_rows } => n_query_rows..n_query_rows + n_key_rows,
            _ => 0..0,
        };
        Ok(Self { parts: parts.iter().map(of_part).collect::<Result<_, _>>()?, refined })
    }

    pub(super) fn cols(&self) -> usize {
        self.parts[0].cols()
    }

    pub(super) fn rows(&self) -> usize {
        self.parts.iter().map(PackedMatrix::rows).sum()
    }

    /// The forms of activations that its parts are multiplied with.
    pub(super) fn forms(&self) -> Forms {
        let of_part = |part: &PackedMatrix| Forms::of(part.format());
        let refined = Forms { residuals: !self.refined.is_empty(), ..Forms::default() };
        self.parts.iter().map(of_part).fold(refined, Forms::and)
    }

    /// The products of `x` with the parts, side by side from row `first_row` on.
    pub(super) fn products<'a>(
        &'a self,
        x: &'a Activations,
        bias: Option<&'a [f32]>,
        first_row: usize,
    ) -> impl Iterator<Item = Product<'a>> {
        self.parts.iter().scan(0, move |first_col, weights| {
            let columns = *first_col..*first_col + weights.rows();
            *first_col = columns.end;
            let bias = bias.map(|bias| &bias[columns.clone()]);
            let row_of = |row: usize| row.clamp(columns.start, columns.end) - columns.start;
            let refined = (row_of(self.refined.start), row_of(self.refined.end));
            Some(Product { bias, first_row, first_col: columns.start, refined, ..Product::new(x, weights) })
        })
    }

    /// The fused gate and up projections of `x`, if gate and up are two parts.
    pub(super) fn gated_product<'a>(
        &'a self,
        x: &'a Activations,
        bias: Option<&'a [f32]>,
        function: Activation,
    ) -> Option<Product<'a>> {
        // What is refined is not fused.
        let [gate, up] = &self.parts[..] else { return None };
        if !self.refined.is_empty() {
            return None;
        }
        let (bias, up_bias) = bias.map(|bias| bias.split_at(gate.rows())).unzip();
        let gated = Some(Gated { up, up_bias, function });
        (gate.rows() == up.rows()).then(|| Product { bias, gated, ..Product::new(x, gate) })
    }
}

/// The product with all parts of a matrix, in rows of `stride`.
pub(super) fn multiply(
    x: &Activations,
    w: &CpuMatrix,
    bias: Option<&Vec<f32>>,
    out: &mut [f32],
    stride: usize,
    adds: bool,
    pool: &ThreadPool,
) {
    let products = w.products(x, bias.map(Vec::as_slice), 0);
    let mut products = products.map(|product| Product { adds, ..product });
    let mut next = || products.next().expect("as many products as parts");
    // No list is allocated for what is stacked: queries, keys and values.
    match w.parts.len() {
        1 => matmul(&[next()], out, stride, pool),
        2 => matmul(&[next(), next()], out, stride, pool),
        3 => matmul(&[next(), next(), next()], out, stride, pool),
        _ => matmul(&products.collect::<Vec<_>>(), out, stride, pool),
    }
}
