//! Reductions over the logits of one token: group maxima, sums of exponentials, counts. Plain loops that the
//! compiler vectorizes for each ISA; the same bits on every ISA, since no operation is fused or reordered.
//! Does not know how tokens are chosen.

use std::sync::OnceLock;

use crate::simd::{CheckedKernel, Isa, Kernel, SimdIsa};

/// Number of elements of a group; each group has its own maximum.
pub const GROUP: usize = 128;
/// Elements of a block: summed in f32, then added to an f64 in a fixed order. A multiple of the group size.
pub const BLOCK: usize = 512;

/// Number of partial sums of a block.
const LANES: usize = 8;
/// Number of partial maxima of a group: enough to hide the latency of an operation.
const WIDE: usize = 32;

/// The reductions on one ISA of this machine.
#[derive(Debug, Clone, Copy)]
pub struct LogitsReducer {
    isa: Isa,
}

impl Default for LogitsReducer {
    fn default() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        Self { isa: *BEST.get_or_init(Isa::best) }
    }
}

impl LogitsReducer {
    /// Creates a pool on a chosen ISA, for tests and benchmarks.
    pub fn with_isa(isa: Isa) -> Self {
        Self { isa }
    }

    /// Writes the largest value of every group of `values` to `maxima`. Returns false when a value is NaN or
    /// +∞; the maxima are then unspecified.
    ///
    /// # Panics
    /// When the number of maxima is not that of groups.
    pub fn maxima(self, values: &[f32], maxima: &mut [f32]) -> bool {
        assert_eq!(maxima.len(), values.len().div_ceil(GROUP), "one maximum a group");
        self.isa.run_checked(Maxima { values, maxima })
    }

    /// Σ exp((value − max) / temperature) of every block of `values`, given the maxima of its groups and the
    /// largest of them, into one element of `sums` a block. Blocks whose terms are all zero are not read.
    ///
    /// # Panics
    /// When the numbers of maxima and groups, or of sums and blocks, differ.
    pub fn sums(self, values: &[f32], maxima: &[f32], max: f32, temperature: f32, sums: &mut [f64]) {
        assert_eq!(maxima.len(), values.len().div_ceil(GROUP), "one maximum a group");
        assert_eq!(sums.len(), values.len().div_ceil(BLOCK), "one sum a block");
        self.isa.run_checked(Sums { values, maxima, max, temperature, sums })
    }

    /// Counts the values by their distance below `max`, in steps of `step`; the last count includes all
    /// larger distances. A value on an edge may be counted on either side.
    ///
    /// # Panics
    /// When there are no counts.
    pub fn count_below(self, values: &[f32], max: f32, step: f32, counts: &mut [u32]) {
        assert!(!counts.is_empty(), "no counts");
        self.isa.run_checked(CountBelow { values, max, step, counts })
    }

    /// Number of `values` that are greater than `bound`.
    pub fn count_above(self, values: &[f32], bound: f32) -> u32 {
        self.isa.run_checked(CountAbove { values, bound })
    }
}

struct Maxima<'a> {
    values: &'a [f32],
    maxima: &'a mut [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Maxima<'_> {}

impl Kernel for Maxima<'_> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> bool {
        // Bit masks, one for each lane: set once a value is NaN or +∞.
        let mut bad = [0u32; WIDE];
        for (group, out) in self.values.chunks(GROUP).zip(self.maxima) {
            let mut lanes = [f32::NEG_INFINITY; WIDE];
            let (chunks, rest) = group.as_chunks::<WIDE>();
            for chunk in chunks {
                for ((lane, bad), &value) in lanes.iter_mut().zip(&mut bad).zip(chunk) {
                    *lane = larger(value, *lane);
                    *bad |= is_not_below_infinity(value);
                }
            }
            for ((lane, bad), &value) in lanes.iter_mut().zip(&mut bad).zip(rest) {
                *lane = larger(value, *lane);
                *bad |= is_not_below_infinity(value);
            }
            *out = largest(&lanes);
        }
        bad.iter().fold(0, |all, bad| all | bad) == 0
    }
}

/// `value` unless it is NaN or not above `other`.
#[inline(always)]
fn larger(value: f32, other: f32) -> f32 {
    if value > other { value } else { other }
}

/// Halves the number of lanes until one is left.
#[inline(always)]
fn largest(lanes: &[f32; WIDE]) -> f32 {
    let mut lanes = *lanes;
    let mut half = WIDE / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = larger(lanes[i + half], lanes[i]);
        }
        half /= 2;
    }
    lanes[0]
}

/// All bits set for +∞ and NaN, else none.
#[inline(always)]
fn is_not_below_infinity(value: f32) -> u32 {
    u32::from(value < f32::INFINITY).wrapping_sub(1)
}

struct Sums<'a> {
    values: &'a [f32],
    maxima: &'a [f32],
    max: f32,
    temperature: f32,
    sums: &'a mut [f64],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Sums<'_> {}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let blocks = self.values.chunks(BLOCK).zip(self.maxima.chunks(BLOCK / GROUP)).zip(self.sums);
        for ((block, maxima), sum) in blocks {
            // Rounding is monotonic: if the term of the maximum is zero, so are all terms of the group.
            let has_weight = maxima.iter().any(|&value| weight(value, self.max, self.temperature) > 0.0);
            *sum = if has_weight { sum_of_block(block, self.max, self.temperature) } else { 0.0 };
        }
    }
}

#[inline(always)]
fn sum_of_block(block: &[f32], max: f32, temperature: f32) -> f64 {
    // Separate from the summation, so that it vectorizes at any vector width.
    let mut weights = [0f32; BLOCK];
    let weights = &mut weights[..block.len()];
    for (weight_of, &value) in weights.iter_mut().zip(block) {
        *weight_of = weight(value, max, temperature);
    }
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = weights.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    let of_rest: f32 = rest.iter().sum();
    lanes.iter().fold(f64::from(of_rest), |sum, &lane| sum + f64::from(lane))
}

struct CountAbove<'a> {
    values: &'a [f32],
    bound: f32,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for CountAbove<'_> {}

impl Kernel for CountAbove<'_> {
    type Output = u32;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> u32 {
        self.values.iter().map(|&value| u32::from(value > self.bound)).sum()
    }
}

struct CountBelow<'a> {
    values: &'a [f32],
    max: f32,
    step: f32,
    counts: &'a mut [u32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for CountBelow<'_> {}

impl Kernel for CountBelow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let last = self.counts.len() - 1;
        for chunk in self.values.chunks(WIDE) {
            let mut steps = [0i32; WIDE];
            for (steps, &value) in steps.iter_mut().zip(chunk) {
                // The cast saturates, so that larger distances fall into the last count.
                *steps = ((self.max - value) / self.step) as i32;
            }
            for &steps in &steps[..chunk.len()] {
                self.counts[(steps as usize).min(last)] += 1;
            }
        }
    }
}

/// exp((value − max) / temperature): the unnormalized probability of a value.
#[inline(always)]
pub fn weight(value: f32, max: f32, temperature: f32) -> f32 {
    exp_nonpositive((value - max) / temperature)
}

/// exp(x) for x ≤ 0 within 2 units in the last place; 0 where the result would be subnormal. The polynomial
/// is that of Cephes' `expf` (Moshier); no branch and no call, so that loops over it vectorize.
#[inline(always)]
fn exp_nonpositive(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    /// Adding it rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUNDER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let polynomial = COEFFICIENTS.iter().fold(1.987_569_1e-4, |sum, coefficient| sum * r + coefficient);
    let of_r = polynomial * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x > LOWEST { of_r * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range() {
        let mut worst = 0f64;
        for i in 0..=870_000 {
            let x = -(i as f32) / 10_000.0;
            let (ours, exact) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            if x > -87.0 {
                worst = worst.max((ours - exact).abs() / exact);
            }
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "relative error {worst:e}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        for x in [-87.5, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp_nonpositive(x), 0.0);
        }
    }
}
