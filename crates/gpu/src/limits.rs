//! Limits of a device, measured: bytes that it reads and copies, and operations a second in registers. Does
//! not know models.

use std::time::Instant;

use throng_model::backend::BackendError;

use crate::adapters::{Adapter, AdapterKind};
use crate::ready::ready;
use crate::template::{Values, fill};

/// Measured limits of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLimits {
    /// Bytes of the buffers of the next two.
    pub buffer_bytes: u64,
    /// Bytes a second that a kernel reads.
    pub read_bytes_per_s: f64,
    /// Bytes a second that copies between two buffers read and write, both counted.
    pub copy_bytes_per_s: f64,
    /// Operations on 32-bit floats a second; a multiplication and an addition count as one each, here as
    /// below. Matrix units are not used.
    pub f32_operations_per_s: f64,
    /// Operations on 16-bit floats a second; `None` if the device has none.
    pub f16_operations_per_s: Option<f64>,
    /// Operations of dot products of four int8 a second.
    pub int8_operations_per_s: f64,
}

/// Largest buffers: beyond the caches of any device.
const MOST_BUFFER_BYTES: u64 = 1 << 30;
/// Shortest time of a run that counts.
const LEAST_SECONDS: f64 = 0.02;
const N_RUNS: usize = 3;
/// Threads of the arithmetic: enough to fill any device. A driver in software gets fewer.
const N_GROUPS: u32 = 8192;
const N_GROUPS_IN_SOFTWARE: u32 = 64;
const GROUP_THREADS: u32 = 256;
/// Chains of a thread, elements of each.
const CHAINS: u32 = 8;
const LANES: u32 = 4;

/// Kind of arithmetic.
#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    F16,
    Int8,
}

impl Kind {
    fn flag(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Int8 => "INT8",
        }
    }

    /// Operations of a link of a chain, by element.
    fn operations(self) -> f64 {
        match self {
            Self::F32 | Self::F16 => 2.0,
            Self::Int8 => 8.0,
        }
    }
}

/// An open device of its own.
struct Rig {
    device: wgpu::Device,
    queue: wgpu::Queue,
    n_groups: u32,
}

/// Measures the limits of a device in about a second. `most_bytes` bounds the buffers.
///
/// # Errors
/// When the device cannot be opened, lacks memory, or fails.
pub fn device_limits(adapter: &Adapter, most_bytes: u64) -> Result<DeviceLimits, BackendError> {
    let has_f16 = adapter.has_f16();
    let (device, queue) = adapter.open_for_limits(has_f16)?;
    let description = adapter.describe();
    let is_software = description.kind == AdapterKind::Software;
    let n_groups = if is_software { N_GROUPS_IN_SOFTWARE } else { N_GROUPS };
    let rig = Rig { device, queue, n_groups };
    let share = description.memory_bytes.map_or(u64::MAX, |bytes| bytes / 4);
    let largest = [MOST_BUFFER_BYTES, most_bytes, share, description.max_binding_bytes];
    let buffer_bytes = largest.into_iter().min().unwrap_or(MOST_BUFFER_BYTES) / 4096 * 4096;
    let scope = rig.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let from = rig.buffer(buffer_bytes);
    let to = rig.buffer(buffer_bytes.max(u64::from(n_groups * GROUP_THREADS) * 4));
    if ready(scope.pop()).is_some() {
        let n_bytes = usize::try_from(buffer_bytes).unwrap_or(usize::MAX);
        return Err(BackendError::OutOfMemory { what: "measured buffers", n_bytes });
    }
    let copied = rig.rate(&mut |n| {
        let mut encoder = rig.device.create_command_encoder(&Default::default());
        (0..n).for_each(|_| encoder.copy_buffer_to_buffer(&from, 0, &to, 0, buffer_bytes));
        rig.queue.submit([encoder.finish()]);
    })?;
    let values = Values { constants: Vec::new(), flags: Vec::new() };
    let pipeline = rig.pipeline(include_str!("shaders/limits/read.wgsl"), &values)?;
    let n_vectors = u32::try_from(buffer_bytes / 16).unwrap_or(u32::MAX);
    let params = [n_vectors, n_groups * GROUP_THREADS];
    let read = rig.rate(&mut |n| rig.run(&pipeline, [&from, &to], &params, n))?;
    let arithmetic = |kind| rig.operations(kind, [&from, &to]);
    Ok(DeviceLimits {
        buffer_bytes,
        read_bytes_per_s: buffer_bytes as f64 * read,
        copy_bytes_per_s: 2.0 * buffer_bytes as f64 * copied,
        f32_operations_per_s: arithmetic(Kind::F32)?,
        f16_operations_per_s: has_f16.then(|| arithmetic(Kind::F16)).transpose()?,
        int8_operations_per_s: arithmetic(Kind::Int8)?,
    })
}

impl Rig {
    fn buffer(&self, size: u64) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("measured"),
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    fn pipeline(&self, text: &str, values: &Values) -> Result<wgpu::ComputePipeline, BackendError> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let mut source = fill(text, values, &|_| "");
        // A directive of the language stands first.
        if let Some(at) = source.find("enable f16;") {
            source.replace_range(at..at + "enable f16;".len(), "");
            source.insert_str(0, "enable f16;\n");
        }
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("limits"),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let entry = |binding: u32, read_only| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let bindings = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("limits"),
            entries: &[entry(0, true), entry(1, false)],
        });
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some("limits"),
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 8,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("limits"),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        match ready(scope.pop()) {
            Some(error) => Err(BackendError::Device(error.to_string())),
            None => Ok(pipeline),
        }
    }

    /// Runs a kernel `n` times.
    fn run(&self, pipeline: &wgpu::ComputePipeline, buffers: [&wgpu::Buffer; 2], params: &[u32], n: u32) {
        let entries = [0, 1]
            .map(|i| wgpu::BindGroupEntry { binding: i as u32, resource: buffers[i].as_entire_binding() });
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.set_immediates(0, bytemuck::cast_slice(params));
        (0..n).for_each(|_| pass.dispatch_workgroups(self.n_groups, 1, 1));
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    fn operations(&self, kind: Kind, buffers: [&wgpu::Buffer; 2]) -> Result<f64, BackendError> {
        let values = Values { constants: Vec::new(), flags: vec![kind.flag()] };
        let pipeline = self.pipeline(include_str!("shaders/limits/arithmetic.wgsl"), &values)?;
        let n_links = self.n_groups * GROUP_THREADS * CHAINS * LANES;
        let rounds = self.rate(&mut |n| self.run(&pipeline, buffers, &[n.saturating_mul(16), 0], 1))?;
        Ok(rounds * 16.0 * f64::from(n_links) * kind.operations())
    }

    /// Repetitions a second of work that is run a number of times: the best of some runs, of a length at
    /// which starting them does not count.
    fn rate(&self, run: &mut dyn FnMut(u32)) -> Result<f64, BackendError> {
        let (mut n, mut best) = (1_u32, 0.0_f64);
        self.seconds(&mut || run(1))?;
        loop {
            let seconds = self.seconds(&mut || run(n))?;
            if seconds >= LEAST_SECONDS || n >= 1 << 24 {
                best = best.max(f64::from(n) / seconds.max(1e-9));
                break;
            }
            n *= 2;
        }
        for _ in 1..N_RUNS {
            let seconds = self.seconds(&mut || run(n))?;
            best = best.max(f64::from(n) / seconds.max(1e-9));
        }
        Ok(best)
    }

    fn seconds(&self, run: &mut dyn FnMut()) -> Result<f64, BackendError> {
        let started = Instant::now();
        run();
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|error| BackendError::Device(error.to_string()))?;
        Ok(started.elapsed().as_secs_f64())
    }
}
