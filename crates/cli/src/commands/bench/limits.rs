//! The limits of the machine or of its GPU, measured for a model, and the minimum time of given work under
//! them. Does not know how the work is done.

use anyhow::Result;
use serde::Serialize;
use throng_core::scheduling::forward_work::Work;
use throng_gpu::{Adapter, DeviceLimits};
use throng_kernels::limits::{
    Arithmetic, Pages, ReadBuffer, RegisterLoop, bytes_per_second, operations_per_second,
};
use throng_kernels::threads::ThreadPool;

use crate::args::DeviceChoice;
use crate::process::memory;
use crate::running::Compute;
use crate::running::probe;

/// Maximum size in bytes of the buffer for measuring bandwidth: far beyond the caches, a larger one changes
/// nothing.
const MOST_READ: usize = 1 << 30;
const LEAST_READ: usize = 1 << 20;
/// The same for a driver in software, which is slow.
const MOST_READ_IN_SOFTWARE: u64 = 64 << 20;

/// Measured figures of a GPU.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceFigures {
    /// Name of the device, and its driver.
    pub device: String,
    /// Bytes of the buffers that are read and copied.
    pub buffer_bytes: u64,
    /// Bytes a second that a kernel reads.
    pub read_bytes_per_s: f64,
    /// Bytes a second that copies read and write.
    pub copy_bytes_per_s: f64,
    /// Operations on 32-bit floats a second, without matrix units.
    pub f32_operations_per_s: f64,
    /// Operations on 16-bit floats a second; `None` if the device has none.
    pub f16_operations_per_s: Option<f64>,
    /// Operations of int8 dot products a second.
    pub int8_operations_per_s: f64,
}

/// Measures a GPU; `None` for the processor.
pub fn device_limits(device: DeviceChoice) -> Option<Result<DeviceFigures>> {
    let found = probe::chosen(device).transpose()?;
    Some(found.and_then(|found| {
        probe::check(&found)?;
        let most = if found.is_software { MOST_READ_IN_SOFTWARE } else { u64::MAX };
        let limits = throng_gpu::device_limits(&Adapter::numbered(found.number, false)?, most)?;
        let DeviceLimits {
            buffer_bytes,
            read_bytes_per_s,
            copy_bytes_per_s,
            f32_operations_per_s,
            f16_operations_per_s,
            int8_operations_per_s,
        } = limits;
        Ok(DeviceFigures {
            device: format!("{}, {}", found.name, found.driver),
            buffer_bytes,
            read_bytes_per_s,
            copy_bytes_per_s,
            f32_operations_per_s,
            f16_operations_per_s,
            int8_operations_per_s,
        })
    }))
}

/// The machine's limits with a given number of threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limits {
    /// Number of threads; 0 of a GPU.
    pub threads: usize,
    /// The ISA of the fastest int8 products.
    pub int8_instructions: &'static str,
    /// int8 operations a second in registers; a multiplication and an addition count as one each.
    pub int8_operations_per_s: f64,
    /// The ISA of the fastest products of 16-bit floats.
    pub bf16_instructions: &'static str,
    /// Operations on 16-bit floats a second in registers, counted the same way.
    pub bf16_operations_per_s: f64,
    /// The ISA of the fastest products of 32-bit floats.
    pub f32_instructions: &'static str,
    /// Operations on 32-bit floats a second in registers, counted the same way.
    pub f32_operations_per_s: f64,
    /// Size in bytes of the buffer: as large as the weights, up to 1 GiB and half of the free memory.
    pub read_bytes: usize,
    /// Bytes a second that all threads together read from the buffer.
    pub read_bytes_per_s: f64,
}

/// The resource that determines the least time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// Memory bandwidth is the limit.
    Memory,
    /// Arithmetic is the limit.
    Compute,
}

impl Binding {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

impl Limits {
    /// Measures the limits in about a second, with a buffer as large as the weights that a step reads. `None`
    /// if memory is short.
    pub fn measure(n_threads: usize, step_bytes: f64) -> Option<Self> {
        let pool = ThreadPool::new(n_threads);
        let free = memory::available_bytes().map_or(MOST_READ, |free| (free / 2) as usize);
        let n_bytes = (step_bytes as usize).clamp(LEAST_READ, MOST_READ).min(free);
        let buffer = ReadBuffer::new(n_bytes, Pages::Huge, &pool)?;
        let best = RegisterLoop::best;
        let (int8, bf16, f32) = (best(Arithmetic::Int8), best(Arithmetic::Bf16), best(Arithmetic::F32));
        Some(Self {
            threads: pool.n_threads(),
            int8_instructions: int8.name(),
            int8_operations_per_s: operations_per_second(&int8, &pool),
            bf16_instructions: bf16.name(),
            bf16_operations_per_s: operations_per_second(&bf16, &pool),
            f32_instructions: f32.name(),
            f32_operations_per_s: operations_per_second(&f32, &pool),
            read_bytes: buffer.n_bytes(),
            read_bytes_per_s: bytes_per_second(&buffer, &pool),
        })
    }

    /// Limits of the device that computes a model; `None` if the processor computes a part of it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of_device(compute: &Compute, device: DeviceChoice) -> Result<Option<Self>> {
        if compute.is_divided() {
            return Ok(None);
        }
        let Some(figures) = device_limits(device).transpose()? else { return Ok(None) };
        Ok(Some(Self {
            threads: 0,
            int8_instructions: "device",
            int8_operations_per_s: figures.int8_operations_per_s,
            bf16_instructions: "device, f16",
            bf16_operations_per_s: figures.f16_operations_per_s.unwrap_or(figures.f32_operations_per_s),
            f32_instructions: "device",
            f32_operations_per_s: figures.f32_operations_per_s,
            read_bytes: figures.buffer_bytes as usize,
            read_bytes_per_s: figures.read_bytes_per_s,
        }))
    }

    /// The least time in seconds for this work, and the resource that determines it. Reading and
    /// multiplying overlap, so the longer of the two counts; products of different types do not overlap and
    /// are added.
    pub fn least_seconds(&self, work: &Work) -> (f64, Binding) {
        let reading = work.bytes / self.read_bytes_per_s;
        let multiplying = work.int8_operations / self.int8_operations_per_s
            + work.bf16_operations / self.bf16_operations_per_s
            + work.f32_operations / self.f32_operations_per_s;
        if reading >= multiplying { (reading, Binding::Memory) } else { (multiplying, Binding::Compute) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        threads: 2,
        int8_instructions: "",
        int8_operations_per_s: 1000.0,
        bf16_instructions: "",
        bf16_operations_per_s: 200.0,
        f32_instructions: "",
        f32_operations_per_s: 100.0,
        read_bytes: 0,
        read_bytes_per_s: 10.0,
    };

    #[test]
    fn the_longer_of_reading_and_multiplying_is_the_limit() {
        let work = |int8_operations, bf16_operations, f32_operations, bytes| Work {
            int8_operations,
            bf16_operations,
            f32_operations,
            bytes,
        };
        assert_eq!(LIMITS.least_seconds(&work(1000.0, 0.0, 0.0, 50.0)), (5.0, Binding::Memory));
        assert_eq!(LIMITS.least_seconds(&work(7000.0, 0.0, 0.0, 50.0)), (7.0, Binding::Compute));
        assert_eq!(
            LIMITS.least_seconds(&work(1000.0, 400.0, 500.0, 50.0)),
            (8.0, Binding::Compute),
            "one after the other"
        );
    }

    #[test]
    fn measured_limits_are_positive_and_the_buffer_has_the_requested_size() {
        let limits = Limits::measure(2, 3e6).expect("fits");
        assert_eq!(limits.threads, 2);
        assert!((3_000_000..3_001_000).contains(&limits.read_bytes), "{limits:?}");
        let multiplying =
            [limits.int8_operations_per_s, limits.bf16_operations_per_s, limits.f32_operations_per_s];
        for rate in multiplying.into_iter().chain([limits.read_bytes_per_s]) {
            assert!(rate > 0.0 && rate.is_finite(), "{limits:?}");
        }
    }
}
