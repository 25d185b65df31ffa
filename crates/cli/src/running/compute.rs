//! Where a model computes: on the processor or on a GPU. Does not know requests.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use throng_core::scheduling::executor::Executor;
use throng_gpu::{Adapter, Device, GpuBackend, GpuModel, product_seconds};
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
use crate::args::DeviceChoice;
use crate::config::ModelSection;
use crate::kv_budget::show;
use crate::process::memory;

/// Where a model computes.
#[derive(Debug, Clone)]
pub enum Compute {
    /// On the processor.
    Host(BackendKind),
    /// On a GPU.
    Device(Arc<GpuModel>),
}

/// Rows of the products that are measured: one user, and a crowd or a prompt.
const MEASURED_ROWS: [usize; 2] = [1, 64];

impl Compute {
    /// Opens what the settings choose. The driver is asked in a process of its own first.
    ///
    /// # Errors
    /// When there is no such device or it does not work.
    pub fn choose(section: &ModelSection) -> Result<Self> {
        let host = match section.isa {
            _ if section.reference => BackendKind::Reference,
            Some(isa) => BackendKind::CpuIsa(isa),
            None => BackendKind::Cpu,
        };
        let device = match section.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto => faster_device(section),
            DeviceChoice::Vulkan(number) => Some(numbered(number)?),
            DeviceChoice::Metal => Some(metal()?),
        };
        let Some(device) = device else { return Ok(Self::Host(host)) };
        probe::check(&device)?;
        let threads = Arc::new(ThreadPool::new(n_threads(section)));
        let model = GpuModel::open(device.number, false, threads).context("the device cannot be opened")?;
        let memory = device.memory_bytes.map_or_else(|| "unknown".to_owned(), show);
        let FoundDevice { number, interface, name, kind, driver, .. } = &device;
        tracing::info!("device {interface}:{number}: {name} ({kind}, {memory}), driver {driver}");
        if device.is_software {
            tracing::warn!("{} is a driver in software, for tests: --device cpu is faster", device.name);
        }
        Ok(Self::Device(Arc::new(model)))
    }

    /// The settings of what was chosen: `auto` that took the processor is the processor.
    pub(super) fn settled(&self, section: &ModelSection) -> ModelSection {
        let device = if self.is_device() { section.device } else { DeviceChoice::Cpu };
        ModelSection { device, ..section.clone() }
    }

    /// The kind of the backend that runs on the processor: all of the model, or what is beside its decoder.
    pub fn host(&self) -> BackendKind {
        match self {
            Self::Host(kind) => *kind,
            Self::Device(_) => BackendKind::Cpu,
        }
    }

    /// Whether a GPU computes.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Name of the processor's instruction set, or of the device and its driver: the bits of answers depend
    /// on it.
    pub fn fingerprint(&self, isa: Option<Isa>) -> String {
        match self {
            Self::Host(_) => isa.map_or("reference", Isa::name).to_owned(),
            Self::Device(model) => {
                let description = model.description();
                format!("{} {} {}", description.interface, description.name, description.driver)
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

    /// Bytes of memory for keys and values; `None` where nobody says.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        let on_host = memory::available_bytes();
        match self {
            Self::Host(_) => on_host,
            // A driver in software takes the host's memory, and reports all of it.
            Self::Device(device) => [device.available_bytes(), on_host].into_iter().flatten().min(),
        }
    }

    /// Most KV blocks that it can hold.
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

    /// Makes a random adapter.
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

fn numbered(number: usize) -> Result<FoundDevice> {
    let mut found = probe::find()?;
    match found.len() {
        0 => bail!(
            "--device vulkan:{number}: no driver offers a GPU; install the GPU's driver for Vulkan and the Vulkan loader \
             (Debian: libvulkan1), or take --device cpu"
        ),
        n if number >= n => {
            bail!(
                "--device vulkan:{number}: devices are numbered from 0 to {}; throng devices lists them",
                n - 1
            )
        }
        _ => Ok(found.swap_remove(number)),
    }
}

fn metal() -> Result<FoundDevice> {
    let found = probe::find()?;
    let metal = found.into_iter().find(|device| device.interface == "metal");
    metal.context("--device metal: this machine has no such device; throng devices lists those it has")
}

/// The device that is measured to be faster than the processor, if one is. Devices in software are not asked.
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

/// Measures products on both, and says what it found.
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
