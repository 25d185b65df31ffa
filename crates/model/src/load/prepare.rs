//! Weights in the layout of a backend, made once and shared by all runners. Refuses to know files.

use std::sync::{Arc, Mutex, PoisonError};

use throng_core::executor::Executor;
use throng_kernels::Isa;

use super::{BackendKind, LoadError, RunnerOptions};
use crate::arch::Architecture;
use crate::backend::Backend;
use crate::config::DecoderConfig;
use crate::cpu_backend::CpuBackend;
use crate::decoder_weights::{DecoderWeights, LoadProgress};
use crate::reference_backend::ReferenceBackend;
use crate::runner::ModelRunner;
use crate::weights::TensorSource;

/// The weights of each backend that has asked for them.
#[derive(Default)]
pub(super) struct PreparedWeights {
    cpu: Prepared<CpuBackend>,
    reference: Prepared<ReferenceBackend>,
}

/// One backend's weights, once made.
struct Prepared<B: Backend>(Mutex<Option<Arc<DecoderWeights<B>>>>);

impl<B: Backend> Default for Prepared<B> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<B: Backend> Prepared<B> {
    fn get(
        &self,
        backend: &B,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<B>>, LoadError> {
        // A panic while loading leaves `None` behind, which is as good as before.
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = &*slot {
            return Ok(Arc::clone(weights));
        }
        let weights = Arc::new(DecoderWeights::load(backend, architecture, tensors, progress)?);
        *slot = Some(Arc::clone(&weights));
        Ok(weights)
    }

    fn runner(
        &self,
        backend: B,
        options: &RunnerOptions,
        config: &Arc<DecoderConfig>,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
    ) -> Result<Box<dyn Executor>, LoadError> {
        let weights = self.get(&backend, architecture, tensors, &mut |_| {})?;
        let runner = ModelRunner::new(backend, Arc::clone(config), weights, &options.limits)?;
        Ok(Box::new(runner))
    }
}

impl PreparedWeights {
    pub(super) fn prepare(
        &self,
        backend: BackendKind,
        n_threads: usize,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), LoadError> {
        match cpu_lane(backend) {
            Some(isa) => {
                let backend = CpuBackend::with_isa(n_threads, isa);
                self.cpu.get(&backend, architecture, tensors, progress).map(drop)
            }
            None => self.reference.get(&ReferenceBackend, architecture, tensors, progress).map(drop),
        }
    }

    pub(super) fn runner(
        &self,
        options: &RunnerOptions,
        config: &Arc<DecoderConfig>,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
    ) -> Result<Box<dyn Executor>, LoadError> {
        match cpu_lane(options.backend) {
            Some(isa) => {
                let backend = CpuBackend::with_isa(options.n_threads, isa);
                self.cpu.runner(backend, options, config, architecture, tensors)
            }
            None => self.reference.runner(ReferenceBackend, options, config, architecture, tensors),
        }
    }
}

/// The processor's instructions that this backend uses, if it uses kernels at all.
fn cpu_lane(backend: BackendKind) -> Option<Isa> {
    match backend {
        BackendKind::Cpu => Some(Isa::best()),
        BackendKind::CpuLane(isa) => Some(isa),
        BackendKind::Reference => None,
    }
}
