//! Device on which a model computes: the processor or a GPU. Does not know requests.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use throng_core::scheduling::executor::Executor;
use throng_gpu::{Adapter, Device, GpuBackend, GpuLayers, GpuModel, product_seconds};
use throng_kernels::Isa;
use throng_kernels::threads::ThreadPool;
use throng_model::LoadedModel;
use throng_model::adapter::{AdapterError, AdapterLimits, LoadedAdapter, RandomAdapter};
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::LoadProgress;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{BackendKind, LoadError, RunnerOptions};

use super::probe::{self, FoundDevice};
use super::{isa, n_threads};
use crate::args::{DeviceChoice, ExpertsOn, GpuLayersChoice};
use crate::config::ModelSection;
use crate::kv_budget::show;
use crate::process::memory;

/// Device on which a model computes.
#[derive(Debug, Clone)]
pub enum Compute {
    /// The processor computes.
    Host(BackendKind),
    /// A GPU computes.
    Device(Arc<GpuModel>),
}

/// Rows of the products that are measured: one user, and a crowd or a prompt.
const MEASURED_ROWS: [usize; 2] = [1, 64];

impl Compute {
    /// Opens the device that the settings choose. The driver is first tried in a process of its own.
    ///
    /// # Errors
    /// When there is no such device or it does not work.
    pub fn choose(section: &ModelSection) -> Result<Self> {
        let host = match section.isa {
            _ if section.reference => BackendKind::Reference,
            Some(isa) => BackendKind::CpuIsa(isa),
            None => BackendKind::Cpu,
        };
        let is_left = section.gpu_layers == GpuLayersChoice::Last(0);
        if section.device == DeviceChoice::Cpu && !is_left && section.gpu_layers != GpuLayersChoice::Auto {
            tracing::warn!(
                "--gpu-layers has no effect, as the processor computes: a GPU computes with --device vulkan:0 (throng \
                 devices lists the GPUs)"
            );
        }
        let device = match section.device {
            _ if is_left => None,
            DeviceChoice::Auto => faster_device(section),
            device => probe::chosen(device)?,
        };
        let Some(device) = device else { return Ok(Self::Host(host)) };
        probe::check(&device)?;
        let threads = Arc::new(ThreadPool::new(n_threads(section)));
        let model = GpuModel::open(device.number, false, threads).context("the device cannot be opened")?;
        let opened = FoundDevice::new(device.number, model.description());
        if !opened.is_same(&device) {
            // The files are those of an earlier probe, but the driver is not.
            probe::forget();
            probe::check(&opened)?;
        }
        let model = model.with_layers(match section.gpu_layers {
            GpuLayersChoice::Auto => GpuLayers::Fit,
            GpuLayersChoice::All => GpuLayers::All,
            GpuLayersChoice::Last(n) => NonZeroUsize::new(n).map_or(GpuLayers::Fit, GpuLayers::Last),
        });
        let model = match section.experts_on {
            ExpertsOn::Device => model,
            ExpertsOn::Cpu => model.with_host_experts(),
        };
        let memory = device.memory_bytes.map_or_else(|| "unknown".to_owned(), show);
        let FoundDevice { number, interface, name, kind, driver, .. } = &device;
        tracing::info!("device {interface}:{number}: {name} ({kind}, {memory}), driver {driver}");
        if device.is_software {
            tracing::warn!("{} is a driver in software, for tests: --device cpu is faster", device.name);
        }
        Ok(Self::Device(Arc::new(model)))
    }

    /// The settings with the chosen device: `auto` that chose the processor becomes the processor.
    pub(super) fn settled(&self, section: &ModelSection) -> ModelSection {
        let device = if self.is_device() { section.device } else { DeviceChoice::Cpu };
        ModelSection { device, ..section.clone() }
    }

    /// Kind of the backend that runs on the processor: for all of the model, or for the parts beside its
    /// decoder.
    pub fn host(&self) -> BackendKind {
        match self {
            Self::Host(kind) => *kind,
            Self::Device(_) => BackendKind::Cpu,
        }
    }

    /// Whether a GPU and the processor compute parts of the model.
    pub fn is_divided(&self) -> bool {
        matches!(self, Self::Device(model) if model.first_layer() > 0 || model.has_host_experts())
    }

    /// Whether a GPU computes.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Name of the processor's instruction set, or of the device and its driver, with both where some layers
    /// are on the processor: the bits of answers depend on it.
    pub fn fingerprint(&self, isa: Option<Isa>) -> String {
        match self {
            Self::Host(_) => isa.map_or("reference", Isa::name).to_owned(),
            Self::Device(model) => {
                let description = model.description();
                let on_device =
                    format!("{} {} {}", description.interface, description.name, description.driver);
                let isa = Isa::best().name();
                let experts = if model.has_host_experts() { isa } else { "device" };
                match (model.first_layer(), model.has_host_experts()) {
                    (0, false) => on_device,
                    (first, _) => {
                        format!("{on_device} from layer {first}, experts on {experts}, {isa} before")
                    }
                }
            }
        }
    }

    /// Copies the weights to where they are computed with.
    pub(super) fn prepare(
        &self,
        n_threads: usize,
        model: &LoadedModel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), LoadError> {
        match self {
            Self::Host(kind) => model.prepare(*kind, n_threads, progress),
            Self::Device(device) => device.prepare(model, progress),
        }
    }

    /// An executor with its own KV cache.
    pub(super) fn executor(
        &self,
        model: &LoadedModel,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
    ) -> Result<Box<dyn Executor>, LoadError> {
        match self {
            Self::Host(_) => model.runner_on(threads, options),
            Self::Device(device) => device.executor(model, &options.limits),
        }
    }

    /// Bytes of memory available for keys and values; `None` if the device does not report it. Where layers
    /// are on two devices, the bytes of all keys and values of as many blocks as both can hold.
    pub(super) fn available_bytes(&self, model: &LoadedModel, dtype: KvDtype) -> Option<u64> {
        let on_host = memory::available_bytes();
        let Self::Device(device) = self else { return on_host };
        // A driver in software takes the host's memory, and reports all of it.
        let on_device = [device.available_bytes(), on_host].into_iter().flatten().min();
        let first_layer = device.first_layer();
        if first_layer == 0 {
            return on_device;
        }
        let block_bytes = |layers: Range<usize>| {
            let layout = model.kv_layout(dtype, 1).of_layers(&layers);
            layout.bytes().filter(|&bytes| bytes > 0).map(|bytes| bytes as u128)
        };
        let n_layers = model.config.layers.len();
        let whole = block_bytes(0..n_layers);
        let scaled = |available: Option<u64>, layers: Range<usize>| {
            let bytes = u128::from(available?) * whole? / block_bytes(layers)?;
            Some(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        let scaled = [scaled(on_host, 0..first_layer), scaled(on_device, first_layer..n_layers)];
        scaled.into_iter().flatten().min().or(on_device)
    }

    /// Maximum number of KV blocks that the memory can hold.
    pub(super) fn most_kv_blocks(&self, model: &LoadedModel, dtype: KvDtype) -> u32 {
        match self {
            Self::Host(_) => u32::MAX,
            Self::Device(device) => device.most_kv_blocks(model, dtype),
        }
    }

    /// Loads the adapter in a folder.
    ///
    /// # Errors
    /// When it is broken, does not fit the model, exceeds the limits, or finds no room beside the others.
    pub fn load_adapter(
        &self,
        model: &LoadedModel,
        folder: &Path,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        match self {
            Self::Host(kind) => model.load_adapter(*kind, folder, limits),
            Self::Device(device) => device.load_adapter(model, folder, limits),
        }
    }

    /// Creates a random adapter.
    ///
    /// # Errors
    /// When it exceeds the limits or finds no room beside the others.
    pub fn load_random_adapter(
        &self,
        model: &LoadedModel,
        random: RandomAdapter,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        match self {
            Self::Host(kind) => model.load_random_adapter(*kind, random, limits),
            Self::Device(device) => device.load_random_adapter(model, random, limits),
        }
    }
}

/// The device that is measured to be faster than the processor, if there is one. Software drivers are
/// ignored.
fn faster_device(section: &ModelSection) -> Option<FoundDevice> {
    let found = probe::find().unwrap_or_else(|error| {
        tracing::warn!("--device auto takes the processor: {error:#}");
        Vec::new()
    });
    let device = found.into_iter().find(|device| !device.is_software && device.lacks.is_none())?;
    let measured = probe::check(&device).and_then(|()| measure(section, &device));
    match measured {
        Ok(is_faster) => is_faster.then_some(device),
        Err(error) => {
            tracing::warn!("--device auto takes the processor: {error:#}");
            None
        }
    }
}

/// Measures products on both devices, and logs the result.
fn measure(section: &ModelSection, device: &FoundDevice) -> Result<bool> {
    let isa = isa(section).unwrap_or_else(Isa::best);
    let mut host = CpuBackend::with_isa(n_threads(section), isa);
    let mut gpu = GpuBackend::new(&Device::open(&Adapter::numbered(device.number, false)?)?)?;
    let mut is_faster = true;
    for n_rows in MEASURED_ROWS {
        let (on_host, on_gpu) = (product_seconds(&mut host, n_rows)?, product_seconds(&mut gpu, n_rows)?);
        tracing::info!(
            "--device auto: a product of {n_rows} rows takes {:.2} ms on the processor and {:.2} ms on {}",
            on_host * 1e3,
            on_gpu * 1e3,
            device.name
        );
        is_faster &= on_gpu < on_host;
    }
    Ok(is_faster)
}
