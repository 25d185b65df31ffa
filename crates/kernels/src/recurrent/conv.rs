//! Depthwise causal convolution over the last tokens of a sequence. Does not know the meaning of its input.

use std::ops::Range;

use super::state::{COLUMNS, StateLayer, StateSpan, sequences};
use crate::disjoint::Disjoint;
use crate::reference::ConvWeights;
use crate::rows::{load_part, store_part};
use crate::simd::{Kernel, SimdIsa, silu};
use crate::threads::ThreadPool;

/// Maximum number of tokens of a convolution: the window is kept in registers.
pub const MOST_TAPS: usize = 8;

/// A convolution over columns of a projection, followed by SiLU, in place.
pub(super) struct Conv<'a> {
    pub(super) weights: ConvWeights<'a>,
    /// Number of columns of a row.
    pub(super) stride: usize,
    /// The first column of the channels.
    pub(super) first_col: usize,
}

/// Convolves columns of `x` in place, and applies SiLU.
pub(super) fn convolve(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    conv: &Conv<'_>,
    x: &mut [f32],
    pool: &ThreadPool,
) {
    assert!(conv.first_col + conv.weights.n_channels() <= conv.stride, "columns beyond the row");
    run(layer, spans, conv, &Disjoint::new(x), None, pool);
}

/// The gated short convolution over the rows of all sequences of a step: [`crate::reference::short_conv`].
///
/// # Panics
/// When lengths or slots do not fit.
pub fn short_conv(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    x: &[f32],
    weights: &ConvWeights<'_>,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let n = weights.n_channels();
    assert_eq!(x.len(), 3 * out.len(), "three inputs for an output");
    let conv = Conv { weights: *weights, stride: n, first_col: 0 };
    run(layer, spans, &conv, &Disjoint::new(out), Some(x), pool);
}

/// Convolves every group of channels of every sequence.
fn run(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    conv: &Conv<'_>,
    rows: &Disjoint<'_, f32>,
    gated: Option<&[f32]>,
    pool: &ThreadPool,
) {
    let (shape, weights) = (*layer.shape(), &conv.weights);
    assert!((2..=MOST_TAPS).contains(&shape.kernel), "a convolution over {} tokens", shape.kernel);
    assert_eq!(
        (shape.kernel, shape.n_channels),
        (weights.kernel(), weights.n_channels()),
        "another convolution"
    );
    let (states, sequences) = (layer.write(spans), sequences(spans));
    let n_groups = shape.n_channels.div_ceil(COLUMNS);
    pool.for_each(sequences.len() * n_groups, |item| {
        let (sequence, group) = (item / n_groups, item % n_groups);
        let columns = group * COLUMNS..((group + 1) * COLUMNS).min(shape.n_channels);
        for span in sequences[sequence] {
            // SAFETY: the group of the sequence belongs to this call.
            let window = unsafe { states.begin(span, shape.window_part(group)) };
            let kernel = ConvSpan { conv, rows, gated, window, columns: columns.clone(), span };
            // SAFETY: the rows of the sequence, in the columns of the group, belong to this call.
            unsafe { pool.isa().run(kernel) };
        }
    });
}

/// One span and one group of channels.
///
/// # Safety
/// No other thread may use the span's rows in these columns.
struct ConvSpan<'a> {
    conv: &'a Conv<'a>,
    rows: &'a Disjoint<'a, f32>,
    /// Rows of the three inputs of the gated short convolution whose outputs are `rows`.
    gated: Option<&'a [f32]>,
    window: &'a mut [f32],
    columns: Range<usize>,
    span: &'a StateSpan,
}

impl Kernel for ConvSpan<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { conv: Conv { weights, stride, first_col }, rows, gated, window, columns, span } = self;
        let (n, n_before) = (weights.n_channels(), weights.kernel() - 1);
        // SAFETY: parts are at most sixteen elements, windows whole vectors; rows are the caller's word.
        unsafe {
            let (mut taps, mut before) = ([S::splat(0.0); MOST_TAPS], [S::splat(0.0); MOST_TAPS]);
            for (j, tap) in taps.iter_mut().enumerate().take(n_before + 1) {
                *tap = load_part::<S>(&weights.taps[j * n..][columns.clone()]);
            }
            for (before, window) in before.iter_mut().zip(window.chunks_exact(COLUMNS)) {
                *before = S::load(window.as_ptr());
            }
            let bias = load_part::<S>(&weights.bias[columns.clone()]);
            for row in span.first_row..span.first_row + span.n_rows {
                let part = rows.part(row * stride + first_col + columns.start, columns.len());
                let of_gated = |x: &[f32], i| load_part::<S>(&x[(3 * row + i) * n..][columns.clone()]);
                let x = match gated {
                    None => load_part::<S>(part),
                    Some(gated) => S::mul(of_gated(gated, 0), of_gated(gated, 2)),
                };
                let mut y = bias;
                for j in 0..n_before {
                    y = S::fma(taps[j], before[j], y);
                }
                y = S::fma(taps[n_before], x, y);
                before.copy_within(1..n_before, 0);
                before[n_before - 1] = x;
                let y = match gated {
                    None => silu::<S>(y),
                    Some(gated) => S::mul(y, of_gated(gated, 1)),
                };
                store_part::<S>(part, y);
            }
            for (before, window) in before.iter().zip(window.chunks_exact_mut(COLUMNS)) {
                S::store(window.as_mut_ptr(), *before);
            }
        }
    }
}
