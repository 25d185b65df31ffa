//! The devices that drivers offer. Does not know models.

use std::fmt;

use throng_model::backend::BackendError;

use crate::ready::ready;

/// A device that a driver offers.
#[derive(Debug, Clone)]
pub struct Adapter {
    inner: wgpu::Adapter,
}

/// Description of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterDescription {
    /// Interface of the driver: `vulkan` or `metal`.
    pub interface: &'static str,
    /// Name of the device.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Kind of the device.
    pub kind: AdapterKind,
    /// Bytes of the device's memory; `None` if the driver does not report it.
    pub memory_bytes: Option<u64>,
    /// Maximum bytes of a buffer that a kernel reads.
    pub max_binding_bytes: u64,
    /// Maximum bytes of memory that the threads of a workgroup share.
    pub max_shared_bytes: u32,
    /// The reason why Throng's kernels cannot run on it, if they cannot.
    pub lacks: Option<&'static str>,
}

/// Kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A card with memory of its own.
    Discrete,
    /// A part of the processor, with its memory.
    Integrated,
    /// A part of a card in a virtual machine.
    Virtual,
    /// The processor itself, by a driver in software.
    Software,
    /// The driver does not report the kind.
    Unknown,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Software => "software",
            Self::Unknown => "unknown",
        })
    }
}

/// Share of the memory that the driver reports, in per cent, beyond which allocations fail.
const MEMORY_SHARE: u8 = 95;

/// The devices of this machine, in the order of the driver; empty without a driver.
///
/// With `validates`, the driver's validation layer checks all calls, if it is installed.
pub fn adapters(validates: bool) -> Vec<Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL;
    descriptor.flags = if validates { wgpu::InstanceFlags::VALIDATION } else { wgpu::InstanceFlags::empty() };
    descriptor.memory_budget_thresholds =
        wgpu::MemoryBudgetThresholds { for_resource_creation: Some(MEMORY_SHARE), for_device_loss: None };
    let instance = wgpu::Instance::new(descriptor);
    let found = ready(instance.enumerate_adapters(wgpu::Backends::VULKAN | wgpu::Backends::METAL));
    found.into_iter().map(|inner| Adapter { inner }).collect()
}

impl Adapter {
    /// The device of this number, as [`adapters`] counts them.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn numbered(number: usize, validates: bool) -> Result<Self, BackendError> {
        let mut found = adapters(validates);
        let n = found.len();
        if n == 0 {
            let reason = "no driver offers a device: install the GPU's driver for Vulkan";
            return Err(BackendError::Device(reason.to_owned()));
        }
        if number >= n {
            let reason = format!("there is no device {number}: {n} found, counted from 0");
            return Err(BackendError::Device(reason));
        }
        Ok(found.swap_remove(number))
    }

    /// Description of the adapter.
    pub fn describe(&self) -> AdapterDescription {
        let (info, limits) = (self.inner.get_info(), self.inner.limits());
        AdapterDescription {
            interface: match info.backend {
                wgpu::Backend::Metal => "metal",
                _ => "vulkan",
            },
            name: info.name,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Unknown,
            },
            memory_bytes: self.memory_bytes(),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_shared_bytes: limits.max_compute_workgroup_storage_size,
            lacks: self.lacks(),
        }
    }

    /// Bytes of the device's memory; `None` if the driver does not report it.
    pub fn memory_bytes(&self) -> Option<u64> {
        heap_bytes(&self.inner)
    }

    fn lacks(&self) -> Option<&'static str> {
        let limits = self.inner.limits();
        if !self.inner.features().contains(wgpu::Features::IMMEDIATES) {
            Some("push constants")
        } else if limits.max_immediate_size < MAX_PARAMS_BYTES {
            Some("128 bytes of push constants")
        } else if limits.max_compute_invocations_per_workgroup < 256 {
            Some("workgroups of 256 threads")
        } else if limits.max_compute_workgroup_storage_size < 16 << 10 {
            Some("16 KiB of shared memory")
        } else if limits.max_storage_buffers_per_shader_stage < 8 {
            Some("eight buffers a kernel")
        } else {
            None
        }
    }

    /// Whether kernels may compute with 16-bit floats.
    pub(crate) fn has_f16(&self) -> bool {
        self.inner.features().contains(wgpu::Features::SHADER_F16)
    }

    /// Opens the device with the features and limits that kernels need.
    pub(crate) fn open(&self) -> Result<(wgpu::Device, wgpu::Queue), BackendError> {
        self.open_with(wgpu::Features::IMMEDIATES)
    }

    /// Opens the device to measure its limits, with 16-bit floats if it has them.
    pub(crate) fn open_for_limits(&self, has_f16: bool) -> Result<(wgpu::Device, wgpu::Queue), BackendError> {
        let f16 = if has_f16 { wgpu::Features::SHADER_F16 } else { wgpu::Features::empty() };
        self.open_with(wgpu::Features::IMMEDIATES | f16)
    }

    fn open_with(
        &self,
        required_features: wgpu::Features,
    ) -> Result<(wgpu::Device, wgpu::Queue), BackendError> {
        if let Some(lacking) = self.lacks() {
            return Err(BackendError::Unsupported(format!("without {lacking}, which the device lacks")));
        }
        let offered = self.inner.limits();
        let required_limits = wgpu::Limits {
            max_storage_buffer_binding_size: offered.max_storage_buffer_binding_size,
            max_buffer_size: offered.max_buffer_size,
            max_immediate_size: MAX_PARAMS_BYTES,
            max_compute_workgroup_storage_size: offered.max_compute_workgroup_storage_size,
            ..wgpu::Limits::default()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("throng"),
            required_features,
            required_limits,
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        ready(self.inner.request_device(&descriptor)).map_err(|e| BackendError::Device(e.to_string()))
    }
}

/// Bytes of a kernel's parameters.
pub(crate) const MAX_PARAMS_BYTES: u32 = 128;

/// Bytes of the largest heap that is the device's own.
#[cfg(not(target_vendor = "apple"))]
fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handle is not destroyed here and not kept.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let device = adapter.raw_physical_device();
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the adapter keeps its instance, of which the physical device is one.
    let properties = unsafe { instance.get_physical_device_memory_properties(device) };
    let heaps = properties.memory_heaps.iter().take(properties.memory_heap_count as usize);
    // Bit 0 marks memory of the device (VK_MEMORY_HEAP_DEVICE_LOCAL_BIT).
    heaps.filter(|heap| heap.flags.as_raw() & 1 == 1).map(|heap| heap.size).max()
}

/// Metal's memory is that of the machine.
#[cfg(target_vendor = "apple")]
fn heap_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}
