//! The recurrence that the gated delta rule and the state space model share: a matrix that decays with every token, gets a product of a
//! key and a value, and is multiplied with a query. Does not know where keys, values and gates come from.

use super::gates::GateScratch;
use super::state::{COLUMNS, StateLayer, StateSpan, StateWriter, sequences};
use crate::memory::Disjoint;
use crate::rows::{load_part, store_part};
use crate::simd::{Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Partial sums of a product with a state: the element number `i` is added to number `i % 4`.
const SUMS: usize = 4;

/// Where the heads of all tokens stand in a row.
pub(super) struct Scan<'a> {
    /// Columns of a row.
    pub(super) stride: usize,
    /// The first column of a head's query (what is read of the state).
    pub(super) query_col: &'a (dyn Fn(usize) -> usize + Sync),
    /// The first column of a head's key (where it is written).
    pub(super) key_col: &'a (dyn Fn(usize) -> usize + Sync),
    /// The first column of the values of all heads, adjacent.
    pub(super) value_col: usize,
    /// What of its value a head adds to its output. Without, the delta rule: the value is first lessened by what the state gives for
    /// the key.
    pub(super) skip: Option<&'a [f32]>,
}

/// Runs the heads of all sequences. `gates` has decay and strength of each head and row.
pub(super) fn scan(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    heads: &Scan<'_>,
    (x, gates): (&[f32], &GateScratch),
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let (shape, out) = (*layer.shape(), Disjoint::new(out));
    let (states, sequences) = (layer.write(spans), sequences(spans));
    let groups = shape.n_heads * shape.n_head_groups();
    pool.for_each(sequences.len() * groups, |item| {
        let (sequence, group) = (item / groups, item % groups);
        let head = group / shape.n_head_groups();
        let first = group % shape.n_head_groups() * COLUMNS;
        let head_run = HeadRun {
            spans: sequences[sequence],
            states: &states,
            state_at: shape.heads_at() + group * shape.group_len(),
            key_dim: shape.key_dim,
            x,
            stride: heads.stride,
            cols: [
                (heads.query_col)(head),
                (heads.key_col)(head),
                heads.value_col + head * shape.value_dim + first,
            ],
            n_cols: (shape.value_dim - first).min(COLUMNS),
            gates: |row| gates.of(row, head),
            skip: heads.skip.map(|skip| skip[head]),
            out: &out,
            out_stride: shape.n_heads * shape.value_dim,
            out_col: head * shape.value_dim + first,
        };
        // SAFETY: the sequence's rows and state, in these columns, belong to this call.
        unsafe { pool.isa().run(head_run) };
    });
}

/// One sequence and sixteen columns of one head.
///
/// # Safety
/// Nothing else may use the sequence's rows of `out` and its state in these columns.
struct HeadRun<'a, G: Fn(usize) -> (f32, f32)> {
    spans: &'a [StateSpan],
    states: &'a StateWriter<'a>,
    /// Where the columns stand in a state, `[key_dim, 16]`.
    state_at: usize,
    key_dim: usize,
    x: &'a [f32],
    stride: usize,
    /// The first columns of query, key and values.
    cols: [usize; 3],
    /// Columns of the values, at most sixteen.
    n_cols: usize,
    /// Decay and strength of a row.
    gates: G,
    skip: Option<f32>,
    out: &'a Disjoint<'a, f32>,
    out_stride: usize,
    out_col: usize,
}

impl<G: Fn(usize) -> (f32, f32)> Kernel for HeadRun<'_, G> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for span in self.spans {
            // SAFETY: the state is the caller's word.
            let state = unsafe { self.states.begin(span, self.state_at, self.key_dim * COLUMNS) };
            for row in span.first_row..span.first_row + span.n_rows {
                let x = &self.x[row * self.stride..][..self.stride];
                let [q, k] = [0, 1].map(|i| &x[self.cols[i]..][..self.key_dim]);
                let (decay, strength) = (self.gates)(row);
                // SAFETY: parts are at most sixteen elements; the row is the caller's word.
                unsafe {
                    let out = self.out.part(row * self.out_stride + self.out_col, self.n_cols);
                    let value = load_part::<S>(&x[self.cols[2]..][..self.n_cols]);
                    let decay = S::splat(decay);
                    let (mut written, mut start) = (value, S::splat(0.0));
                    match self.skip {
                        None => written = S::sub(value, S::mul(decay, product::<S>(state, k))),
                        Some(skip) => start = S::mul(S::splat(skip), value),
                    }
                    written = S::mul(S::splat(strength), written);
                    let read = S::add(start, update::<S>(state, (q, k), decay, written));
                    store_part::<S>(out, read);
                }
            }
        }
    }
}

/// `Σ_i state[i] k[i]`.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn product<S: SimdIsa>(state: &[f32], k: &[f32]) -> S::F {
    // SAFETY: chunks are whole vectors.
    unsafe {
        let mut sums = [S::splat(0.0); SUMS];
        for (state, k) in state.chunks(SUMS * COLUMNS).zip(k.chunks(SUMS)) {
            for (i, (state, k)) in state.chunks_exact(COLUMNS).zip(k).enumerate() {
                sums[i] = S::fma(S::splat(*k), S::load(state.as_ptr()), sums[i]);
            }
        }
        S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))
    }
}

/// `state[i] = decay state[i] + k[i] written`, and `Σ_i state[i] q[i]` of that.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn update<S: SimdIsa>(
    state: &mut [f32],
    (q, k): (&[f32], &[f32]),
    decay: S::F,
    written: S::F,
) -> S::F {
    // SAFETY: chunks are whole vectors.
    unsafe {
        let mut sums = [S::splat(0.0); SUMS];
        let rows = q.chunks(SUMS).zip(k.chunks(SUMS));
        for (state, (q, k)) in state.chunks_mut(SUMS * COLUMNS).zip(rows) {
            for (i, (state, (q, k))) in state.chunks_exact_mut(COLUMNS).zip(q.iter().zip(k)).enumerate() {
                let decayed = S::mul(decay, S::load(state.as_ptr()));
                let new = S::fma(S::splat(*k), written, decayed);
                S::store(state.as_mut_ptr(), new);
                sums[i] = S::fma(S::splat(*q), new, sums[i]);
            }
        }
        S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))
    }
}
