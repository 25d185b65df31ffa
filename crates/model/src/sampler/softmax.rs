//! Sums of exponentials over a vocabulary, in one fixed order. Plain loops that the compiler vectorizes; the same
//! bits on every machine, since no operation is fused or reordered. Refuses to know what is sampled.

/// Elements that are summed in `f32` before they are added to an `f64`: the unit of the fixed order.
pub(super) const BLOCK: usize = 512;
const LANES: usize = 8;

/// The largest of `values`; `None` when one is NaN or +∞, −∞ when there is none.
pub(super) fn checked_max(values: &[f32]) -> Option<f32> {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut all_below_infinity = true;
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
            // False for NaN too.
            all_below_infinity &= value < f32::INFINITY;
        }
    }
    let mut max = f32::NEG_INFINITY;
    for &value in lanes.iter().chain(rest) {
        all_below_infinity &= value < f32::INFINITY;
        max = if value > max { value } else { max };
    }
    all_below_infinity.then_some(max)
}

/// The largest of `values`, none of which is NaN; −∞ when there is none.
pub(super) fn max(values: &[f32]) -> f32 {
    checked_max(values).unwrap_or(f32::INFINITY)
}

/// Σ exp((value − max) / temperature) over one block.
pub(super) fn sum_of_block(block: &[f32], max: f32, temperature: f32) -> f64 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += weight(value, max, temperature);
        }
    }
    let of_rest: f32 = rest.iter().map(|&value| weight(value, max, temperature)).sum();
    lanes.iter().fold(f64::from(of_rest), |sum, &lane| sum + f64::from(lane))
}

/// ln Σ exp(value), given the largest value.
pub(super) fn log_sum_exp(values: &[f32], max: f32) -> f64 {
    let sum: f64 = values.chunks(BLOCK).map(|block| sum_of_block(block, max, 1.0)).sum();
    f64::from(max) + sum.ln()
}

/// exp((value − max) / temperature): how likely a value is against the largest.
#[inline(always)]
pub(super) fn weight(value: f32, max: f32, temperature: f32) -> f32 {
    exp_nonpositive((value - max) / temperature)
}

/// exp(x) for x ≤ 0 within 2 units in the last place; 0 where the result would be subnormal. The polynomial is
/// that of Cephes' `expf` (Moshier); no branch and no call, so that loops over it vectorize.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    /// Adding it rounds to an integer, which then stands in the low bits.
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

    #[test]
    fn sums_and_maxima_of_any_length() {
        for n in [0usize, 1, 7, 8, 9, 511, 512, 513, 2000] {
            let values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1013) as f32 / 100.0 - 6.0).collect();
            let max = checked_max(&values).unwrap();
            assert_eq!(max, values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let exact = values.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
            if n > 0 {
                assert!((log_sum_exp(&values, max) - exact).abs() < 1e-6);
            }
            for bad in [f32::NAN, f32::INFINITY] {
                for at in [0, n / 2, n.saturating_sub(1)].into_iter().filter(|at| *at < n) {
                    let mut values = values.clone();
                    values[at] = bad;
                    assert_eq!(checked_max(&values), None);
                }
            }
        }
    }
}
