//! Small computations that check whether a device works, and measure it. Does not know models.

use std::time::Instant;

use throng_checkpoint::TensorView;
use throng_kernels::quant::{Format, quantize_row};
use throng_model::backend::{Backend, BackendError, DeviceMemory, DeviceOps, MatrixRole};

use crate::GpuBackend;
use crate::adapters::Adapter;
use crate::device::Device;

/// Opens a device and checks the result of a product.
///
/// # Errors
/// When the device cannot be opened, fails, or computes wrongly.
pub fn compute_check(adapter: &Adapter) -> Result<(), BackendError> {
    let mut backend = GpuBackend::new(&Device::open(adapter)?)?;
    let (rows, cols) = (48, 96);
    let weights: Vec<f32> = (0..rows * cols).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
    let matrix = TensorView {
        name: "check",
        shape: &[rows, cols],
        format: Format::F32,
        data: bytemuck::cast_slice(&weights),
    };
    let matrix = backend.matrix(MatrixRole::Router, &[matrix])?;
    // Few rows and many are products by different kernels; all sums are whole numbers.
    for n in [1, 33] {
        let x: Vec<f32> = (0..n * cols).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
        let (mut input, mut output) = (backend.buffer(n, cols)?, backend.buffer(n, rows)?);
        backend.write_rows(&mut input, &x);
        backend.set_rows(&mut output, n);
        backend.matmul(&input, &matrix, None, &mut output);
        let found = backend.download(&mut output)?;
        for (x, found) in x.chunks(cols).zip(found.chunks(rows)) {
            for (w, &found) in weights.chunks(cols).zip(found) {
                let expected: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                if found != expected {
                    let reason = format!("a product of {n} rows is wrong: {found} in place of {expected}");
                    return Err(BackendError::Device(reason));
                }
            }
        }
    }
    Ok(())
}

/// Rows and columns of the matrices that are measured.
const SIZE: usize = 4096;
/// Number of products in a row: the matrices together exceed the processor's caches.
const N_MATRICES: usize = 4;
const N_ROUNDS: usize = 3;

/// Shortest time in seconds of a product of `n_rows` with a Q8_0 matrix of 4096 rows and columns.
///
/// # Errors
/// When the backend fails.
pub fn product_seconds<B: Backend>(backend: &mut B, n_rows: usize) -> Result<f64, BackendError> {
    let row: Vec<f32> = (0..SIZE).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let row_bytes = Format::Q8_0.bytes_of(SIZE).expect("whole blocks");
    let mut data = vec![0; row_bytes];
    quantize_row(Format::Q8_0, &row, &mut data);
    let data = data.repeat(SIZE);
    let view = TensorView { name: "measured", shape: &[SIZE, SIZE], format: Format::Q8_0, data: &data };
    let matrices = (0..N_MATRICES).map(|_| backend.matrix(MatrixRole::Router, std::slice::from_ref(&view)));
    let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
    let (mut input, mut output) = (backend.buffer(n_rows, SIZE)?, backend.buffer(n_rows, SIZE)?);
    backend.write_rows(&mut input, &row.repeat(n_rows));
    let mut shortest = f64::INFINITY;
    for _ in 0..=N_ROUNDS {
        let started = Instant::now();
        for matrix in &matrices {
            backend.set_rows(&mut output, n_rows);
            backend.matmul(&input, matrix, None, &mut output);
        }
        backend.download(&mut output)?;
        shortest = shortest.min(started.elapsed().as_secs_f64() / N_MATRICES as f64);
    }
    Ok(shortest)
}
