//! Optional parts of a backend whose memory is the host's: threads for other work, and weights in a layout
//! that a file can keep. Does not know operations.

use super::{BackendError, MatrixRole};
use throng_checkpoint::TensorView;

/// Threads of the host.
pub trait HostThreads: Sync {
    /// Number of threads.
    fn n_threads(&self) -> usize;

    /// Calls `share` once on each thread, with its index, and waits for all.
    fn run(&self, share: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
#[derive(Debug)]
pub struct OneThread;

impl HostThreads for OneThread {
    fn n_threads(&self) -> usize {
        1
    }

    fn run(&self, share: &(dyn Fn(usize) + Sync)) {
        share(0);
    }
}

/// Weights as bytes in a layout that the backend names. Files are compatible if these names are equal.
pub trait PackedWeights<M> {
    /// The name of the layout and its version; [`Self::matrix`] gets only bytes of this name.
    fn layout_id(&self) -> String;

    /// The bytes of each part of a matrix.
    fn bytes<'m>(&self, matrix: &'m M) -> Vec<&'m [u8]>;

    /// A matrix of parts whose data are bytes that [`Self::bytes`] returned. They are copied.
    ///
    /// # Errors
    /// When memory does not suffice, or the bytes do not fit the shape.
    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<M, BackendError>;
}
