//! An open device: its buffers, its compiled kernels, and the first fault that it reported. Does not know
//! operations.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_model::backend::BackendError;

use crate::adapters::{Adapter, AdapterDescription, MAX_PARAMS_BYTES};
use crate::kernel::Kernel;
use crate::ready::ready;

/// An open device, which backends share.
pub struct Device {
    pub(crate) inner: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    description: AdapterDescription,
    next_id: AtomicU64,
    kernels: Mutex<HashMap<Kernel, Arc<Compiled>>>,
    layouts: Mutex<HashMap<&'static str, Arc<Layout>>>,
    bindings: Mutex<Bindings>,
    fault: Arc<Fault>,
    /// Bytes of all buffers.
    used_bytes: AtomicU64,
    /// Bytes that were copied to the host.
    downloaded_bytes: AtomicU64,
    /// Number of buffers that may still be created, in tests of full memory.
    n_left: AtomicU64,
    /// Bytes that all buffers may take, in the same tests.
    most_bytes: AtomicU64,
    /// Edits the source of a kernel, in tests.
    edit: Option<Box<Edit>>,
}

/// An edit of a kernel's source.
pub(crate) type Edit = dyn Fn(Kernel, String) -> String + Send + Sync;

/// Bind groups by the access of their buffers and the buffers' ids.
type Bindings = HashMap<(&'static str, Vec<u64>), wgpu::BindGroup>;

/// A compiled kernel.
pub(crate) struct Compiled {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: Arc<Layout>,
}

/// Layout of a kernel's buffers.
pub(crate) struct Layout {
    access: &'static str,
    bindings: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// The first fault of a device.
#[derive(Default)]
struct Fault(Mutex<Option<BackendError>>);

impl Fault {
    fn note(&self, error: BackendError) {
        lock(&self.0).get_or_insert(error);
    }
}

/// A buffer of the device. Its memory is freed once it is dropped and no operation uses it.
pub(crate) struct Storage {
    pub(crate) id: u64,
    pub(crate) buffer: wgpu::Buffer,
    device: Arc<Device>,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({} bytes)", self.buffer.size())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.device.used_bytes.fetch_sub(self.buffer.size(), Ordering::Relaxed);
        lock(&self.device.bindings).retain(|(_, ids), _| !ids.contains(&self.id));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("description", &self.description).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// When the driver refuses, or the device lacks a feature that every kernel needs.
    pub fn open(adapter: &Adapter) -> Result<Arc<Self>, BackendError> {
        Self::open_edited(adapter, None)
    }

    /// Opens a device whose kernels are edited before they are compiled, so that a test can plant a fault.
    ///
    /// # Errors
    /// Errors of [`Self::open`].
    #[doc(hidden)]
    pub fn open_with_edits(
        adapter: &Adapter,
        edit: impl Fn(&str, String) -> String + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BackendError> {
        Self::open_edited(adapter, Some(Box::new(move |kernel: Kernel, source| edit(kernel.name(), source))))
    }

    fn open_edited(adapter: &Adapter, edit: Option<Box<Edit>>) -> Result<Arc<Self>, BackendError> {
        let (inner, queue) = adapter.open()?;
        let fault = Arc::new(Fault::default());
        let noted = Arc::clone(&fault);
        inner.on_uncaptured_error(Arc::new(move |error: wgpu::Error| noted.note(backend_error(&error))));
        let noted = Arc::clone(&fault);
        inner.set_device_lost_callback(move |reason, message| {
            let reason = match reason {
                wgpu::DeviceLostReason::Destroyed => "it was closed",
                _ => "it was lost",
            };
            noted.note(BackendError::Device(format!("{reason} {message}").trim().to_owned()));
        });
        Ok(Arc::new(Self {
            inner,
            queue,
            description: adapter.describe(),
            next_id: AtomicU64::new(0),
            kernels: Mutex::default(),
            layouts: Mutex::default(),
            bindings: Mutex::default(),
            fault,
            used_bytes: AtomicU64::new(0),
            downloaded_bytes: AtomicU64::new(0),
            n_left: AtomicU64::new(u64::MAX),
            most_bytes: AtomicU64::new(u64::MAX),
            edit,
        }))
    }

    /// Description of the device.
    pub fn description(&self) -> &AdapterDescription {
        &self.description
    }

    /// Bytes of the device's memory that no buffer takes; `None` if the driver does not report its size.
    pub fn available_bytes(&self) -> Option<u64> {
        let used = self.used_bytes.load(Ordering::Relaxed);
        Some(self.description.memory_bytes?.saturating_sub(used))
    }

    /// Bytes that were copied to the host so far.
    pub fn downloaded_bytes(&self) -> u64 {
        self.downloaded_bytes.load(Ordering::Relaxed)
    }

    /// Counts a copy to the host.
    pub(crate) fn note_download(&self, n_bytes: usize) {
        self.downloaded_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed);
    }

    /// Refuses memory after this number of further buffers.
    #[doc(hidden)]
    pub fn refuse_memory_after(&self, n_buffers: u64) {
        self.n_left.store(n_buffers, Ordering::Relaxed);
    }

    /// Refuses memory beyond this number of bytes of all buffers.
    #[doc(hidden)]
    pub fn refuse_memory_beyond(&self, n_bytes: u64) {
        self.most_bytes.store(n_bytes, Ordering::Relaxed);
    }

    /// Bytes of all buffers.
    #[doc(hidden)]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Closes the device, as if it had been lost.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.inner.destroy();
    }

    /// The first fault of the device, if there was one. A device with a fault is not used again.
    ///
    /// # Errors
    /// The device's fault, if it has failed.
    pub fn check(&self) -> Result<(), BackendError> {
        lock(&self.fault.0).as_ref().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// A buffer of at least `n_bytes` that kernels read and write. Its content is zero.
    ///
    /// # Errors
    /// When memory does not suffice, or a kernel could not reach all of it.
    pub(crate) fn storage(
        self: &Arc<Self>,
        what: &'static str,
        n_bytes: usize,
    ) -> Result<Storage, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        if n_bytes as u64 > self.description.max_binding_bytes {
            return Err(BackendError::OutOfMemory { what, n_bytes });
        }
        self.create(what, n_bytes, usage)
    }

    /// A buffer that the host reads.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub(crate) fn staging(self: &Arc<Self>, n_bytes: usize) -> Result<Storage, BackendError> {
        self.create("downloads", n_bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    fn create(
        self: &Arc<Self>,
        what: &'static str,
        n_bytes: usize,
        usage: wgpu::BufferUsages,
    ) -> Result<Storage, BackendError> {
        self.check()?;
        let take = |left: u64| left.checked_sub(1);
        let is_beyond =
            self.used_bytes().saturating_add(n_bytes as u64) > self.most_bytes.load(Ordering::Relaxed);
        if is_beyond || self.n_left.try_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(BackendError::OutOfMemory { what, n_bytes });
        }
        let out_of_memory = self.inner.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let invalid = self.inner.push_error_scope(wgpu::ErrorFilter::Validation);
        let size = (n_bytes.max(16) as u64).next_multiple_of(16);
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.inner.create_buffer(&descriptor);
        let (invalid, out_of_memory) = (ready(invalid.pop()), ready(out_of_memory.pop()));
        if invalid.is_some() || out_of_memory.is_some() {
            self.check()?;
            return Err(BackendError::OutOfMemory { what, n_bytes });
        }
        self.used_bytes.fetch_add(buffer.size(), Ordering::Relaxed);
        Ok(Storage { id: self.new_id(), buffer, device: Arc::clone(self) })
    }

    /// A buffer with these words.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub(crate) fn storage_of(
        self: &Arc<Self>,
        what: &'static str,
        words: &[u32],
    ) -> Result<Storage, BackendError> {
        let storage = self.storage(what, size_of_val(words))?;
        self.queue.write_buffer(&storage.buffer, 0, bytemuck::cast_slice(words));
        Ok(storage)
    }

    /// A buffer as by [`Self::storage`], or the smallest one if memory does not suffice: the fault is noted
    /// and reported where operations report theirs.
    pub(crate) fn storage_or_empty(self: &Arc<Self>, what: &'static str, n_bytes: usize) -> Storage {
        self.storage(what, n_bytes).unwrap_or_else(|error| {
            self.fault.note(error);
            let descriptor = wgpu::BufferDescriptor {
                label: Some(what),
                size: 16,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            };
            let buffer = self.inner.create_buffer(&descriptor);
            self.used_bytes.fetch_add(buffer.size(), Ordering::Relaxed);
            Storage { id: self.new_id(), buffer, device: Arc::clone(self) }
        })
    }

    /// An id that is unique on the device.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a fault of an operation that reports none itself.
    pub(crate) fn note(&self, error: BackendError) {
        self.fault.note(error);
    }

    /// Hands the writes so far to the device, so that their copies on the host are freed.
    pub(crate) fn flush_writes(&self) {
        self.queue.submit([]);
        let _ = self.inner.poll(wgpu::PollType::wait_indefinitely());
    }

    /// A kernel, compiled at its first use.
    pub(crate) fn kernel(&self, kernel: Kernel) -> Arc<Compiled> {
        let mut kernels = lock(&self.kernels);
        if let Some(compiled) = kernels.get(&kernel) {
            return Arc::clone(compiled);
        }
        let mut source = kernel.source();
        if let Some(edit) = &self.edit {
            source = edit(kernel, source);
        }
        let layout = self.layout(kernel.access());
        let module = self.inner.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(kernel.name()),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = self.inner.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name()),
            layout: Some(&layout.pipeline),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &[],
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        let compiled = Arc::new(Compiled { pipeline, layout });
        kernels.insert(kernel, Arc::clone(&compiled));
        compiled
    }

    fn layout(&self, access: &'static str) -> Arc<Layout> {
        let make = || {
            let entry = |(binding, access): (usize, char)| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: access == 'r' },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            let entries: Vec<_> = access.chars().enumerate().map(entry).collect();
            let bindings = self.inner.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some(access),
                entries: &entries,
            });
            let pipeline = self.inner.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(access),
                bind_group_layouts: &[Some(&bindings)],
                immediate_size: MAX_PARAMS_BYTES,
            });
            Arc::new(Layout { access, bindings, pipeline })
        };
        Arc::clone(lock(&self.layouts).entry(access).or_insert_with(make))
    }

    /// The bind group of these buffers.
    pub(crate) fn bind(&self, layout: &Layout, buffers: &[&Storage]) -> wgpu::BindGroup {
        let key = (layout.access, buffers.iter().map(|storage| storage.id).collect::<Vec<_>>());
        let make = || {
            let entries: Vec<_> = buffers
                .iter()
                .enumerate()
                .map(|(binding, storage)| wgpu::BindGroupEntry {
                    binding: binding as u32,
                    resource: storage.buffer.as_entire_binding(),
                })
                .collect();
            self.inner.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &layout.bindings,
                entries: &entries,
            })
        };
        lock(&self.bindings).entry(key).or_insert_with(make).clone()
    }
}

fn backend_error(error: &wgpu::Error) -> BackendError {
    match error {
        wgpu::Error::OutOfMemory { .. } => BackendError::OutOfMemory { what: "a command", n_bytes: 0 },
        error => BackendError::Device(error.to_string()),
    }
}
