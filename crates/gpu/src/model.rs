//! A model on a device: its weights, which executors share, and another device after a failure. Does not know
//! requests.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::scheduling::executor::Executor;
use throng_kernels::threads::ThreadPool;
use throng_model::LoadedModel;
use throng_model::adapter::{AdapterError, AdapterLimits, AdapterStore, LoadedAdapter, RandomAdapter};
use throng_model::backend::BackendError;
use throng_model::decoder::weights::{DecoderWeights, LoadProgress};
use throng_model::kv_cache::KvDtype;
use throng_model::load::LoadError;
use throng_model::runner::RunnerLimits;

use crate::GpuBackend;
use crate::adapters::{Adapter, AdapterDescription};
use crate::buffers::layer_block_bytes;
use crate::device::Device;

/// A model on a device.
#[derive(Debug)]
pub struct GpuModel {
    number: usize,
    validates: bool,
    threads: Arc<ThreadPool>,
    state: Mutex<State>,
}

/// An open device with what lies on it.
struct State {
    device: Arc<Device>,
    weights: Option<Arc<DecoderWeights<GpuBackend>>>,
    adapters: Arc<AdapterStore<GpuBackend>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("device", &self.device).finish_non_exhaustive()
    }
}

impl State {
    fn open(number: usize, validates: bool) -> Result<Self, BackendError> {
        let device = Device::open(&Adapter::numbered(number, validates)?)?;
        Ok(Self { device, weights: None, adapters: Arc::default() })
    }
}

impl GpuModel {
    /// Opens the device of this number. The host's threads choose tokens, quantize weights and encode
    /// pictures.
    ///
    /// # Errors
    /// When there is no such device, or it cannot be opened.
    pub fn open(number: usize, validates: bool, threads: Arc<ThreadPool>) -> Result<Self, BackendError> {
        let state = Mutex::new(State::open(number, validates)?);
        Ok(Self { number, validates, threads, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Description of the device.
    pub fn description(&self) -> AdapterDescription {
        self.state().device.description().clone()
    }

    /// The device, as long as it works.
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.state().device)
    }

    /// Bytes that are left of the device's memory; `None` where the driver does not say.
    pub fn available_bytes(&self) -> Option<u64> {
        self.state().device.available_bytes()
    }

    /// Most KV blocks of a model, by what a kernel reaches in a buffer.
    pub fn most_kv_blocks(&self, model: &LoadedModel, dtype: KvDtype) -> u32 {
        let most = self.state().device.description().max_binding_bytes;
        let layout = model.kv_layout(dtype, 1);
        let largest = layout.layers.iter().flatten().map(layer_block_bytes).max();
        largest.map_or(u32::MAX, |bytes| u32::try_from(most / bytes.max(1) as u64).unwrap_or(u32::MAX))
    }

    fn backend(&self, device: &Arc<Device>) -> Result<GpuBackend, BackendError> {
        Ok(GpuBackend::new(device)?.with_threads(Arc::clone(&self.threads)))
    }

    /// Copies the weights to the device, unless that has been done.
    ///
    /// # Errors
    /// When tensors are missing or of wrong shapes, or the device lacks memory or an operation.
    pub fn prepare(
        &self,
        model: &LoadedModel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), LoadError> {
        self.weights(&mut self.state(), model, progress).map(drop)
    }

    fn weights(
        &self,
        state: &mut State,
        model: &LoadedModel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<GpuBackend>>, LoadError> {
        if let Some(weights) = &state.weights {
            return Ok(Arc::clone(weights));
        }
        let weights = model.weights_on(&self.backend(&state.device)?, progress)?;
        state.device.flush_writes();
        state.device.check()?;
        state.weights = Some(Arc::clone(&weights));
        Ok(weights)
    }

    /// An executor with its own KV cache. After a failure of the device it is opened anew, and weights are
    /// copied to it again; adapters have to be loaded again.
    ///
    /// # Errors
    /// Errors of [`Self::prepare`], and when the device cannot be opened again.
    pub fn executor(
        &self,
        model: &LoadedModel,
        limits: &RunnerLimits,
    ) -> Result<Box<dyn Executor>, LoadError> {
        let mut state = self.state();
        if let Err(fault) = state.device.check() {
            tracing::warn!("{fault}: the device is opened again, and the weights are copied to it");
            *state = State::open(self.number, self.validates)?;
        }
        let weights = self.weights(&mut state, model, &mut |_| {})?;
        let backend = self.backend(&state.device)?;
        model.executor_with(backend, weights, Arc::clone(&state.adapters), &self.threads, limits)
    }

    /// Loads the adapter in `folder`, as PEFT saves it.
    ///
    /// # Errors
    /// When it is broken, does not fit the model, exceeds the limits, or finds no room beside the others.
    pub fn load_adapter(
        &self,
        model: &LoadedModel,
        folder: &Path,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        let state = self.state();
        let backend = self.backend(&state.device)?;
        state.adapters.load(&backend, &model.config, folder, model.adapter_format(), limits)
    }

    /// Makes a random adapter, to measure the cost of adapters.
    ///
    /// # Errors
    /// When it exceeds the limits or finds no room beside the others.
    pub fn load_random_adapter(
        &self,
        model: &LoadedModel,
        random: RandomAdapter,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        let state = self.state();
        let backend = self.backend(&state.device)?;
        state.adapters.load_random(&backend, &model.config, random, model.adapter_format(), limits)
    }
}
