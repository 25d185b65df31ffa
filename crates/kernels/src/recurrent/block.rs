//! One head of a recurrence, computed in blocks of sixteen tokens as products of matrices.
//!
//! The matrix `S` of a head changes only at positions that are multiples of sixteen. Between them, the
//! changes by the tokens of the current block are kept aside as their keys `k` and updates `u`. With the
//! decays `d`, the weight of token `s` at token `t` is `w(s, t) = d(s + 1) … d(t)`, and that of the matrix,
//! `W(t)`, the product of all decays of the block so far. The recurrence `S(t) = d(t) S(t - 1) + k(t) ⊗
//! u(t)`, `y(t) = S(t)ᵀq(t)` becomes, with sums over the tokens of the block,
//!
//! - `r(t) = W(t) Sᵀk(t) + Σ_{s<t} w(s, t) (k(s)·k(t)) u(s)`: the state's value for the key,
//! - `u(t) = strength (v(t) - r(t))` by the delta rule, `strength v(t)` in a state space model,
//! - `y(t) = W(t) Sᵀq(t) + Σ_{s≤t} w(s, t) (k(s)·q(t)) u(s)`,
//! - `S ← W(15) S + Σ_s k(s) ⊗ w(s, 15) u(s)` after the last token of the block.
//!
//! Keys and their products are the same for all heads of a group: [`super::keys`] has them.
//!
//! This is the chunked form of Yang et al. 2024 (arXiv:2412.06464) and Dao & Gu 2024 (arXiv:2405.21060), with
//! forward substitution in place of an inverse. `S` is read once for several tokens, and written once for
//! sixteen.
//!
//! **Every bit is the same for every division of tokens into steps.** A state holds everything that later
//! tokens of its block need: keys, updates, weights and their number. A token's result is a function of these
//! and of its own row: products with `S` are summed over rows in order in one chain, products of keys in
//! lanes, sums over the block's tokens in their order, weights by one multiplication a token. The register
//! tiles group tokens and columns, never the terms of a sum. So the last tokens of an unfinished block get
//! the bits that they have when all sixteen are computed together, the block continues from its state with
//! the next step, checkpoint or copy, and `S` is the same at each multiple of sixteen.

use std::ops::Range;

use super::block_tiles::{Products, advance, multiply};
use super::keys::{BlockKeys, KeyProducts, KeyRows};
use super::state::{BLOCK, COLUMNS, StateLayerShape};
use crate::disjoint::Disjoint;
use crate::rows::{load_part, store_part};
use crate::simd::{Kernel, SimdIsa, prefetch_bytes};

/// The state of one head, in f32.
pub(super) struct HeadState<'a> {
    value_dim: usize,
    /// The matrix at the block's beginning: for each pair of groups of columns `[key_dim, 2, 16]`, so that
    /// reading it for a single token is one stream of addresses; for a last group without a partner
    /// `[key_dim, 16]`.
    matrix: &'a mut [f32],
    /// Weights of the block's tokens.
    weights: &'a mut [f32],
    /// The weight of the matrix, followed by padding.
    matrix_weight: &'a mut [f32],
    /// Updates of the block's tokens, `[16 tokens, groups, 16]`.
    updates: &'a mut [f32],
}

impl<'a> HeadState<'a> {
    /// Borrows the elements of a head: `[2, 16]` and `[16, groups, 16]` of the block, `[groups, key_dim, 16]`
    /// of the matrix.
    pub(super) fn new(block: &'a mut [f32], matrix: &'a mut [f32], shape: &StateLayerShape) -> Self {
        let (weights, rest) = block.split_at_mut(BLOCK);
        let (matrix_weight, updates) = rest.split_at_mut(COLUMNS);
        assert_eq!(updates.len(), shape.n_head_groups() * BLOCK * COLUMNS);
        assert_eq!(matrix.len(), shape.n_head_groups() * shape.key_dim * COLUMNS);
        Self { value_dim: shape.value_dim, matrix, weights, matrix_weight, updates }
    }
}

/// Places of one head's inputs and outputs.
pub(super) struct HeadRows<'a> {
    pub(super) keys: BlockKeys<'a>,
    /// Products of a row's key and query with the keys of its block.
    pub(super) products: &'a dyn Fn(usize) -> &'a KeyProducts,
    pub(super) value_col: usize,
    /// Decay and strength of a row.
    pub(super) gates: &'a dyn Fn(usize) -> (f32, f32),
    /// Factor of the value that is added to the output; none for the delta rule.
    pub(super) skip: Option<f32>,
    pub(super) out: &'a Disjoint<'a, f32>,
    pub(super) out_stride: usize,
    pub(super) out_col: usize,
}

/// Adjacent tokens of one sequence.
///
/// # Safety
/// Nothing else may use the rows of the span in the head's columns of the output.
pub(super) struct HeadRun<'a> {
    pub(super) rows: &'a HeadRows<'a>,
    pub(super) span: Range<usize>,
    pub(super) state: HeadState<'a>,
}

impl Kernel for HeadRun<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { rows, span, mut state } = self;
        let mut first = span.start;
        while first < span.end {
            let at = rows.keys.token(first) % BLOCK;
            let n = (span.end - first).min(BLOCK - at);
            let part = BlockPart { rows, first, at, n };
            // SAFETY: the rows are the caller's word; a token has at most two vectors.
            unsafe {
                match n {
                    1 => part.run::<S, 1, 2>(&mut state),
                    _ => part.run::<S, BLOCK, { 2 * BLOCK }>(&mut state),
                }
            }
            first += n;
        }
    }
}

/// Factors of the updates of a block's tokens and of the products with the matrix, for each of `T` tokens.
#[repr(align(64))]
struct Factors<const T: usize> {
    /// `-w(s, t) (k(s)·k(t))`, `[t, s]`.
    of_key: [[f32; BLOCK]; T],
    /// `w(s, t) (k(s)·q(t))`.
    of_query: [[f32; BLOCK]; T],
    /// `W(t)`.
    matrix: [f32; T],
    strength: [f32; T],
}

/// Tokens of one block. Most functions are generic over the most tokens `T` and their keys and queries `V`:
/// few for single tokens, for which filling large tables would take as long as the arithmetic.
struct BlockPart<'a> {
    rows: &'a HeadRows<'a>,
    /// Row of the first token, and its index in the block.
    first: usize,
    at: usize,
    n: usize,
}

impl<'a> BlockPart<'a> {
    /// # Safety
    /// The ISA's features must be available; no other thread may use the head's part of the output.
    #[inline(always)]
    unsafe fn run<S: SimdIsa, const T: usize, const V: usize>(&self, state: &mut HeadState<'_>) {
        let mut vectors = [&[][..]; V];
        let n_vectors = self.list_vectors(&mut vectors);
        let (vectors, n_groups) = (&vectors[..n_vectors], state.value_dim.div_ceil(COLUMNS));
        let keys = &self.rows.keys;
        let block = keys.token(self.first) - self.at;
        let is_complete = self.at + self.n == BLOCK;
        let keys = is_complete.then(|| std::array::from_fn(|s| keys.key(block + s)));
        let mut factors = Factors::<T> {
            of_key: [[0.0; BLOCK]; T],
            of_query: [[0.0; BLOCK]; T],
            matrix: [0.0; T],
            strength: [0.0; T],
        };
        // SAFETY: groups before `n_groups` exist; the rest is the caller's word.
        unsafe {
            if T == 1 {
                self.prefetch_next_head::<S>(state);
            }
            self.fill::<S, T>(&mut factors, state);
            for group in (0..n_groups - n_groups % 2).step_by(2) {
                self.columns::<S, T, V, 2>(&factors, vectors, keys.as_ref(), state, group);
            }
            if n_groups % 2 == 1 {
                self.columns::<S, T, V, 1>(&factors, vectors, keys.as_ref(), state, n_groups - 1);
            }
        }
    }

    /// Prefetches the data that the next head of the sequence, at the same token, reads before its matrix.
    ///
    /// # Safety
    /// The ISA's features must be available.
    #[inline(always)]
    unsafe fn prefetch_next_head<S: SimdIsa>(&self, state: &HeadState<'_>) {
        let len = BLOCK + COLUMNS + state.updates.len();
        let next = state.weights.as_ptr().wrapping_add(len).cast::<u8>();
        let n_elements = BLOCK + COLUMNS + state.updates.len() / BLOCK * (self.at + 1);
        // SAFETY: by the caller; any address may be prefetched.
        unsafe { prefetch_bytes::<S, false>(next, n_elements * size_of::<f32>()) };
    }

    /// Lists the vectors to multiply with the matrix: key and query of each token, or only its query if an
    /// update does not depend on the state.
    #[inline(always)]
    fn list_vectors<const V: usize>(&self, vectors: &mut [&'a [f32]; V]) -> usize {
        let mut n_vectors = 0;
        for row in self.first..self.first + self.n {
            if self.rows.skip.is_none() {
                vectors[n_vectors] = self.rows.keys.key_of_row(row);
                n_vectors += 1;
            }
            vectors[n_vectors] = self.rows.keys.query_of_row(row);
            n_vectors += 1;
        }
        n_vectors
    }

    /// # Safety
    /// The ISA's features must be available.
    #[inline(always)]
    unsafe fn fill<S: SimdIsa, const T: usize>(&self, factors: &mut Factors<T>, state: &mut HeadState<'_>) {
        let mut weights = [0.0; BLOCK];
        weights.copy_from_slice(state.weights);
        let mut of_matrix = state.matrix_weight[0];
        if self.at == 0 {
            (weights, of_matrix) = ([0.0; BLOCK], 1.0);
        }
        for token in 0..self.n {
            let (t, row) = (self.at + token, self.first + token);
            let (decay, strength) = (self.rows.gates)(row);
            let KeyProducts { of_key, of_query } = (self.rows.products)(row);
            of_matrix *= decay;
            weights.iter_mut().for_each(|w| *w *= decay);
            weights[t] = 1.0;
            for s in 0..BLOCK {
                factors.of_key[token][s] = -weights[s] * of_key[s];
                factors.of_query[token][s] = weights[s] * of_query[s];
            }
            (factors.matrix[token], factors.strength[token]) = (of_matrix, strength);
        }
        state.weights.copy_from_slice(&weights);
        state.matrix_weight[0] = of_matrix;
    }

    /// Updates and outputs of `G` groups of columns, and the matrix of the next block if this one is
    /// complete, in which case it has keys.
    ///
    /// # Safety
    /// The ISA's features must be available; the groups must exist; no other thread may use the output.
    #[inline(always)]
    unsafe fn columns<S: SimdIsa, const T: usize, const V: usize, const G: usize>(
        &self,
        factors: &Factors<T>,
        vectors: &[&[f32]],
        keys: Option<&KeyRows<'_>>,
        state: &mut HeadState<'_>,
        group: usize,
    ) {
        let group_len = self.rows.keys.key_dim * COLUMNS;
        let matrix = &mut state.matrix[group * group_len..][..G * group_len];
        let updates = &mut state.updates[group * COLUMNS..];
        let mut products = Products([[[0.0; COLUMNS]; G]; V]);
        let n_groups = state.value_dim.div_ceil(COLUMNS);
        // SAFETY: whole groups of columns; tokens of the block; the output is the caller's word.
        unsafe {
            multiply::<S, V, G>(vectors, matrix, &mut products);
            for t in 0..self.n {
                self.token::<S, T, V, G>(t, factors, &products, updates, group, state.value_dim);
            }
            if let Some(keys) = keys {
                let stride = n_groups * COLUMNS;
                advance::<S, G>(matrix, keys, updates, stride, state.weights, state.matrix_weight[0]);
            }
        }
    }

    /// The update and the output of one token.
    ///
    /// # Safety
    /// The conditions of `columns` must hold.
    #[inline(always)]
    unsafe fn token<S: SimdIsa, const T: usize, const V: usize, const G: usize>(
        &self,
        token: usize,
        factors: &Factors<T>,
        products: &Products<V, G>,
        updates: &mut [f32],
        group: usize,
        value_dim: usize,
    ) {
        let stride = value_dim.div_ceil(COLUMNS) * COLUMNS;
        assert!(updates.len() >= (BLOCK - 1) * stride + G * COLUMNS);
        let (t, row, rows) = (self.at + token, self.first + token, self.rows);
        let first_col = group * COLUMNS;
        let n_cols = |g: usize| (value_dim - first_col - g * COLUMNS).min(COLUMNS);
        let values =
            &rows.keys.x[row * rows.keys.stride + rows.value_col + first_col..][..value_dim - first_col];
        let n_vectors = if rows.skip.is_none() { 2 } else { 1 };
        let (of_key, of_query) = (&products.0[n_vectors * token], &products.0[n_vectors * (token + 1) - 1]);
        // SAFETY: parts are at most sixteen elements; `updates` has sixteen rows with the groups.
        unsafe {
            let (matrix, strength) = (S::splat(factors.matrix[token]), S::splat(factors.strength[token]));
            let [mut written, mut read] = [[S::splat(0.0); G]; 2];
            for g in 0..G {
                let value = load_part::<S>(&values[g * COLUMNS..][..n_cols(g)]);
                read[g] = S::mul(matrix, S::load(of_query[g].as_ptr()));
                written[g] = value;
                match rows.skip {
                    None => {
                        written[g] = S::sub(value, S::mul(matrix, S::load(of_key[g].as_ptr())));
                    }
                    Some(skip) => read[g] = S::fma(S::splat(skip), value, read[g]),
                }
            }
            let updates = updates.as_mut_ptr();
            for s in 0..t {
                let (of_key, of_query) =
                    (S::splat(factors.of_key[token][s]), S::splat(factors.of_query[token][s]));
                for g in 0..G {
                    let update = S::load(updates.add(s * stride + g * COLUMNS));
                    if rows.skip.is_none() {
                        written[g] = S::fma(of_key, update, written[g]);
                    }
                    read[g] = S::fma(of_query, update, read[g]);
                }
            }
            let of_query = S::splat(factors.of_query[token][t]);
            for g in 0..G {
                let update = S::mul(strength, written[g]);
                S::store(updates.add(t * stride + g * COLUMNS), update);
                let read = S::fma(of_query, update, read[g]);
                let out_col = rows.out_col + first_col + g * COLUMNS;
                store_part::<S>(rows.out.part(row * rows.out_stride + out_col, n_cols(g)), read);
            }
        }
    }
}
