//! Measured limits of a device.

use throng_gpu::{Adapter, device_limits};

use crate::harness::adapter;

#[test]
fn limits_are_positive_and_buffers_are_as_large_as_allowed() {
    if adapter().is_none() {
        return;
    }
    let adapter = Adapter::numbered(0, false).expect("it was there");
    let limits = device_limits(&adapter, 4 << 20).expect("the device works");
    println!("{limits:?}");
    assert_eq!(limits.buffer_bytes, 4 << 20);
    let rates = [
        limits.read_bytes_per_s,
        limits.copy_bytes_per_s,
        limits.f32_operations_per_s,
        limits.int8_operations_per_s,
    ];
    for rate in rates.into_iter().chain(limits.f16_operations_per_s) {
        assert!(rate > 1e6 && rate.is_finite(), "{limits:?}");
    }
}
