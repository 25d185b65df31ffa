//! Devices that fail: typed errors, and another device for the next executor.

use std::sync::Arc;

use throng_core::request::SamplingParams;
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_gpu::{Device, GpuBackend, GpuModel};
use throng_kernels::quant::Format;
use throng_kernels::threads::ThreadPool;
use throng_model::backend::{BackendError, DeviceMemory, DeviceOps, Norm};
use throng_model::load::{LoadError, load_bytes};
use throng_model::{LoadOptions, LoadedModel};
use throng_testkit::one_sequence::{LIMITS, OneSequence};
use throng_testkit::tiny_model::TinyModel;

use crate::harness::{adapter, backend, device};

fn model() -> LoadedModel {
    let bytes = TinyModel::default().gguf(Format::Q8_0);
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    load_bytes("tiny", &bytes, &options, &mut |_| {}).expect("the tiny model loads")
}

/// The greedy tokens after a prompt.
pub fn tokens(executor: &mut dyn Executor) -> Vec<u32> {
    let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
    let mut sequence = OneSequence::new(&[1, 2, 3, 4, 5], Arc::new(sampling));
    sequence.prefill(executor, 3, |_| {});
    sequence.decode(executor, 6);
    sequence.output().to_vec()
}

#[test]
fn a_lost_device_fails_its_steps_and_the_next_executor_has_another_one() {
    if adapter().is_none() {
        return;
    }
    let model = model();
    let gpu = GpuModel::open(0, true, Arc::new(ThreadPool::new(1))).expect("the device opens");
    let mut executor = gpu.executor(&model, &LIMITS).expect("an executor");
    let expected = tokens(&mut *executor);
    gpu.device().lose();
    let mut sequence = OneSequence::new(&[1, 2, 3], Arc::default());
    let failed = executor.execute(sequence.next_batch(&*executor), &mut Default::default());
    assert!(matches!(failed, Err(ExecutorError::Device(_))), "{failed:?}");
    drop(executor);
    let mut executor = gpu.executor(&model, &LIMITS).expect("an executor on a device that was opened again");
    assert_eq!(tokens(&mut *executor), expected);
}

#[test]
fn full_memory_is_an_error_at_each_buffer() {
    let Some(device) = device() else { return };
    let model = model();
    for n_buffers in 0.. {
        device.refuse_memory_after(n_buffers);
        let made = GpuBackend::new(&device).map_err(LoadError::from);
        let made = made.and_then(|backend| model.runner_with(backend, &LIMITS));
        device.refuse_memory_after(u64::MAX);
        match made {
            Ok(_) => {
                assert!(n_buffers > 20, "only {n_buffers} buffers");
                break;
            }
            Err(LoadError::Backend(BackendError::OutOfMemory { .. }) | LoadError::Tensors(_)) => {}
            Err(error) => panic!("after {n_buffers} buffers: {error}"),
        }
        device.check().expect("a refused buffer is no fault of the device");
    }
}

#[test]
fn full_memory_in_a_step_fails_the_step() {
    let Some(device) = device() else { return };
    let mut runner = model().runner_with(backend(&device), &LIMITS).expect("a runner");
    device.refuse_memory_after(0);
    let mut sequence = OneSequence::new(&[1, 2, 3], Arc::default());
    let failed = runner.execute(sequence.next_batch(&runner), &mut Default::default());
    assert!(matches!(failed, Err(ExecutorError::OutOfMemory(_))), "{failed:?}");
}

#[test]
fn an_invalid_kernel_is_an_error_with_the_drivers_words() {
    let Some(adapter) = adapter() else { return };
    let device = Device::open_with_edits(&adapter, |_, _| "this is no kernel".to_owned()).expect("it opens");
    let mut backend = GpuBackend::new(&device).expect("a backend");
    let (mut x, mut out) = (backend.buffer(1, 8).expect("memory"), backend.buffer(1, 8).expect("memory"));
    let gain = backend.vector(&[1.0; 8]).expect("memory");
    backend.write_rows(&mut x, &[1.0; 8]);
    backend.set_rows(&mut out, 1);
    backend.norm_rows(&x, Norm::rms(&gain, 1e-5), &mut out);
    let failed = backend.download(&mut out).map(|rows| rows.to_vec());
    let message = failed.expect_err("the kernel is invalid").to_string();
    assert!(message.starts_with("the device failed: Validation Error"), "{message}");
    // Later operations fail with the first error and do not panic.
    backend.norm_rows(&x, Norm::rms(&gain, 1e-5), &mut out);
    assert_eq!(backend.download(&mut out).map(|rows| rows.to_vec()).expect_err("still").to_string(), message);
}
