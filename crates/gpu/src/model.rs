//! A model on a device, and on the processor where some layers are there: its weights, which executors share,
//! and the device that replaces a failed one. Does not know requests.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use throng_core::scheduling::executor::Executor;
use throng_kernels::threads::ThreadPool;
use throng_model::LoadedModel;
use throng_model::adapter::{AdapterError, AdapterLimits, AdapterStore, LoadedAdapter, RandomAdapter};
use throng_model::backend::{Backend, BackendError};
use throng_model::config::Stage;
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::{DecoderWeights, LoadProgress, TensorError};
use throng_model::kv_cache::KvDtype;
use throng_model::load::LoadError;
use throng_model::parallel::PartError;
use throng_model::runner::{RunnerLimits, StageOn};

use crate::GpuBackend;
use crate::adapters::{Adapter, AdapterDescription};
use crate::buffers::layer_block_bytes;
use crate::device::Device;
use crate::layers::{GpuLayers, later_half};

/// A model on a device, or its last layers, with the layers before them on the processor.
#[derive(Debug)]
pub struct GpuModel {
    number: usize,
    validates: bool,
    threads: Arc<ThreadPool>,
    layers: GpuLayers,
    /// Whether the processor computes experts.
    has_host_experts: bool,
    /// Bound of the device's memory, in tests.
    memory_bytes: Option<u64>,
    /// First layer on the device, once its weights have been copied. It stays, so that the bits of answers
    /// do.
    first_layer: OnceLock<usize>,
    state: Mutex<State>,
}

/// An open device with its buffers.
struct State {
    device: Arc<Device>,
    weights: Option<Arc<DecoderWeights<GpuBackend>>>,
    adapters: Arc<AdapterStore<GpuBackend>>,
    host: Host,
}

/// The layers on the processor, if there are any.
#[derive(Default)]
struct Host {
    weights: Option<Arc<DecoderWeights<CpuBackend>>>,
    adapters: Arc<AdapterStore<CpuBackend>>,
}

/// Origin of an adapter's numbers.
enum AdapterOrigin<'a> {
    Peft(&'a Path),
    Random(RandomAdapter),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("device", &self.device).finish_non_exhaustive()
    }
}

impl State {
    fn open(number: usize, validates: bool) -> Result<Self, BackendError> {
        let device = Device::open(&Adapter::numbered(number, validates)?)?;
        Ok(Self { device, weights: None, adapters: Arc::default(), host: Host::default() })
    }
}

impl GpuModel {
    /// Opens the device of this number. The host's threads choose tokens, quantize weights, encode pictures,
    /// and compute the layers that are not on the device.
    ///
    /// # Errors
    /// When there is no such device, or it cannot be opened.
    pub fn open(number: usize, validates: bool, threads: Arc<ThreadPool>) -> Result<Self, BackendError> {
        let state = Mutex::new(State::open(number, validates)?);
        let (layers, has_host_experts, memory_bytes, first_layer) = Default::default();
        Ok(Self { number, validates, threads, layers, has_host_experts, memory_bytes, first_layer, state })
    }

    /// Sets the layers that the device computes.
    #[must_use]
    pub fn with_layers(self, layers: GpuLayers) -> Self {
        Self { layers, ..self }
    }

    /// Keeps the matrices of experts on the processor, which computes them.
    #[must_use]
    pub fn with_host_experts(self) -> Self {
        Self { has_host_experts: true, ..self }
    }

    /// Whether the processor computes experts.
    pub fn has_host_experts(&self) -> bool {
        self.has_host_experts
    }

    /// Chooses the layers for a device with this much memory.
    #[doc(hidden)]
    #[must_use]
    pub fn with_memory(self, n_bytes: u64) -> Self {
        Self { memory_bytes: Some(n_bytes), ..self }
    }

    /// The first layer on the device; 0 if the device has the whole model, or no weights yet.
    pub fn first_layer(&self) -> usize {
        self.first_layer.get().copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Description of the device.
    pub fn description(&self) -> AdapterDescription {
        self.state().device.description().clone()
    }

    /// The device, unless it has failed.
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.state().device)
    }

    /// Free bytes of the device's memory; `None` if the driver does not report it.
    pub fn available_bytes(&self) -> Option<u64> {
        self.state().device.available_bytes()
    }

    /// Maximum number of a model's KV blocks, by the range of a buffer that kernels can address.
    pub fn most_kv_blocks(&self, model: &LoadedModel, dtype: KvDtype) -> u32 {
        let most = self.state().device.description().max_binding_bytes;
        let layout = model.kv_layout(dtype, 1).of_layers(&(self.first_layer()..usize::MAX));
        let largest = layout.layers.iter().flatten().map(layer_block_bytes).max();
        largest.map_or(u32::MAX, |bytes| u32::try_from(most / bytes.max(1) as u64).unwrap_or(u32::MAX))
    }

    fn backend(&self, device: &Arc<Device>) -> Result<GpuBackend, BackendError> {
        let backend = GpuBackend::new(device)?.with_threads(Arc::clone(&self.threads));
        Ok(if self.has_host_experts { backend.with_host_experts(&self.threads) } else { backend })
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

    /// Copies the weights of the device's layers, and prepares those of the processor's.
    fn weights(
        &self,
        state: &mut State,
        model: &LoadedModel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<GpuBackend>>, LoadError> {
        if let Some(weights) = &state.weights {
            return Ok(Arc::clone(weights));
        }
        let chosen = self.first_layer.get().copied();
        let available = self.memory_bytes.or_else(|| state.device.available_bytes());
        let choose = || self.layers.first_layer(model, available, !self.has_host_experts);
        let mut first_layer = chosen.map_or_else(choose, Ok)?;
        let weights = loop {
            match self.copy(state, model, first_layer, progress) {
                Err(error) if self.may_retreat(chosen, &error) => {
                    let n_layers = model.config.layers.len();
                    let fewer = first_layer + (n_layers - first_layer).div_ceil(8);
                    if fewer >= n_layers {
                        return Err(error);
                    }
                    tracing::info!("layers {first_layer} and later do not fit: {error}");
                    first_layer = later_half(model, fewer).map_err(|_| error)?;
                }
                copied => break copied?,
            }
        };
        if first_layer > 0 && state.host.weights.is_none() {
            let [first, _] = halves(model, first_layer)?;
            let backend = CpuBackend::on(Arc::clone(&self.threads));
            state.host.weights = Some(model.stage_on(&backend, &first, progress)?);
        }
        if chosen.is_none() {
            self.note_layers(model, first_layer, &state.device);
        }
        self.first_layer.get_or_init(|| first_layer);
        state.weights = Some(Arc::clone(&weights));
        Ok(weights)
    }

    /// Whether loading may be tried again with fewer layers on the device after this error.
    fn may_retreat(&self, chosen: Option<usize>, error: &LoadError) -> bool {
        let is_full = matches!(
            error,
            LoadError::Backend(BackendError::OutOfMemory { .. })
                | LoadError::Tensors(TensorError::Backend(BackendError::OutOfMemory { .. }))
        );
        is_full && self.layers == GpuLayers::Fit && chosen.is_none()
    }

    /// Copies the weights from a layer on to the device.
    fn copy(
        &self,
        state: &State,
        model: &LoadedModel,
        first_layer: usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<GpuBackend>>, LoadError> {
        let backend = self.backend(&state.device)?;
        let weights = match first_layer {
            0 => model.weights_on(&backend, progress),
            _ => model.stage_on(&backend, &halves(model, first_layer)?[1], progress),
        };
        state.device.flush_writes();
        let weights = weights?;
        state.device.check()?;
        Ok(weights)
    }

    fn note_layers(&self, model: &LoadedModel, first_layer: usize, device: &Device) {
        let (n_layers, name) = (model.config.layers.len(), &device.description().name);
        match (first_layer, self.layers) {
            (0, _) => tracing::info!("all {n_layers} layers are on {name}"),
            (_, GpuLayers::Fit) => tracing::warn!(
                "the model does not fit into the memory of {name}: layers 0 to {} of {n_layers} are computed on the \
                 processor, {} layers and the head on the device",
                first_layer - 1,
                n_layers - first_layer
            ),
            _ => tracing::info!(
                "layers 0 to {} of {n_layers} are computed on the processor, {} layers and the head on {name}",
                first_layer - 1,
                n_layers - first_layer
            ),
        }
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
            let of_host = state.host.weights.take();
            *state = State::open(self.number, self.validates)?;
            state.host.weights = of_host;
        }
        let weights = self.weights(&mut state, model, &mut |_| {})?;
        let (backend, adapters) = (self.backend(&state.device)?, Arc::clone(&state.adapters));
        let Some(of_host) = &state.host.weights else {
            return model.executor_with(backend, weights, adapters, &self.threads, limits);
        };
        let first = StageOn {
            backend: CpuBackend::on(Arc::clone(&self.threads)),
            weights: Arc::clone(of_host),
            adapters: Arc::clone(&state.host.adapters),
        };
        model.split_executor(first, StageOn { backend, weights, adapters }, &self.threads, limits)
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
        self.load_adapter_of(model, &AdapterOrigin::Peft(folder), limits)
    }

    /// Creates a random adapter, to measure the cost of adapters.
    ///
    /// # Errors
    /// When it exceeds the limits or finds no room beside the others.
    pub fn load_random_adapter(
        &self,
        model: &LoadedModel,
        random: RandomAdapter,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        self.load_adapter_of(model, &AdapterOrigin::Random(random), limits)
    }

    /// Loads an adapter on the device and, under the same number, on the processor if that has layers.
    fn load_adapter_of(
        &self,
        model: &LoadedModel,
        origin: &AdapterOrigin<'_>,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        let state = self.state();
        let backend = self.backend(&state.device)?;
        let loaded = load_into(&state.adapters, &backend, model, origin, limits)?;
        if state.host.weights.is_none() {
            return Ok(loaded);
        }
        let backend = CpuBackend::on(Arc::clone(&self.threads));
        state.host.adapters.number_next(loaded.id);
        let of_host = load_into(&state.host.adapters, &backend, model, origin, limits)?;
        assert_eq!(of_host.id, loaded.id, "stores number adapters alike");
        Ok(LoadedAdapter {
            n_bytes: loaded.n_bytes + of_host.n_bytes,
            held: Arc::new((loaded.held, of_host.held)),
            ..loaded
        })
    }
}

fn load_into<B: Backend>(
    store: &Arc<AdapterStore<B>>,
    backend: &B,
    model: &LoadedModel,
    origin: &AdapterOrigin<'_>,
    limits: AdapterLimits,
) -> Result<LoadedAdapter, AdapterError> {
    let (config, format) = (&model.config, model.adapter_format());
    match *origin {
        AdapterOrigin::Peft(folder) => store.load(backend, config, folder, format, limits),
        AdapterOrigin::Random(random) => store.load_random(backend, config, random, format, limits),
    }
}

fn halves(model: &LoadedModel, first_layer: usize) -> Result<[Stage; 2], LoadError> {
    Stage::halves(&model.config, first_layer).map_err(|error| PartError::from(error).into())
}
