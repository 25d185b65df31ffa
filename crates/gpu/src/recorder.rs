//! The operations since the last submission, in order. Does not know their purpose.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;

use throng_model::backend::BackendError;

use crate::device::{Device, Storage};
use crate::kernel::Kernel;

/// Records operations and submits them.
pub(crate) struct Recorder {
    device: Arc<Device>,
    /// The pass ends before its encoder.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
}

/// Maximum number of workgroups along an axis.
const MAX_GROUPS: u32 = 65535;

/// Workgroups along two axes, at least `n`: a kernel numbers them `x + y * n_x`.
pub(crate) fn linear_groups(n: usize) -> [u32; 3] {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    if n <= MAX_GROUPS { [n, 1, 1] } else { [1 << 15, n.div_ceil(1 << 15), 1] }
}

impl Recorder {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self { device, pass: None, encoder: None }
    }

    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let device = &self.device;
        self.encoder.get_or_insert_with(|| device.inner.create_command_encoder(&Default::default()))
    }

    /// Records a run of a kernel.
    pub(crate) fn run(&mut self, kernel: Kernel, buffers: &[&Storage], params: &[u32], groups: [u32; 3]) {
        if groups.contains(&0) {
            return;
        }
        let compiled = self.device.kernel(kernel);
        let bindings = self.device.bind(&compiled.layout, buffers);
        if self.pass.is_none() {
            let pass = self.encoder().begin_compute_pass(&Default::default()).forget_lifetime();
            self.pass = Some(pass);
        }
        let pass = self.pass.as_mut().expect("a pass was begun");
        pass.set_pipeline(&compiled.pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.set_immediates(0, bytemuck::cast_slice(params));
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
    }

    /// Records a copy of bytes between two buffers.
    pub(crate) fn copy(&mut self, from: (&Storage, usize), to: (&Storage, usize), n_bytes: usize) {
        if n_bytes > 0 {
            let encoder = self.encoder();
            encoder.copy_buffer_to_buffer(
                &from.0.buffer,
                from.1 as u64,
                &to.0.buffer,
                to.1 as u64,
                n_bytes as u64,
            );
        }
    }

    /// Submits the recorded operations, without waiting.
    pub(crate) fn submit(&mut self) {
        self.pass = None;
        if let Some(encoder) = self.encoder.take() {
            self.device.queue.submit([encoder.finish()]);
        }
    }

    /// Writes words to a buffer after all operations so far. Operations that were recorded are submitted
    /// first.
    pub(crate) fn write(&mut self, to: &Storage, at_bytes: usize, bytes: &[u8]) {
        self.submit();
        self.device.queue.write_buffer(&to.buffer, at_bytes as u64, bytes);
    }

    /// Copies ranges of bytes to the host, one after the other, once all operations before have finished.
    ///
    /// # Errors
    /// When the device failed.
    pub(crate) fn read(
        &mut self,
        ranges: &[(&Storage, Range<usize>)],
        staging: &Storage,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        let mut at = 0;
        for (from, range) in ranges {
            self.copy((from, range.start), (staging, at), range.len());
            at += range.len();
        }
        self.submit();
        self.device.check()?;
        if at == 0 {
            return Ok(());
        }
        self.device.note_download(at);
        let slice = staging.buffer.slice(..at as u64);
        let (sender, receiver) = channel();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            let _ = sender.send(result);
        });
        let polled = self.device.inner.poll(wgpu::PollType::wait_indefinitely());
        self.device.check()?;
        let failed = |why: String| BackendError::Device(why);
        polled.map_err(|error| failed(error.to_string()))?;
        receiver
            .try_recv()
            .map_err(|_| failed("a copy to the host did not end".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        let view = slice.get_mapped_range().map_err(|error| failed(error.to_string()))?;
        out.copy_from_slice(&view[..at]);
        drop(view);
        staging.buffer.unmap();
        self.device.check()
    }
}
