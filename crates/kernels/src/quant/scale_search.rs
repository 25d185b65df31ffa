//! Searches quantization scales that minimize the squared error: tries a few step sizes per block, then
//! refines the best one by least squares. Sixteen blocks at a time, one in each lane. Does not know how
//! blocks are stored.

use crate::formats::inverse;
use crate::simd::SimdIsa;

/// Number of blocks searched at once.
pub(super) const BLOCKS: usize = 16;

/// A number for each block.
pub(super) type OfBlocks = [f32; BLOCKS];

/// Candidates on each side of the step that exactly covers a block's range, and their distance in codes.
const SIDE: i32 = 5;
const APART: f32 = 0.2;

/// Adding and subtracting it rounds to an integer (ties to even).
pub(super) const ROUND: f32 = 12_582_912.0;

/// Transposes sixteen consecutive blocks of `N` elements to `[element][block]`.
#[inline(always)]
pub(super) fn side_by_side<const N: usize>(x: &[f32]) -> [OfBlocks; N] {
    let mut tile = [[0.0; BLOCKS]; N];
    for (block, x) in x.chunks_exact(N).take(BLOCKS).enumerate() {
        for (row, x) in tile.iter_mut().zip(x) {
            row[block] = *x;
        }
    }
    tile
}

/// Scales of `x ≈ scale code`, codes from `-half` to `half - 1`; 0 for a block of zeros.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(super) unsafe fn scales<S: SimdIsa, const N: usize>(tile: &[OfBlocks; N], half: f32) -> OfBlocks {
    // SAFETY: every vector is a whole row of the tile; the caller guarantees the features.
    unsafe {
        let (low, high) = range::<S, N>(tile);
        let per_code: OfBlocks =
            std::array::from_fn(|b| -inverse(if high[b] > -low[b] { high[b] } else { low[b] }));
        let codes = CodeRange { least: -half, most: half - 1.0 };
        let zero = S::splat(0.0);
        let mut best = Best::new(half);
        for step in -SIDE..=SIDE {
            let steps = half + step as f32 * APART;
            let per_x = S::mul(S::load(per_code.as_ptr()), S::splat(steps));
            let sums = sums::<S, N>(tile, zero, per_x, codes);
            best.offer(steps, stored::<S>(S::div(S::mul(sums.xq, sums.xq), sums.qq)));
        }
        let per_x = S::mul(S::load(per_code.as_ptr()), S::load(best.steps.as_ptr()));
        let sums = sums::<S, N>(tile, zero, per_x, codes);
        let (xq, qq) = (stored::<S>(sums.xq), stored::<S>(sums.qq));
        std::array::from_fn(|b| if qq[b] > 0.0 { xq[b] / qq[b] } else { 0.0 })
    }
}

/// Scales and mins of `x ≈ scale code - min`, codes from 0 to `max_code`, neither below zero.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(super) unsafe fn scales_and_mins<S: SimdIsa, const N: usize>(
    tile: &[OfBlocks; N],
    max_code: f32,
) -> (OfBlocks, OfBlocks) {
    // SAFETY: as for `scales`.
    unsafe {
        let (low, high) = range::<S, N>(tile);
        let low = low.map(|low| if low < 0.0 { low } else { 0.0 });
        let per_width: OfBlocks =
            std::array::from_fn(|b| inverse(if high[b] > low[b] { high[b] - low[b] } else { 0.0 }));
        let (per_width_v, low_v) = (S::load(per_width.as_ptr()), S::load(low.as_ptr()));
        let mut sum = S::splat(0.0);
        for x in tile {
            sum = S::add(sum, S::sub(S::load(x.as_ptr()), low_v));
        }
        let codes = CodeRange { least: 0.0, most: max_code };
        let n = S::splat(N as f32);
        let mut best = Best::new(max_code);
        for step in -SIDE..=SIDE {
            let steps = max_code + step as f32 * APART;
            let sums = sums::<S, N>(tile, low_v, S::mul(per_width_v, S::splat(steps)), codes);
            let (scale, shift, _) = line::<S>(&sums, sum, n);
            let both = stored::<S>(S::add(S::mul(scale, sums.xq), S::mul(shift, sum)));
            let alone = stored::<S>(S::div(S::mul(sums.xq, sums.xq), sums.qq));
            let min = stored::<S>(S::add(shift, low_v));
            best.offer(steps, std::array::from_fn(|b| if min[b] <= 0.0 { both[b] } else { alone[b] }));
        }
        let per_x = S::mul(per_width_v, S::load(best.steps.as_ptr()));
        let sums = sums::<S, N>(tile, low_v, per_x, codes);
        let (scale, shift, spread) = line::<S>(&sums, sum, n);
        let (scale, min) = (stored::<S>(scale), stored::<S>(S::add(shift, low_v)));
        let (alone, spread) = (stored::<S>(S::div(sums.xq, sums.qq)), stored::<S>(spread));
        let pairs: [(f32, f32); BLOCKS] = std::array::from_fn(|b| {
            if spread[b] > 0.0 && min[b] <= 0.0 {
                (scale[b], -min[b])
            } else if alone[b] > 0.0 {
                // All codes equal, or a negative min: fit the scale alone.
                (alone[b], -low[b])
            } else {
                (0.0, -low[b])
            }
        });
        (pairs.map(|pair| pair.0), pairs.map(|pair| pair.1))
    }
}

/// The best candidate of each block so far.
struct Best {
    merits: OfBlocks,
    /// Number of codes that the block's range is divided into.
    steps: OfBlocks,
}

impl Best {
    fn new(steps: f32) -> Self {
        Self { merits: [0.0; BLOCKS], steps: [steps; BLOCKS] }
    }

    /// A candidate's merit is the reduction of the sum of squared errors.
    #[inline(always)]
    fn offer(&mut self, steps: f32, merits: OfBlocks) {
        let best = self.merits.iter_mut().zip(&mut self.steps);
        for ((best, best_steps), merit) in best.zip(merits) {
            let is_better = merit > *best;
            *best = if is_better { merit } else { *best };
            *best_steps = if is_better { steps } else { *best_steps };
        }
    }
}

/// Codes to which an element is clamped.
#[derive(Clone, Copy)]
struct CodeRange {
    least: f32,
    most: f32,
}

/// Sums over the elements of each block, where `x` is the element minus the offset and `q` its code.
struct Sums<S: SimdIsa> {
    q: S::F,
    xq: S::F,
    qq: S::F,
}

#[inline(always)]
unsafe fn sums<S: SimdIsa, const N: usize>(
    tile: &[OfBlocks; N],
    offset: S::F,
    codes_per_x: S::F,
    codes: CodeRange,
) -> Sums<S> {
    // SAFETY: as for `scales`.
    unsafe {
        let zero = S::splat(0.0);
        let (least, most, round) = (S::splat(codes.least), S::splat(codes.most), S::splat(ROUND));
        let mut sums = Sums { q: zero, xq: zero, qq: zero };
        for x in tile {
            let x = S::sub(S::load(x.as_ptr()), offset);
            let q = S::min(S::max(S::mul(x, codes_per_x), least), most);
            let q = S::sub(S::add(q, round), round);
            sums.q = S::add(sums.q, q);
            sums.xq = S::add(sums.xq, S::mul(x, q));
            sums.qq = S::add(sums.qq, S::mul(q, q));
        }
        sums
    }
}

/// Least-squares scale and shift of `x ≈ scale q + shift`, and the variance of the codes; without variance
/// there is no fit.
#[inline(always)]
unsafe fn line<S: SimdIsa>(sums: &Sums<S>, x_sum: S::F, n: S::F) -> (S::F, S::F, S::F) {
    // SAFETY: no memory is touched.
    unsafe {
        let above = S::sub(S::mul(n, sums.xq), S::mul(x_sum, sums.q));
        let spread = S::sub(S::mul(n, sums.qq), S::mul(sums.q, sums.q));
        let scale = S::div(above, spread);
        (scale, S::div(S::sub(x_sum, S::mul(scale, sums.q)), n), spread)
    }
}

/// The smallest and the largest element of each block.
#[inline(always)]
unsafe fn range<S: SimdIsa, const N: usize>(tile: &[OfBlocks; N]) -> (OfBlocks, OfBlocks) {
    // SAFETY: as for `scales`.
    unsafe {
        let (mut low, mut high) = (S::load(tile[0].as_ptr()), S::load(tile[0].as_ptr()));
        for x in &tile[1..] {
            let x = S::load(x.as_ptr());
            (low, high) = (S::min(x, low), S::max(x, high));
        }
        (stored::<S>(low), stored::<S>(high))
    }
}

/// A vector's elements.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(super) unsafe fn stored<S: SimdIsa>(x: S::F) -> OfBlocks {
    let mut out = [0.0; BLOCKS];
    // SAFETY: the array is one vector.
    unsafe { S::store(out.as_mut_ptr(), x) };
    out
}
