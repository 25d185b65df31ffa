//! Vector kernels of attention: up to eight query heads against one block of keys or values, and the softmax
//! between. Do not know masks and block tables.

use super::KvDtype;
use super::kv::{BLOCK_TOKENS, KEY_STEP, KvShape, VALUE_STEP};
use crate::layout::RECORD;
use crate::matmul::activations_int8::quantize_blocks;
use crate::matmul::tile::Tile;
use crate::quant::{BLOCK, Unpacked, code_sums};
use crate::rows::{load_part, store_part};
use crate::simd::{self, CheckedKernel, Kernel, SimdIsa};

/// Maximum number of query heads of a register tile.
pub(super) const TILE: usize = 8;
/// Tokens between two updates of the online softmax. Splits lie at multiples of it, for every query.
pub(super) const SPLIT: usize = 128;
pub(super) const SPLIT_BLOCKS: usize = SPLIT / BLOCK_TOKENS;

/// A tile's queries in the form that the KV format needs.
pub(super) struct Queries {
    /// [8][padded_dim].
    pub(super) floats: Vec<f32>,
    /// int8 records ([`crate::layout`]) of each group of eight heads, one for each 32 dimensions.
    pub(super) records: Vec<u8>,
}

/// Quantizes `n` query heads from number `first` on, a multiple of eight, to int8 records.
pub(super) struct QuantizeQueries<'a> {
    pub(super) queries: &'a mut Queries,
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) head_dim: usize,
}

impl Kernel for QuantizeQueries<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let n_blocks = self.head_dim / BLOCK;
        let Queries { floats, records } = self.queries;
        let (floats, records) =
            (&floats[self.first * self.head_dim..], &mut records[self.first / TILE * n_blocks * RECORD..]);
        assert!(records.len() >= n_blocks * RECORD);
        for (b, record) in records.chunks_exact_mut(RECORD).take(n_blocks).enumerate() {
            let mut x = [std::ptr::null(); TILE];
            for (x, row) in x.iter_mut().zip(floats.chunks_exact(self.head_dim)) {
                *x = row[b * BLOCK..][..BLOCK].as_ptr();
            }
            // SAFETY: 32 elements of each row.
            unsafe { quantize_blocks::<S, true>(&x[..self.n], 0, record) };
        }
    }
}

/// `scores[t][token] = q_t · k_token` of `T` query heads for one block of keys.
pub(super) struct Scores<'a, const T: usize> {
    pub(super) shape: &'a KvShape,
    pub(super) queries: &'a Queries,
    /// Index of the first query head.
    pub(super) first: usize,
    pub(super) keys: &'a [u8],
    /// The next panel to prefetch: a sequence's panels are scattered, so the hardware prefetcher does not
    /// find the next one. Need not be valid.
    pub(super) ahead: *const u8,
    /// [T][SPLIT], from the block's first token on.
    pub(super) scores: *mut f32,
}

impl<const T: usize> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        assert!(self.keys.len() >= self.shape.panel_bytes());
        assert!(self.queries.floats.len() >= (self.first + T) * self.shape.padded_dim());
        let keys = self.keys.as_ptr();
        // SAFETY: a whole panel; T rows of queries and of scores.
        unsafe {
            match self.shape.dtype {
                KvDtype::F32 => self.floats::<S>(4, |d| S::load(keys.cast::<f32>().add(d * BLOCK_TOKENS))),
                KvDtype::F16 => {
                    self.floats::<S>(2, |d| S::load_f16(keys.cast::<u16>().add(d * BLOCK_TOKENS)))
                }
                KvDtype::BF16 => self.floats::<S>(2, |d| {
                    let pairs = keys.add(d / BLOCK * KEY_STEP + d % 16 * 64);
                    half_of_pairs::<S>(pairs, d % BLOCK / 16)
                }),
                KvDtype::Q8_0 => self.codes::<S>(),
            }
        }
    }
}

impl<const T: usize> Scores<'_, T> {
    /// Sums even and odd dimensions in separate accumulators, which hides the latency of the additions when T
    /// is small. If the registers cannot hold both, one pass follows the other.
    #[inline(always)]
    unsafe fn floats<S: SimdIsa>(&self, bytes: usize, key: impl Fn(usize) -> S::F) {
        // SAFETY: as for the callee; T rows of scores.
        unsafe {
            let [even, odd] = if 2 * T < S::REGISTERS {
                self.chains::<S, 2>(0, bytes, &key)
            } else {
                let [even] = self.chains::<S, 1>(0, bytes, &key);
                let [odd] = self.chains::<S, 1>(1, bytes, &key);
                [even, odd]
            };
            for (t, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                S::store(self.scores.add(t * SPLIT), S::add(even, odd));
            }
        }
    }

    /// `N` accumulators for each query head: accumulator `i` sums dimensions `first + i`, `first + i + 2`, …
    #[inline(always)]
    unsafe fn chains<S: SimdIsa, const N: usize>(
        &self,
        first: usize,
        bytes: usize,
        key: &impl Fn(usize) -> S::F,
    ) -> [[S::F; T]; N] {
        let stride = self.shape.padded_dim();
        let q = self.queries.floats[self.first * stride..].as_ptr();
        // SAFETY: `q` has T rows of `stride`; any address may be prefetched.
        unsafe {
            let mut sums = [[S::splat(0.0); T]; N];
            for d in (first..self.shape.head_dim).step_by(2) {
                if first == 0 {
                    let ahead = self.ahead.wrapping_add(d * BLOCK_TOKENS * bytes);
                    simd::prefetch_bytes::<S, false>(ahead, 2 * BLOCK_TOKENS * bytes);
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    if i > 0 && d + i == self.shape.head_dim {
                        break;
                    }
                    let k = key(d + i);
                    for (t, sum) in sums.iter_mut().enumerate() {
                        *sum = S::fma(k, S::splat(*q.add(t * stride + d + i)), *sum);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn codes<S: SimdIsa>(&self) {
        let n_blocks = self.shape.head_dim / BLOCK;
        let mut acc = [[0.0f32; BLOCK_TOKENS]; T];
        // SAFETY: the panel has `n_blocks` blocks of codes and of scales; records were quantized for T rows.
        unsafe {
            let scales = self.keys.as_ptr().add(self.shape.scales_at()).cast::<u16>();
            let group = self.first / TILE * n_blocks * RECORD;
            let records = self.queries.records[group..].as_ptr();
            for b in 0..n_blocks {
                simd::prefetch_bytes::<S, false>(
                    self.ahead.wrapping_add(b * BLOCK * BLOCK_TOKENS),
                    BLOCK * BLOCK_TOKENS,
                );
                let mut scale = [0.0f32; BLOCK_TOKENS];
                S::store(scale.as_mut_ptr(), S::load_f16(scales.add(b * BLOCK_TOKENS)));
                let codes = self.keys.as_ptr().add(b * BLOCK * BLOCK_TOKENS);
                let mut sums = [0i32; BLOCK_TOKENS];
                code_sums::<S, false>(codes, sums.as_mut_ptr());
                let mins = std::ptr::null();
                let (scales, sums) = (scale.as_ptr(), sums.as_ptr());
                let weights = Unpacked { codes, scales, mins, sums, ahead: codes, ahead_bytes: 0 };
                let tile = Tile::<T, 1> {
                    weights: [weights],
                    halves: false,
                    has_min: false,
                    floats: false,
                    n_blocks: 1,
                    x: records.add(b * RECORD),
                    first: self.first % TILE,
                    out: [acc.as_mut_ptr().cast()],
                    stride: BLOCK_TOKENS,
                    adds: b > 0,
                };
                tile.run::<S>();
            }
            for (t, acc) in acc.iter().enumerate() {
                S::store(self.scores.add(t * SPLIT), S::load(acc.as_ptr()));
            }
        }
    }
}

/// The first or the second element of each of sixteen bf16 pairs, as f32.
#[inline(always)]
pub(super) unsafe fn half_of_pairs<S: SimdIsa>(pairs: *const u8, which: usize) -> S::F {
    // SAFETY: sixteen pairs at the pointer, by the callers.
    unsafe {
        let pairs = S::iload(pairs.cast());
        let upper = S::isplat(0xFFFF_0000_u32 as i32);
        S::from_bits(if which == 0 { S::ishl::<16>(pairs) } else { S::iand(pairs, upper) })
    }
}

/// `out[t] += Σ_token p[t][token] v_token` of `T` query heads over tokens `first..last` of one block of
/// values.
pub(super) struct Values<'a, const T: usize> {
    pub(super) shape: &'a KvShape,
    pub(super) values: &'a [u8],
    /// Prefetched address, as in [`Scores`].
    pub(super) ahead: *const u8,
    pub(super) first: usize,
    pub(super) last: usize,
    /// Dimensions that are computed, whole vectors.
    pub(super) dims: std::ops::Range<usize>,
    /// [T][SPLIT], from the block's first token on.
    pub(super) weights: *const f32,
    /// [T][padded_dim].
    pub(super) out: *mut f32,
}

impl<const T: usize> Kernel for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        assert!(self.values.len() >= self.shape.panel_bytes() && self.last <= BLOCK_TOKENS);
        let values = self.values.as_ptr();
        let dim = self.shape.padded_dim();
        assert!(
            self.dims.end <= dim && self.dims.start.is_multiple_of(16) && self.dims.end.is_multiple_of(16)
        );
        // SAFETY: a whole panel; T rows of weights and of outputs.
        unsafe {
            match self.shape.dtype {
                KvDtype::F32 => self.sum::<S>(4, |t, d| S::load(values.cast::<f32>().add(t * dim + d))),
                KvDtype::F16 => self.sum::<S>(2, |t, d| S::load_f16(values.cast::<u16>().add(t * dim + d))),
                KvDtype::BF16 => self.sum::<S>(2, |t, d| {
                    let pairs = values.add(d / 16 * VALUE_STEP + t / 2 * 64);
                    half_of_pairs::<S>(pairs, t % 2)
                }),
                KvDtype::Q8_0 => {
                    let stored = values.add(self.shape.scales_at()).cast::<u16>();
                    let scale = |t: usize, d: usize| {
                        let bits = *stored.add(d / BLOCK * BLOCK_TOKENS + t);
                        half::f16::from_bits(bits).to_f32()
                    };
                    self.sum::<S>(1, |t, d| {
                        let codes = S::float(S::iload_i8(values.cast::<i8>().add(t * dim + d)));
                        S::mul(codes, S::splat(scale(t, d)))
                    });
                }
            }
        }
    }
}

impl<const T: usize> Values<'_, T> {
    #[inline(always)]
    unsafe fn sum<S: SimdIsa>(&self, bytes: usize, value: impl Fn(usize, usize) -> S::F) {
        let dim = self.shape.padded_dim();
        let share = 16 * BLOCK_TOKENS * bytes;
        let is_whole = self.dims.len() == dim || self.shape.dtype == KvDtype::BF16;
        for d in self.dims.clone().step_by(16) {
            // SAFETY: any address may be prefetched.
            unsafe {
                if is_whole {
                    simd::prefetch_bytes::<S, false>(self.ahead.wrapping_add(d / 16 * share), share);
                } else if ((d - self.dims.start) * bytes).is_multiple_of(64) {
                    (0..BLOCK_TOKENS)
                        .for_each(|t| S::prefetch(self.ahead.wrapping_add((t * dim + d) * bytes)));
                }
            }
            // SAFETY: T rows of `dim` outputs and of SPLIT weights.
            unsafe {
                let mut acc: [S::F; T] = std::array::from_fn(|t| S::load(self.out.add(t * dim + d)));
                for token in self.first..self.last {
                    let v = value(token, d);
                    for (t, acc) in acc.iter_mut().enumerate() {
                        *acc = S::fma(v, S::splat(*self.weights.add(t * SPLIT + token)), *acc);
                    }
                }
                for (t, acc) in acc.into_iter().enumerate() {
                    S::store(self.out.add(t * dim + d), acc);
                }
            }
        }
    }
}

/// Normalizes a query head's weighted values: `out = sums · by`.
pub(super) struct Finish<'a> {
    pub(super) sums: &'a [f32],
    /// Reciprocal of the sum of the weights.
    pub(super) by: f32,
    pub(super) out: &'a mut [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Finish<'_> {}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for (out, sums) in self.out.chunks_mut(16).zip(self.sums.chunks(16)) {
            // SAFETY: parts are at most sixteen elements.
            unsafe { store_part::<S>(out, S::mul(load_part::<S>(sums), S::splat(self.by))) };
        }
    }
}

/// Online softmax of one query head: turns a split's raw scores into weights and rescales the sums of the
/// splits before.
pub(super) struct Softmax<'a> {
    /// The scores of tokens up to the next multiple of sixteen, [n].
    pub(super) scores: &'a mut [f32],
    /// Tokens that the query attends to.
    pub(super) visible: std::ops::Range<usize>,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) state: &'a mut RowState,
    /// The query head's weighted sum of values so far, padded to whole vectors.
    pub(super) out: &'a mut [f32],
}

/// The greatest score so far and the sum of `e^(score - max)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowState {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl RowState {
    /// State before the first split.
    pub(super) const fn new() -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0 }
    }

    /// State before the first split of a head with a sink: a score whose value is zero.
    pub(super) const fn of_sink(score: f32) -> Self {
        Self { max: score, sum: 1.0 }
    }
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Softmax<'_> {}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        assert!(self.scores.len().is_multiple_of(16) && self.out.len().is_multiple_of(16));
        // SAFETY: whole vectors of both.
        unsafe {
            let lowest = S::splat(f32::NEG_INFINITY);
            let mut max = lowest;
            for s in self.scores.chunks_exact_mut(16) {
                let mut x = S::mul(S::load(s.as_ptr()), S::splat(self.scale));
                if let Some(cap) = self.softcap {
                    let cap = S::splat(cap);
                    x = S::mul(cap, simd::tanh::<S>(S::div(x, cap)));
                }
                S::store(s.as_mut_ptr(), x);
                max = S::max(x, max);
            }
            if self.visible != (0..self.scores.len()) {
                self.scores[..self.visible.start].fill(f32::NEG_INFINITY);
                self.scores[self.visible.end..].fill(f32::NEG_INFINITY);
                max = lowest;
                for s in self.scores.chunks_exact(16) {
                    max = S::max(S::load(s.as_ptr()), max);
                }
            }
            let (before, max) = (self.state.max, self.state.max.max(S::largest(max)));
            if max == f32::NEG_INFINITY && self.visible.is_empty() {
                return self.scores.fill(0.0);
            }
            let mut sum = S::splat(0.0);
            for s in self.scores.chunks_exact_mut(16) {
                let p = simd::exp::<S>(S::sub(S::load(s.as_ptr()), S::splat(max)));
                S::store(s.as_mut_ptr(), p);
                sum = S::add(sum, p);
            }
            if max > before {
                // All elements are the same.
                let keep = S::largest(simd::exp::<S>(S::splat(before - max)));
                self.state.sum *= keep;
                for o in self.out.chunks_exact_mut(16) {
                    S::store(o.as_mut_ptr(), S::mul(S::load(o.as_ptr()), S::splat(keep)));
                }
            }
            self.state.max = max;
            self.state.sum += simd::sum::<S>(sum);
        }
    }
}
