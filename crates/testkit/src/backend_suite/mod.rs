//! Test suite for every backend: each operation against the reference backend within a tolerance stated with
//! its reason, and the invariance that the trait demands, bit for bit. Does not know how a backend computes.
//!
//! A new backend's test is one call of [`check`].

mod attention;
mod chosen;
mod experts;
mod low_rank;
mod matmul;
mod recurrent;
mod relative;
mod rows;

use fastrand::Rng;
use throng_model::backend::Backend;
use throng_model::batch_input::BatchInput;
use throng_model::reference_backend::ReferenceBackend;

use crate::nightly::amount;

/// An operation on some inputs. Items must not influence each other: rows of a buffer, or sequences.
trait Op {
    /// Name in messages.
    fn name(&self) -> String;

    /// Number of items.
    fn n_items(&self) -> usize;

    /// The results of these items, one after the other.
    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32>;

    /// Bounds on the difference of results from the reference, one a result of all items.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32>;
}

/// Runs the suite on the backends that `make` returns; it is called with several thread counts, which must
/// not change results.
///
/// # Panics
/// When a result is too far from the reference, or violates an invariance.
pub fn check<B: Backend>(make: impl Fn(usize) -> B) {
    Part::ALL.into_iter().for_each(|part| check_part(part, &make));
}

/// A part of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Operations on rows.
    Rows,
    /// Products and embeddings in every format of weights.
    Products,
    /// Mixtures of experts and products of heads.
    Experts,
    /// Low-rank products of adapters.
    LowRank,
    /// Attention over the cache.
    Attention,
    /// Attention over chosen positions.
    Chosen,
    /// Attention with scores by distance.
    Relative,
    /// Recurrent layers.
    Recurrent,
}

impl Part {
    /// All parts of the suite.
    pub const ALL: [Self; 8] = [
        Self::Rows,
        Self::Products,
        Self::Experts,
        Self::LowRank,
        Self::Attention,
        Self::Chosen,
        Self::Relative,
        Self::Recurrent,
    ];
}

/// Runs one part of the suite, like [`check`].
///
/// # Panics
/// When a result is too far from the reference, or violates an invariance.
pub fn check_part<B: Backend>(part: Part, make: impl Fn(usize) -> B) {
    let (backends, rng) = (&mut [make(1), make(2), make(3)], &mut Rng::with_seed(11));
    match part {
        Part::Rows => rows::check_all(backends, rng),
        Part::Products => matmul::check_all(backends, rng),
        Part::Experts => experts::check_all(backends, rng),
        Part::LowRank => low_rank::check_all(backends, rng),
        Part::Attention => attention::check_all(backends, rng),
        Part::Chosen => chosen::check_all(backends, rng),
        Part::Relative => relative::check_all(backends, rng),
        Part::Recurrent => recurrent::check_all(backends, rng),
    }
}

/// Checks one operation: near the reference, and the same bits for an item alone, beside others and on more
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
    let alone = items_alone(all.len());
    let checks_all = alone.len() == all.len();
    let mut end = 0;
    for item in alone {
        let result = op.run(&mut backends[item % 3], &[item]);
        let first = if checks_all { end } else { item * result.len() };
        end = first + result.len();
        assert!(same_bits(&found[first..end], &result), "{name}: item {item} depends on the others");
    }
    assert_eq!(end, found.len(), "{name}: items alone give as much as together");
}

/// The items of `n` that are also computed alone: all of a few; of many rows of one width, a selection from
/// all places of a tile with the first and the last, because each makes a backend pack its weights anew.
fn items_alone(n: usize) -> Vec<usize> {
    const FEW: usize = 12;
    if n <= FEW {
        return (0..n).collect();
    }
    let most = amount(5, FEW);
    (0..n - 1).step_by(n.div_ceil(most - 1)).chain([n - 1]).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Numbers between -1 and 1.
fn random(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| 2.0 * rng.f32() - 1.0).collect()
}

/// A buffer with the given rows of `data`.
fn buffer<B: Backend>(backend: &mut B, data: &[f32], cols: usize, rows: &[usize]) -> B::Buffer {
    let mut buffer = backend.buffer(rows.len(), cols).expect("there is memory");
    let given: Vec<f32> = rows.iter().flat_map(|&r| &data[r * cols..][..cols]).copied().collect();
    backend.write_rows(&mut buffer, &given);
    buffer
}

fn batch<B: Backend>(backend: &mut B, input: &BatchInput) -> B::Batch {
    let mut batch = backend.batch().expect("there is memory");
    backend.upload(input, &mut batch);
    batch
}

/// A buffer for the results.
fn output<B: Backend>(backend: &mut B, n_rows: usize, cols: usize) -> B::Buffer {
    let mut buffer = backend.buffer(n_rows, cols).expect("there is memory");
    backend.set_rows(&mut buffer, n_rows);
    buffer
}

fn download<B: Backend>(backend: &mut B, buffer: &mut B::Buffer) -> Vec<f32> {
    backend.download(buffer).expect("the device works").to_vec()
}
