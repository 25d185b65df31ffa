//! The device of the tests.

use std::sync::Arc;

use throng_gpu::{Adapter, Device, GpuBackend};
use throng_testkit::shared_files::note_skipped;

/// An open device whose driver's validation layer checks all calls, where it is installed. Dropping it fails
/// the test if the layer found a fault.
pub struct Checked(Arc<Device>);

impl std::ops::Deref for Checked {
    type Target = Arc<Device>;

    fn deref(&self) -> &Arc<Device> {
        &self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let found = wgpu_hal::VALIDATION_CANARY.get_and_reset();
        assert!(found.is_empty() || std::thread::panicking(), "the validation layer says: {found:?}");
    }
}

/// Opens the first device; `None`, with a note, where there is none.
pub fn device() -> Option<Checked> {
    let adapter = adapter()?;
    Some(Checked(Device::open(&adapter).expect("the device opens")))
}

/// Opens the first device without the validation layer, which takes most of the time of small steps.
pub fn fast_device() -> Option<Arc<Device>> {
    let adapter = first(false)?;
    Some(Device::open(&adapter).expect("the device opens"))
}

/// The first device, with the validation layer.
pub fn adapter() -> Option<Adapter> {
    first(true)
}

fn first(validates: bool) -> Option<Adapter> {
    match Adapter::numbered(0, validates) {
        Ok(adapter) => Some(adapter),
        Err(error) => {
            note_skipped(&format!("GPUs: {error} (apt-get install mesa-vulkan-drivers libvulkan1)"));
            assert!(std::env::var("THRONG_REQUIRE_GPU").is_err(), "THRONG_REQUIRE_GPU is set: {error}");
            None
        }
    }
}

/// A backend on an open device.
pub fn backend(device: &Arc<Device>) -> GpuBackend {
    GpuBackend::new(device).expect("a backend")
}
