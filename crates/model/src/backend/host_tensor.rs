//! Activations in host memory, for backends that compute there. Does not know operations.

use std::ops::Range;

use super::BackendError;

/// `[rows, cols]` of f32, row-major, for a number of rows fixed at creation.
#[derive(Debug)]
pub struct HostTensor {
    /// Values of all rows that were ever in use: growing again does not write them.
    data: Vec<f32>,
    n_rows: usize,
    cols: usize,
    max_rows: usize,
}

impl HostTensor {
    /// A buffer without rows, for at most `max_rows` of `cols` elements.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new(max_rows: usize, cols: usize) -> Result<Self, BackendError> {
        let n_elements = max_rows.checked_mul(cols);
        let n_bytes = n_elements.and_then(|n| n.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
        let mut data = Vec::new();
        n_elements
            .and_then(|n| data.try_reserve_exact(n).ok())
            .ok_or(BackendError::OutOfMemory { what: "activations", n_bytes })?;
        Ok(Self { data, n_rows: 0, cols, max_rows })
    }

    /// Sets the number of rows in use.
    ///
    /// # Panics
    /// When there are more than the buffer was made for.
    pub fn set_rows(&mut self, n_rows: usize) {
        assert!(n_rows <= self.max_rows, "{n_rows} rows in a buffer of {}", self.max_rows);
        self.n_rows = n_rows;
        if self.data.len() < n_rows * self.cols {
            self.data.resize(n_rows * self.cols, 0.0);
        }
    }

    /// Number of rows in use.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of elements of one row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements of all rows in use.
    pub fn as_slice(&self) -> &[f32] {
        &self.data[..self.n_rows * self.cols]
    }

    /// Elements of all rows in use.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data[..self.n_rows * self.cols]
    }

    /// Elements of adjacent rows.
    pub fn rows(&self, rows: &Range<usize>) -> &[f32] {
        &self.as_slice()[rows.start * self.cols..rows.end * self.cols]
    }

    /// Elements of adjacent rows.
    pub fn rows_mut(&mut self, rows: &Range<usize>) -> &mut [f32] {
        let cols = self.cols;
        &mut self.as_mut_slice()[rows.start * cols..rows.end * cols]
    }

    /// The row with this index.
    pub fn row(&self, row_idx: usize) -> &[f32] {
        &self.as_slice()[row_idx * self.cols..][..self.cols]
    }

    /// The row with this index, to be changed.
    pub fn row_mut(&mut self, row_idx: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.as_mut_slice()[row_idx * cols..][..cols]
    }
}
