//! The operations of a decoder on GPUs, through Vulkan and Metal. Kernels are written in WGSL and compiled by
//! the driver at their first use; the driver is found at run time. Does not know architectures, requests and
//! files.
//!
//! Batch invariance holds by construction: each element of a result is computed by one order of operations,
//! which depends on shapes and positions only. Kernels for few and for many rows have the same order.
mod adapters;
mod batch;
mod buffers;
mod check;
mod device;
mod kernel;
mod layers;
mod limits;
mod memory;
mod model;
mod ops;
mod ready;
mod recorder;
mod template;
mod weights;

use std::fmt;
use std::sync::Arc;

use throng_kernels::threads::ThreadPool;
use throng_model::backend::host::{HostThreads, OneThread};
use throng_model::backend::{Backend, BackendError, Capability, SampledRows, SamplingRow, Ticket};

pub use adapters::{Adapter, AdapterDescription, AdapterKind, adapters};
pub use batch::Batch;
pub use buffers::{Buffer, KvCache, RopeTables, Vector};
pub use check::{compute_check, product_seconds};
pub use device::Device;
pub use layers::GpuLayers;
pub use limits::{DeviceLimits, device_limits};
pub use model::GpuModel;
pub use ops::experts::Experts;
pub use ops::low_rank::LowRank;
pub use ops::recurrent::States;
pub use weights::Matrix;

use device::Storage;
use ops::host_experts::HostExperts;
use ops::sampling::Sampling;
use recorder::Recorder;

/// A backend on a device. Operations are recorded, and submitted together when a result is needed.
pub struct GpuBackend {
    device: Arc<Device>,
    recorder: Recorder,
    /// Buffer from which the host reads results.
    staging: Option<Storage>,
    /// Buffer that is bound in place of those that an operation does not have.
    nothing: Storage,
    scratch: ops::Scratch,
    sampling: Sampling,
    /// The processor's part, if it computes experts.
    host_experts: Option<HostExperts>,
    /// Threads of the host that choose tokens and quantize weights.
    threads: Option<Arc<ThreadPool>>,
}

impl fmt::Debug for GpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBackend").field("device", &self.device).finish_non_exhaustive()
    }
}

impl GpuBackend {
    /// A backend on an open device. Backends of one device share its weights.
    ///
    /// # Errors
    /// When the device failed, or its memory does not suffice.
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Ok(Self {
            device: Arc::clone(device),
            recorder: Recorder::new(Arc::clone(device)),
            staging: None,
            nothing: device.storage("nothing", 16)?,
            scratch: ops::Scratch::default(),
            sampling: Sampling::default(),
            host_experts: None,
            threads: None,
        })
    }

    /// Sets the threads of the host that choose tokens from downloaded logits and quantize weights.
    #[must_use]
    pub fn with_threads(self, threads: Arc<ThreadPool>) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Keeps the matrices of experts on the processor, which computes them on these threads. All backends
    /// with the same weights must.
    #[must_use]
    pub fn with_host_experts(self, threads: &Arc<ThreadPool>) -> Self {
        Self { host_experts: Some(HostExperts::new(threads)), ..self }
    }

    /// The device that runs the kernels.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn check(&self) -> Result<(), BackendError> {
        self.device.check()
    }

    /// Keeps the fault of an operation until a result is requested.
    fn note(&self, result: Result<(), BackendError>) {
        if let Err(error) = result {
            self.device.note(error);
        }
    }
}

impl Backend for GpuBackend {
    fn has(&self, _: Capability) -> bool {
        true
    }

    fn samples(&self, row: &SamplingRow<'_>) -> bool {
        Self::samples_row(row)
    }

    fn sample(&mut self, logits: &mut Buffer, rows: &mut dyn Iterator<Item = SamplingRow<'_>>) {
        self.sample_rows(logits, rows);
    }

    fn collect(&mut self, _: Ticket, sampled: &mut SampledRows) -> Result<(), BackendError> {
        self.sampling.chosen.drain(..).for_each(|token| sampled.push_token(token));
        self.check()
    }

    fn host_threads(&self) -> &dyn HostThreads {
        match &self.threads {
            Some(threads) => &**threads,
            None => &OneThread,
        }
    }
}
