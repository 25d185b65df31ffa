//! One suite for every backend: each operation is compared with the reference backend within a tolerance whose reason
//! is stated, and the invariance that the trait requires is checked bit for bit. Does not know how a backend computes.
//!
//! A new backend's test is one call of [`check`].

mod attention;
mod matmul;
mod rows;

use fastrand::Rng;
use throng_kernels::quant::Format;
use throng_model::backend::Backend;
use throng_model::batch_input::BatchInput;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::weights::TensorView;

/// An operation on some inputs. Its items must not influence each other: rows of a buffer, or sequences.
trait Op {
    /// The name in messages.
    fn name(&self) -> String;

    /// The number of items.
    fn n_items(&self) -> usize;

    /// The results of these items, one after the other.
    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32>;

    /// The tolerance of each result of all items.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32>;
}

/// Runs the suite on the backends that `make` returns for a number of threads, which must not change results either.
///
/// # Panics
/// When a result is outside its tolerance, or depends on other items or on the number of threads.
pub fn check<B: Backend>(make: impl Fn(usize) -> B) {
    let mut backends = [make(1), make(2), make(3)];
    let mut rng = Rng::with_seed(11);
    rows::check_all(&mut backends, &mut rng);
    matmul::check_all(&mut backends, &mut rng);
    attention::check_all(&mut backends, &mut rng);
}

/// Checks one operation: within its tolerance, and the same bits for an item alone, with other items and on more
/// threads.
fn check_op<B: Backend>(backends: &mut [B], op: &impl Op) {
    let all: Vec<usize> = (0..op.n_items()).collect();
    let name = op.name();
    let reference = op.run(&mut ReferenceBackend, &all);
    let found = op.run(&mut backends[0], &all);
    assert_eq!(found.len(), reference.len(), "{name}");
    for (i, tolerance) in op.tolerances(&reference).into_iter().enumerate() {
        let distance = (found[i] - reference[i]).abs();
        let (found, reference) = (found[i], reference[i]);
        assert!(distance <= tolerance, "{name}: element {i} is {found}, not {reference} ± {tolerance}");
    }
    for backend in &mut *backends {
        assert!(same_bits(&found, &op.run(backend, &all)), "{name}: depends on the number of threads");
    }
    let mut first = 0;
    for item in all.iter().copied() {
        let alone = op.run(&mut backends[item % 3], &[item]);
        let together = &found[first..first + alone.len()];
        assert!(same_bits(together, &alone), "{name}: item {item} depends on its company");
        first += alone.len();
    }
    assert_eq!(first, found.len(), "{name}: items alone give as much as together");
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Numbers between -1 and 1.
fn random(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| 2.0 * rng.f32() - 1.0).collect()
}

/// A buffer with the given rows, uploaded to the device as an embedding table.
fn buffer<B: Backend>(backend: &mut B, data: &[f32], cols: usize, rows: &[usize]) -> B::Buffer {
    let mut buffer = backend.buffer(rows.len(), cols).expect("there is room");
    let table = float_matrix(backend, data, cols);
    let batch = batch(
        backend,
        &BatchInput { tokens: rows.iter().map(|&r| r as u32).collect(), ..Default::default() },
    );
    backend.set_rows(&mut buffer, rows.len());
    backend.embed(&table, &batch, 1.0, &mut buffer);
    buffer
}

fn batch<B: Backend>(backend: &mut B, input: &BatchInput) -> B::Batch {
    let mut batch = backend.batch().expect("there is room");
    backend.upload(input, &mut batch);
    batch
}

fn float_matrix<B: Backend>(backend: &B, data: &[f32], cols: usize) -> B::Matrix {
    let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = [data.len() / cols, cols];
    let view = TensorView { name: "table", shape: &shape, format: Format::F32, data: &bytes };
    backend.matrix(&[view]).expect("there is room")
}

/// An empty buffer for the results.
fn output<B: Backend>(backend: &mut B, n_rows: usize, cols: usize) -> B::Buffer {
    let mut buffer = backend.buffer(n_rows, cols).expect("there is room");
    backend.set_rows(&mut buffer, n_rows);
    buffer
}

fn download<B: Backend>(backend: &mut B, buffer: &mut B::Buffer) -> Vec<f32> {
    backend.download(buffer).expect("the device works").to_vec()
}
