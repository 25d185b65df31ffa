//! Rows of a matrix as a file stores them. Does not know what the matrix is for.

use std::borrow::Cow;

use throng_kernels::quant::Format;

use crate::weights::TensorView;

/// Rows of a matrix in a tensor's format, copied where the file has them in another order.
pub(super) struct StoredRows<'a> {
    pub(super) name: &'a str,
    pub(super) format: Format,
    pub(super) shape: [usize; 2],
    pub(super) data: Cow<'a, [u8]>,
}

impl StoredRows<'_> {
    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView { name: self.name, shape: &self.shape, format: self.format, data: &self.data }
    }
}
