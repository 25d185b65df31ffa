//! The backend of this machine's processor: packed weights, SIMD instruction sets, one pool of threads.
//! Activations are rounded to int8 where they are multiplied with quantized weights (with a second int8 term
//! for the rounding error where keys are computed), and nowhere else. Does not know architectures; the
//! arithmetic is in `throng-kernels`.

mod experts;
mod heads;
mod matrix;
mod memory;
mod ops;
mod parts;
mod projections;
mod recurrent;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_kernels::Isa;
use throng_kernels::matmul::Activations;
use throng_kernels::quant::{PACKING_VERSION, PackedMatrix};
use throng_kernels::recurrent::GateScratch;
use throng_kernels::threads::ThreadPool;

use crate::backend::host::{HostThreads, PackedWeights};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{Backend, BackendError, Capability, MatrixRole};
use crate::parallel::group::RankGroup;
use throng_checkpoint::TensorView;

use experts::ExpertsScratch;
use heads::HeadsScratch;
pub use matrix::CpuMatrix;
pub use memory::CpuBatch;

/// Number of rows from which on copying them is worth all threads.
const ROWS_WORTH_SHARING: usize = 32;

/// This machine's processor.
#[derive(Debug)]
pub struct CpuBackend {
    pool: Arc<ThreadPool>,
    activations: Activations,
    /// Rows after a layer norm.
    normed: Vec<f32>,
    /// Hidden activations of a feed-forward network.
    hidden: Activations,
    /// Product of gate and up where they are not two parts, `[rows, 2 * width]`, and the hidden activations
    /// after it.
    gates: Vec<f32>,
    experts: ExpertsScratch,
    /// Gates of the heads of recurrent layers.
    gates_of_heads: GateScratch,
    heads: HeadsScratch,
    /// Group of the ranks that have parts of the same layers.
    group: Option<RankGroup>,
}

impl CpuBackend {
    /// Creates a backend on `n_threads` threads, with the best instruction set of the machine.
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::best())
    }

    /// Creates a backend with this instruction set.
    ///
    /// # Panics
    /// When the machine does not have it.
    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        Self::on(Arc::new(ThreadPool::with_isa(n_threads, isa)))
    }

    /// Creates a backend on threads that other backends may use too, one at a time.
    pub fn on(pool: Arc<ThreadPool>) -> Self {
        let (activations, hidden) = (Activations::default(), Activations::default());
        Self {
            pool,
            activations,
            normed: Vec::new(),
            hidden,
            gates: Vec::new(),
            experts: ExpertsScratch::default(),
            gates_of_heads: GateScratch::default(),
            heads: HeadsScratch::default(),
            group: None,
        }
    }

    /// Makes the backend one of several that have parts of the same layers.
    #[must_use]
    pub fn with_group(self, group: RankGroup) -> Self {
        Self { group: Some(group), ..self }
    }
}

impl Backend for CpuBackend {
    fn has(&self, _capability: Capability) -> bool {
        true
    }

    fn exchanging(&self) -> Duration {
        self.group.as_ref().map_or(Duration::ZERO, |group| group.usage().took)
    }

    fn has_failed(&self) -> bool {
        self.group.as_ref().is_some_and(RankGroup::is_lost)
    }

    fn host_threads(&self) -> &dyn HostThreads {
        &*self.pool
    }

    fn packed_weights(&self) -> Option<&dyn PackedWeights<CpuMatrix>> {
        Some(self)
    }
}

impl HostThreads for ThreadPool {
    fn n_threads(&self) -> usize {
        self.n_threads()
    }

    fn run(&self, share: &(dyn Fn(usize) + Sync)) {
        self.run(share);
    }
}

impl PackedWeights<CpuMatrix> for CpuBackend {
    fn layout_id(&self) -> String {
        format!("panels of 16 rows, version {PACKING_VERSION}")
    }

    fn bytes<'m>(&self, matrix: &'m CpuMatrix) -> Vec<&'m [u8]> {
        matrix.parts.iter().map(PackedMatrix::as_bytes).collect()
    }

    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<CpuMatrix, BackendError> {
        CpuMatrix::pack(role, parts, PackedMatrix::from_packed, &self.pool)
    }
}

impl CpuBackend {
    /// Calls `fill` for every row of `out`, on all threads when there are many.
    fn each_row(&self, out: &mut HostTensor, fill: impl Fn(usize, &mut [f32]) + Sync) {
        let (cols, n_rows) = (out.cols(), out.n_rows());
        let rows = out.as_mut_slice().chunks_exact_mut(cols).enumerate();
        if n_rows < ROWS_WORTH_SHARING {
            return rows.for_each(|(row_idx, row)| fill(row_idx, row));
        }
        self.each(rows, |(row_idx, row)| fill(row_idx, row));
    }

    /// Calls `work` for every item, on all threads.
    fn each<T: Send>(&self, items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
        let items = Mutex::new(items);
        self.pool.run(|_| {
            loop {
                let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(item) = next else { break };
                work(item);
            }
        });
    }
}
