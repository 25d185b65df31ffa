//! The device of the tests.

use std::sync::Arc;

use throng_gpu::{Adapter, Device, GpuBackend};

/// Opens the first device, with the driver's validation layer; `None`, with a message, where there is none.
pub fn device() -> Option<Arc<Device>> {
    let adapter = adapter()?;
    Some(Device::open(&adapter).expect("the device opens"))
}

/// The first device.
pub fn adapter() -> Option<Adapter> {
    match Adapter::numbered(0, true) {
        Ok(adapter) => Some(adapter),
        Err(error) => {
            println!("skipped: {error} (Debian: apt-get install mesa-vulkan-drivers libvulkan1)");
            assert!(std::env::var("THRONG_REQUIRE_GPU").is_err(), "THRONG_REQUIRE_GPU is set: {error}");
            None
        }
    }
}

/// A backend on an open device.
pub fn backend(device: &Arc<Device>) -> GpuBackend {
    GpuBackend::new(device).expect("a backend")
}
