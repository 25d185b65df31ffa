//! Memory layouts that the SIMD kernels, the packing of weights and the matrix products agree on: codes,
//! floats and their scales, packed weight panels and packed activations. Does not compute.

mod activations;
mod codebook;
mod codes;
mod floats;
mod numbers;
mod panel;

pub(crate) use activations::{
    HALF_PAIR_AT, HALF_STEP, HALF_SUM_AT, PAIR_AT, RECORD, ROW_BYTES, SCALE_AT, SUM_AT,
};
pub(crate) use codebook::Codebook;
pub(crate) use codes::{CodeLayout, ScaleKind, WithLayout};
pub(crate) use floats::{E4m3Scale, FloatLayout};
pub(crate) use numbers::{power_of_two, unsigned_e4m3};
pub(crate) use panel::PanelLayout;

/// Number of output rows of a panel.
pub(crate) const PANEL: usize = 16;
/// Number of columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of one panel's block unpacked to bf16 for AMX tiles.
pub(crate) const PAIRS_BYTES: usize = PANEL * BLOCK * 2;
