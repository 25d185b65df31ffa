//! Layers with a recurrent state: short convolution, gated delta net, state space model. Recurrences are
//! computed in blocks of sixteen tokens at fixed positions, and each token in the same order of operations,
//! so that a result does not depend on how the tokens were divided into steps. Parallel are sequences and
//! heads, and channels of a convolution.

mod block;
mod block_tiles;
mod conv;
mod gates;
mod keys;
mod scan;
mod state;

pub use conv::short_conv;
pub use gates::GateScratch;
pub use state::{StateLayer, StateLayerShape, StateSpan};

use crate::reference::{DeltaShape, DeltaWeights, StateSpaceShape, StateSpaceWeights};
use crate::threads::ThreadPool;

use conv::{Conv, convolve};
use gates::{GatedNorm, delta_gates, gated_norm, normalize_heads, state_space_gates};
use scan::{Scan, scan};

/// A gated delta net over the rows of all sequences of a step: [`crate::reference::gated_delta_net`].
/// Overwrites `x`.
///
/// # Panics
/// When lengths or slots do not fit.
pub fn gated_delta_net(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    shape: &DeltaShape,
    weights: &DeltaWeights<'_>,
    x: &mut [f32],
    scratch: &mut GateScratch,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let (stride, key_width) = (shape.input_width(), shape.key_width());
    let z_col = shape.n_channels();
    assert!(x.len().is_multiple_of(stride) && out.len() == x.len() / stride * shape.value_width());
    let conv = Conv { weights: weights.conv, stride, first_col: 0 };
    convolve(layer, spans, &conv, x, pool);
    normalize_heads(x, stride, 2 * key_width, shape.key_dim, pool);
    delta_gates(x, stride, z_col + shape.value_width(), weights, scratch);
    let heads = Scan {
        stride,
        query_col: 0,
        key_col: key_width,
        value_col: 2 * key_width,
        key_head: &|head| shape.key_head(head),
        skip: None,
    };
    scan(layer, spans, &heads, x, scratch, out, pool);
    let norm = GatedNorm {
        gain: weights.norm_gain,
        eps: weights.eps,
        width: shape.value_dim,
        gates_first: false,
        gates_only: false,
    };
    gated_norm(out, shape.value_width(), &norm, x, stride, z_col, pool);
}

/// A state space model over the rows of all sequences of a step: [`crate::reference::state_space`].
/// Overwrites `x`.
///
/// # Panics
/// When lengths or slots do not fit.
pub fn state_space(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    shape: &StateSpaceShape,
    weights: &StateSpaceWeights<'_>,
    x: &mut [f32],
    scratch: &mut GateScratch,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let (stride, width) = (shape.input_width(), shape.width());
    assert!(x.len().is_multiple_of(stride) && out.len() == x.len() / stride * width);
    let conv = Conv { weights: weights.conv, stride, first_col: width };
    convolve(layer, spans, &conv, x, pool);
    state_space_gates(x, stride, width + shape.n_channels(), shape, weights, scratch);
    let (of_group, written_col) = (shape.n_heads / shape.n_groups, 2 * width);
    let heads = Scan {
        stride,
        query_col: written_col + shape.n_groups * shape.state_dim,
        key_col: written_col,
        value_col: width,
        key_head: &|head| head / of_group,
        skip: Some(weights.skip),
    };
    scan(layer, spans, &heads, x, scratch, out, pool);
    let norm = GatedNorm {
        gain: weights.norm_gain,
        eps: weights.eps,
        width: width.checked_div(shape.n_norm_groups).unwrap_or(width),
        gates_first: true,
        gates_only: shape.n_norm_groups == 0,
    };
    gated_norm(out, width, &norm, x, stride, 0, pool);
}
