//! Scales that lose least: sixteen blocks side by side, one in each element of a vector, a few candidates for the step
//! between codes, and for the best of them the scale (and min) of least squares. Refuses to know how blocks are stored.

use super::quantize::inverse;
use crate::simd::Lane;

/// Blocks that are searched together.
pub(super) const BLOCKS: usize = 16;

/// One number for each of the blocks.
pub(super) type OfBlocks = [f32; BLOCKS];

/// Candidates on each side of the step that just covers a block's range, and how far apart they are, in codes.
const SIDE: i32 = 5;
const APART: f32 = 0.2;

/// Adding it rounds to an integer (half to even), which then stands in the low bits; taking it away leaves the integer.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `N` elements of each block, `[element][block]`, from blocks that lie one after the other.
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
/// The lane's features must be there.
#[inline(always)]
pub(super) unsafe fn scales<L: Lane, const N: usize>(tile: &[OfBlocks; N], half: f32) -> OfBlocks {
    // SAFETY: every vector is a whole row of the tile; the features are the caller's word.
    unsafe {
        let (low, high) = range::<L, N>(tile);
        let per_code: OfBlocks =
            std::array::from_fn(|b| -inverse(if high[b] > -low[b] { high[b] } else { low[b] }));
        let codes = (-half, half - 1.0);
        let zero = L::splat(0.0);
        let mut best = Best::new(half);
        for step in -SIDE..=SIDE {
            let steps = half + step as f32 * APART;
            let per_x = L::mul(L::load(per_code.as_ptr()), L::splat(steps));
            let sums = sums::<L, N>(tile, zero, per_x, codes);
            best.offer(steps, stored::<L>(L::div(L::mul(sums.xq, sums.xq), sums.qq)));
        }
        let per_x = L::mul(L::load(per_code.as_ptr()), L::load(best.steps.as_ptr()));
        let sums = sums::<L, N>(tile, zero, per_x, codes);
        let (xq, qq) = (stored::<L>(sums.xq), stored::<L>(sums.qq));
        std::array::from_fn(|b| if qq[b] > 0.0 { xq[b] / qq[b] } else { 0.0 })
    }
}

/// Scales and mins of `x ≈ scale code - min`, codes from 0 to `max_code`, neither below zero.
///
/// # Safety
/// The lane's features must be there.
#[inline(always)]
pub(super) unsafe fn scales_and_mins<L: Lane, const N: usize>(
    tile: &[OfBlocks; N],
    max_code: f32,
) -> (OfBlocks, OfBlocks) {
    // SAFETY: as for `scales`.
    unsafe {
        let (low, high) = range::<L, N>(tile);
        let low = low.map(|low| if low < 0.0 { low } else { 0.0 });
        let per_width: OfBlocks =
            std::array::from_fn(|b| inverse(if high[b] > low[b] { high[b] - low[b] } else { 0.0 }));
        let (per_width_v, low_v) = (L::load(per_width.as_ptr()), L::load(low.as_ptr()));
        let mut sum = L::splat(0.0);
        for x in tile {
            sum = L::add(sum, L::sub(L::load(x.as_ptr()), low_v));
        }
        let codes = (0.0, max_code);
        let n = L::splat(N as f32);
        let mut best = Best::new(max_code);
        for step in -SIDE..=SIDE {
            let steps = max_code + step as f32 * APART;
            let sums = sums::<L, N>(tile, low_v, L::mul(per_width_v, L::splat(steps)), codes);
            let (scale, shift, _) = line::<L>(&sums, sum, n);
            let both = stored::<L>(L::add(L::mul(scale, sums.xq), L::mul(shift, sum)));
            let alone = stored::<L>(L::div(L::mul(sums.xq, sums.xq), sums.qq));
            let min = stored::<L>(L::add(shift, low_v));
            best.offer(steps, std::array::from_fn(|b| if min[b] <= 0.0 { both[b] } else { alone[b] }));
        }
        let per_x = L::mul(per_width_v, L::load(best.steps.as_ptr()));
        let sums = sums::<L, N>(tile, low_v, per_x, codes);
        let (scale, shift, spread) = line::<L>(&sums, sum, n);
        let (scale, min) = (stored::<L>(scale), stored::<L>(L::add(shift, low_v)));
        let (alone, spread) = (stored::<L>(L::div(sums.xq, sums.qq)), stored::<L>(spread));
        let pairs: [(f32, f32); BLOCKS] = std::array::from_fn(|b| {
            if spread[b] > 0.0 && min[b] <= 0.0 {
                (scale[b], -min[b])
            } else if alone[b] > 0.0 {
                // One code for all, or a min that would be negative: the scale alone is left.
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
    /// Codes that the block's range is divided into.
    steps: OfBlocks,
}

impl Best {
    fn new(steps: f32) -> Self {
        Self { merits: [0.0; BLOCKS], steps: [steps; BLOCKS] }
    }

    /// A merit is what a candidate takes from the sum of squared errors.
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

/// Sums over the elements of each block with `x` less its offset and `q` its code.
struct Sums<L: Lane> {
    q: L::F,
    xq: L::F,
    qq: L::F,
}

#[inline(always)]
unsafe fn sums<L: Lane, const N: usize>(
    tile: &[OfBlocks; N],
    offset: L::F,
    codes_per_x: L::F,
    (least, most): (f32, f32),
) -> Sums<L> {
    // SAFETY: as for `scales`.
    unsafe {
        let zero = L::splat(0.0);
        let (least, most, round) = (L::splat(least), L::splat(most), L::splat(ROUND));
        let mut sums = Sums { q: zero, xq: zero, qq: zero };
        for x in tile {
            let x = L::sub(L::load(x.as_ptr()), offset);
            let q = L::min(L::max(L::mul(x, codes_per_x), least), most);
            let q = L::sub(L::add(q, round), round);
            sums.q = L::add(sums.q, q);
            sums.xq = L::add(sums.xq, L::mul(x, q));
            sums.qq = L::add(sums.qq, L::mul(q, q));
        }
        sums
    }
}

/// Scale and shift of least squares, `x ≈ scale q + shift`, and how far the codes spread: without a spread there is no
/// such line.
#[inline(always)]
unsafe fn line<L: Lane>(sums: &Sums<L>, x_sum: L::F, n: L::F) -> (L::F, L::F, L::F) {
    // SAFETY: no memory is touched.
    unsafe {
        let above = L::sub(L::mul(n, sums.xq), L::mul(x_sum, sums.q));
        let spread = L::sub(L::mul(n, sums.qq), L::mul(sums.q, sums.q));
        let scale = L::div(above, spread);
        (scale, L::div(L::sub(x_sum, L::mul(scale, sums.q)), n), spread)
    }
}

/// The smallest and the largest element of each block.
#[inline(always)]
unsafe fn range<L: Lane, const N: usize>(tile: &[OfBlocks; N]) -> (OfBlocks, OfBlocks) {
    // SAFETY: as for `scales`.
    unsafe {
        let (mut low, mut high) = (L::load(tile[0].as_ptr()), L::load(tile[0].as_ptr()));
        for x in &tile[1..] {
            let x = L::load(x.as_ptr());
            (low, high) = (L::min(x, low), L::max(x, high));
        }
        (stored::<L>(low), stored::<L>(high))
    }
}

/// A vector's elements.
///
/// # Safety
/// The lane's features must be there.
#[inline(always)]
pub(super) unsafe fn stored<L: Lane>(x: L::F) -> OfBlocks {
    let mut out = [0.0; BLOCKS];
    // SAFETY: the array is one vector.
    unsafe { L::store(out.as_mut_ptr(), x) };
    out
}
