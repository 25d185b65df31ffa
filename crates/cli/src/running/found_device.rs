//! Devices as their drivers describe them. Does not ask drivers.

use serde::{Deserialize, Serialize};
use throng_gpu::{AdapterDescription, AdapterKind};

/// A device as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundDevice {
    /// Number among the devices of this machine.
    pub number: usize,
    /// Interface of the driver: `vulkan` or `metal`.
    pub interface: String,
    /// Name of the device.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Kind of the device.
    pub kind: String,
    /// Whether the processor computes, by a driver in software.
    pub is_software: bool,
    /// Bytes of the device's memory; `None` if the driver does not report it.
    pub memory_bytes: Option<u64>,
    /// Maximum bytes of a buffer that a kernel reads.
    pub max_binding_bytes: u64,
    /// Maximum bytes of memory that the threads of a workgroup share.
    pub max_shared_bytes: u32,
    /// The reason why Throng's kernels cannot run on it.
    pub lacks: Option<String>,
}

impl FoundDevice {
    /// A device that was opened without a probe.
    pub fn new(number: usize, description: AdapterDescription) -> Self {
        let AdapterDescription {
            interface,
            name,
            driver,
            kind,
            memory_bytes,
            max_binding_bytes,
            max_shared_bytes,
            lacks,
        } = description;
        Self {
            number,
            interface: interface.to_owned(),
            name,
            driver,
            kind: kind.to_string(),
            is_software: kind == AdapterKind::Software,
            memory_bytes,
            max_binding_bytes,
            max_shared_bytes,
            lacks: lacks.map(str::to_owned),
        }
    }

    /// Whether it is the same device with the same version of its driver.
    pub fn is_same(&self, other: &Self) -> bool {
        let of = |device: &Self| (device.number, device.name.clone(), device.driver.clone());
        of(self) == of(other)
    }
}
