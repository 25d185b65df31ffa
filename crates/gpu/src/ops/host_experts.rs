//! Mixtures of experts on the processor beside a model on the device: rows and their router logits cross to
//! the host, and the sums of the experts come back. Does not know which layers have experts.

use std::sync::Arc;

use throng_kernels::threads::ThreadPool;
use throng_model::backend::host_tensor::HostTensor;
use throng_model::backend::{BackendError, DeviceMemory, DeviceOps, Expert, Linear, Router};
use throng_model::cpu_backend::CpuBackend;
use throng_model::shapes::Activation;

use crate::GpuBackend;
use crate::buffers::{Buffer, Vector};
use crate::weights::Matrix;

/// The processor's backend, with the buffers of a mixture.
pub(crate) struct HostExperts {
    pub(crate) cpu: CpuBackend,
    /// Rows, their router logits, and the sums of their experts.
    buffers: Option<[HostTensor; 3]>,
    downloaded: Vec<f32>,
}

impl HostExperts {
    pub(crate) fn new(threads: &Arc<ThreadPool>) -> Self {
        Self { cpu: CpuBackend::on(Arc::clone(threads)), buffers: None, downloaded: Vec::new() }
    }

    /// Buffers for rows of these numbers of columns, at least `max_rows` each.
    fn buffers(&mut self, max_rows: usize, cols: [usize; 3]) -> Result<&mut [HostTensor; 3], BackendError> {
        let fit = |buffers: &[HostTensor; 3]| buffers.iter().zip(cols).all(|(b, cols)| b.cols() == cols);
        // A buffer has as many rows as its layer's activations can have, so it is made once for a model.
        if !self.buffers.as_ref().is_some_and(fit) {
            let [x, logits, out] = cols.map(|cols| self.cpu.buffer(max_rows, cols));
            self.buffers = Some([x?, logits?, out?]);
        }
        Ok(self.buffers.as_mut().expect("they were made"))
    }
}

/// Experts whose matrices were made on the processor.
///
/// # Errors
/// When some were not.
pub(crate) fn host_experts(
    experts: Vec<Expert<GpuBackend>>,
) -> Result<Vec<Expert<CpuBackend>>, BackendError> {
    let linear = |linear: Linear<GpuBackend>| {
        let Matrix { host, .. } = linear.weight;
        let weight = host.ok_or_else(|| BackendError::Unsupported("experts on two devices".to_owned()))?;
        Ok::<_, BackendError>(Linear { weight, bias: linear.bias.map(|Vector(_, values)| values) })
    };
    let expert = |Expert { gate_up, down }: Expert<GpuBackend>| {
        Ok(Expert { gate_up: linear(gate_up)?, down: linear(down)? })
    };
    experts.into_iter().map(expert).collect()
}

impl GpuBackend {
    /// Runs a mixture on the processor. The device waits for it.
    pub(crate) fn run_host_experts(
        &mut self,
        x: &Buffer,
        router: Router<'_, Self>,
        experts: &Vec<Expert<CpuBackend>>,
        activation: Activation,
        out: &mut Buffer,
    ) {
        let Some(mut host) = self.host_experts.take() else {
            let reason = "experts on the processor without its backend".to_owned();
            return self.note(Err(BackendError::Unsupported(reason)));
        };
        let result = self.compute_on_host(&mut host, x, router, experts, activation, out);
        self.host_experts = Some(host);
        self.note(result);
    }

    fn compute_on_host(
        &mut self,
        host: &mut HostExperts,
        x: &Buffer,
        Router { logits, bias, scales, routing }: Router<'_, Self>,
        experts: &Vec<Expert<CpuBackend>>,
        activation: Activation,
        out: &mut Buffer,
    ) -> Result<(), BackendError> {
        let (n_rows, of_x) = (x.n_rows, x.n_rows * x.cols);
        if n_rows == 0 {
            return Ok(());
        }
        let mut rows = std::mem::take(&mut host.downloaded);
        rows.resize(of_x + n_rows * logits.cols, 0.0);
        let ranges = [(&x.storage, 0..of_x * 4), (&logits.storage, 0..n_rows * logits.cols * 4)];
        self.read(&ranges, bytemuck::cast_slice_mut(&mut rows))?;
        host.buffers(x.max_rows, [x.cols, logits.cols, out.cols])?;
        let HostExperts { cpu, buffers, downloaded } = host;
        let [host_x, host_logits, host_out] = buffers.as_mut().expect("they were made");
        cpu.write_rows(host_x, &rows[..of_x]);
        cpu.write_rows(host_logits, &rows[of_x..]);
        cpu.set_rows(host_out, n_rows);
        let router = Router {
            logits: &*host_logits,
            bias: bias.map(|Vector(_, values)| values),
            scales: scales.map(|Vector(_, values)| values),
            routing,
        };
        cpu.mixture_of_experts(host_x, router, experts, activation, host_out);
        let sums = cpu.download(host_out)?;
        self.recorder.write(&out.storage, 0, bytemuck::cast_slice(sums));
        *downloaded = rows;
        Ok(())
    }
}
