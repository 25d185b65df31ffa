//! Keys of a recurrence's blocks, which the heads of a group share, and their products with the keys and
//! queries of the block's tokens. Does not know decays, values and matrices.

use super::state::{BLOCK, COLUMNS, StateSpan};
use crate::disjoint::Disjoint;
use crate::rows::load_part;
use crate::simd::{Kernel, SimdIsa, sum};

/// Products of a token's key and query with the keys of its block. Those with keys of later tokens are not
/// filled.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct KeyProducts {
    /// `k(s)·k(t)` for `s < t`; only by the delta rule.
    pub(super) of_key: [f32; BLOCK],
    /// `k(s)·q(t)` for `s ≤ t`.
    pub(super) of_query: [f32; BLOCK],
}

/// The keys of a block's tokens.
pub(super) type KeyRows<'a> = [&'a [f32]; BLOCK];

/// The keys of one sequence and group: those of its unfinished block, then those of the step's tokens.
#[derive(Clone, Copy)]
pub(super) struct BlockKeys<'a> {
    /// Keys of the unfinished block's tokens, `[n_kept, key_dim]`.
    pub(super) kept: &'a [f32],
    pub(super) n_kept: usize,
    pub(super) key_dim: usize,
    pub(super) x: &'a [f32],
    /// Number of columns of a row of `x`.
    pub(super) stride: usize,
    pub(super) key_col: usize,
    pub(super) query_col: usize,
    /// The row of the first token.
    pub(super) first_row: usize,
}

impl<'a> BlockKeys<'a> {
    /// Number of tokens between a row's and the beginning of the block that was unfinished before the step.
    #[inline(always)]
    pub(super) fn token(&self, row: usize) -> usize {
        self.n_kept + row - self.first_row
    }

    /// The key of a token, numbered as by [`Self::token`].
    #[inline(always)]
    pub(super) fn key(&self, token: usize) -> &'a [f32] {
        match token.checked_sub(self.n_kept) {
            None => &self.kept[token * self.key_dim..][..self.key_dim],
            Some(i) => self.key_of_row(self.first_row + i),
        }
    }

    #[inline(always)]
    pub(super) fn key_of_row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.stride + self.key_col..][..self.key_dim]
    }

    #[inline(always)]
    pub(super) fn query_of_row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.stride + self.query_col..][..self.key_dim]
    }

    /// Keeps the keys of a span's tokens that are in an unfinished block after it. `part` is the group's
    /// [`super::state`] part of a state, with its content before the span.
    pub(super) fn keep(&self, span: &StateSpan, part: &mut [f32]) {
        if span.n_rows == 0 {
            return;
        }
        let (keys, count) = part.split_at_mut(BLOCK * self.key_dim);
        let end = self.token(span.first_row + span.n_rows);
        let first = (end - end % BLOCK).max(self.token(span.first_row));
        for token in first..end {
            keys[token % BLOCK * self.key_dim..][..self.key_dim].copy_from_slice(self.key(token));
        }
        count[0] = (end % BLOCK) as f32;
    }

    /// Number of keys in a state's part of a group.
    pub(super) fn count(part: &[f32]) -> usize {
        part[part.len() - COLUMNS] as usize
    }
}

/// Computes the products of the tokens of one sequence and group.
///
/// # Safety
/// While it runs, no other thread may read or write `products` of these rows and this group.
pub(super) struct MultiplyKeys<'a> {
    pub(super) keys: BlockKeys<'a>,
    pub(super) n_rows: usize,
    /// `[rows, groups]`.
    pub(super) products: &'a Disjoint<'a, KeyProducts>,
    pub(super) n_groups: usize,
    pub(super) group: usize,
    /// Whether products of keys with keys are needed.
    pub(super) of_keys: bool,
}

impl Kernel for MultiplyKeys<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for row in self.keys.first_row..self.keys.first_row + self.n_rows {
            let token = self.keys.token(row);
            let (at, key, query) = (token % BLOCK, self.keys.key_of_row(row), self.keys.query_of_row(row));
            // SAFETY: the products are the caller's word; so are the ISA's features.
            unsafe {
                let products = &mut self.products.part(row * self.n_groups + self.group, 1)[0];
                for s in 0..=at {
                    let other = self.keys.key(token - at + s);
                    if self.of_keys {
                        [products.of_key[s], products.of_query[s]] = dots::<S, 2>(other, [key, query]);
                    } else {
                        [products.of_query[s]] = dots::<S, 1>(other, [query]);
                    }
                }
            }
        }
    }
}

/// Products of a vector with `N` others of the same length.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn dots<S: SimdIsa, const N: usize>(x: &[f32], others: [&[f32]; N]) -> [f32; N] {
    let n_whole = x.len() - x.len() % COLUMNS;
    assert!(others.iter().all(|other| other.len() == x.len()));
    // SAFETY: whole vectors within the slices, then at most fifteen elements.
    unsafe {
        let mut sums = [S::splat(0.0); N];
        for at in (0..n_whole).step_by(COLUMNS) {
            let x = S::load(x.as_ptr().add(at));
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = S::fma(x, S::load(other.as_ptr().add(at)), *sum);
            }
        }
        if n_whole < x.len() {
            let x = load_part::<S>(&x[n_whole..]);
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = S::fma(x, load_part::<S>(&other[n_whole..]), *sum);
            }
        }
        sums.map(|of_lanes| sum::<S>(of_lanes))
    }
}
