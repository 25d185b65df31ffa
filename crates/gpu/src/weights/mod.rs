//! Stored matrices in the layouts of the device. No number changes.

mod pack;

use std::sync::Arc;

use throng_checkpoint::TensorView;
use throng_model::backend::{BackendError, DeviceMemory};
use throng_model::cpu_backend::CpuBackend;

use crate::device::{Device, Storage};
use crate::kernel::WeightLayout;

use pack::{Packed, pack};

/// A matrix, `[rows, cols]`: pieces one below the other.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    /// The matrix on the processor in place of all pieces, if it is that of an expert there.
    pub(crate) host: Option<HostMatrix>,
}

/// A matrix of the processor's backend.
pub(crate) type HostMatrix = <CpuBackend as DeviceMemory>::Matrix;

/// Adjacent rows of a matrix in one layout and one buffer.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) layout: WeightLayout,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) storage: Storage,
    /// Word at which scales begin.
    pub(crate) scales_at: usize,
}

/// Columns of a row on the device: whole blocks of 32.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(32)
}

impl Matrix {
    /// Copies a stored matrix to the device.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub(crate) fn new(device: &Arc<Device>, parts: &[TensorView<'_>]) -> Result<Self, BackendError> {
        let cols = parts.first().and_then(|part| part.shape.last().copied()).unwrap_or(1);
        let mut matrix = Self { pieces: Vec::new(), n_rows: 0, cols, host: None };
        for part in joined(parts) {
            matrix.add(device, &part)?;
        }
        Ok(matrix)
    }

    /// A matrix on the processor.
    pub(crate) fn on_host(host: HostMatrix) -> Self {
        Self { pieces: Vec::new(), n_rows: 0, cols: 0, host: Some(host) }
    }

    /// Adds the rows of adjacent parts in one format, in pieces that a kernel reaches.
    fn add(&mut self, device: &Arc<Device>, part: &Part<'_>) -> Result<(), BackendError> {
        let n_rows = part.n_rows();
        let most_bytes = device.description().max_binding_bytes as usize;
        // Never more than f32 takes, and whole superblocks of scales apart.
        let row_bytes = padded(self.cols) * 4 + 16;
        let most_rows = (most_bytes / row_bytes).max(1);
        let mut first = 0;
        while first < n_rows {
            let n = most_rows.min(n_rows - first);
            let packed = pack(part, first..first + n, self.cols);
            let Packed { layout, words, scales_at } = packed;
            let storage = device.storage_of("weights", &words)?;
            // A copy of the words waits on the host until it is handed over.
            drop(words);
            device.flush_writes();
            let first_row = self.n_rows;
            self.pieces.push(Piece { layout, first_row, n_rows: n, storage, scales_at });
            self.n_rows += n;
            first += n;
        }
        Ok(())
    }
}

/// Adjacent tensors of one format.
pub(crate) struct Part<'a> {
    pub(crate) tensors: Vec<TensorView<'a>>,
    cols: usize,
}

impl Part<'_> {
    fn n_rows(&self) -> usize {
        let n: usize = self.tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        n / self.cols.max(1)
    }
}

/// Joins tensors of one format that follow each other.
fn joined<'a>(parts: &[TensorView<'a>]) -> Vec<Part<'a>> {
    let mut joined: Vec<Part<'a>> = Vec::new();
    for part in parts {
        let cols = part.shape.last().copied().unwrap_or(1);
        match joined.last_mut() {
            Some(last) if last.tensors[0].format == part.format => {
                assert_eq!(last.cols, cols, "parts of one matrix have equally long rows");
                last.tensors.push(part.clone());
            }
            _ => joined.push(Part { tensors: vec![part.clone()], cols }),
        }
    }
    joined
}
