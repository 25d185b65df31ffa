//! Reductions over logits on every ISA: maxima and counts against straightforward code, sums bit for bit
//! against the loop that defines their order.

use crate::support::Random;
use throng_kernels::Isa;
use throng_kernels::logits_reduce::{BLOCK, GROUP, LogitsReducer, weight};

const LENGTHS: [usize; 11] = [0, 1, 7, 31, 32, 127, 129, 511, 513, 2_000, 5_003];

fn reducers() -> impl Iterator<Item = LogitsReducer> {
    Isa::available().into_iter().map(LogitsReducer::with_isa).chain([LogitsReducer::default()])
}

fn maxima_of(reducer: LogitsReducer, values: &[f32]) -> Option<Vec<f32>> {
    let mut maxima = vec![0.0; values.len().div_ceil(GROUP)];
    reducer.maxima(values, &mut maxima).then_some(maxima)
}

/// For each block, eight partial sums in f32, then the rest; these are added one after the other in f64.
fn sum_in_order(block: &[f32], max: f32, temperature: f32) -> f64 {
    let weights: Vec<f32> = block.iter().map(|&value| weight(value, max, temperature)).collect();
    let whole = weights.len() / 8 * 8;
    let of_rest: f32 = weights[whole..].iter().sum();
    let of_lane = |lane: usize| weights[..whole].iter().skip(lane).step_by(8).fold(0f32, |sum, w| sum + w);
    (0..8).fold(f64::from(of_rest), |sum, lane| sum + f64::from(of_lane(lane)))
}

#[test]
fn maxima_and_counts_are_exact_on_every_isa() {
    for n in LENGTHS {
        let mut values = Random(n as u64).normals(n);
        values.iter_mut().skip(3).step_by(11).for_each(|value| *value = f32::NEG_INFINITY);
        let largest = |group: &[f32]| group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected: Vec<f32> = values.chunks(GROUP).map(largest).collect();
        for reducer in reducers() {
            assert_eq!(maxima_of(reducer, &values), Some(expected.clone()), "{n} on {reducer:?}");
            for bound in [-1.0, 0.3, f32::NEG_INFINITY, f32::INFINITY] {
                let n_above = values.iter().filter(|&&value| value > bound).count();
                assert_eq!(reducer.count_above(&values, bound) as usize, n_above);
            }
            for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
                for at in [0, n / 2, n.saturating_sub(1)].into_iter().filter(|at| *at < n) {
                    let mut values = values.clone();
                    values[at] = bad;
                    assert_eq!(maxima_of(reducer, &values), None, "{bad} at {at} of {n} on {reducer:?}");
                }
            }
        }
    }
}

#[test]
fn sums_have_the_bits_of_the_fixed_order_on_every_isa() {
    for n in LENGTHS {
        for (spread, temperature) in [(1.0, 1.0), (8.0, 0.7), (40.0, 0.05), (1e30, 1e-5)] {
            let values: Vec<f32> = Random(n as u64).normals(n).iter().map(|value| value * spread).collect();
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected: Vec<u64> =
                values.chunks(BLOCK).map(|block| sum_in_order(block, max, temperature).to_bits()).collect();
            for reducer in reducers() {
                let maxima = maxima_of(reducer, &values).expect("all are numbers");
                let mut sums = vec![f64::NAN; expected.len()];
                reducer.sums(&values, &maxima, max, temperature, &mut sums);
                let bits: Vec<u64> = sums.iter().map(|sum| sum.to_bits()).collect();
                assert_eq!(bits, expected, "{n} on {reducer:?}");
            }
        }
    }
}

#[test]
fn values_are_counted_by_their_distance_on_every_isa() {
    for n in LENGTHS {
        let mut values = Random(n as u64).normals(n);
        values.iter_mut().skip(5).step_by(9).for_each(|value| *value = f32::NEG_INFINITY);
        let mut expected = [0u32; 40];
        for value in &values {
            expected[(((8.0 - value) / 0.25) as usize).min(39)] += 1;
        }
        for reducer in reducers() {
            let mut counts = [0; 40];
            reducer.count_below(&values, 8.0, 0.25, &mut counts);
            assert_eq!(counts, expected, "{n} on {reducer:?}");
        }
    }
}
