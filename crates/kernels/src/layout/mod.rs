//! Memory layouts that the SIMD kernels, the packing of weights and the matrix products agree on: element formats, packed
//! weight panels and packed activations. Does not compute.

mod activations;
mod format;
mod panel;

pub use format::Format;

pub(crate) use activations::{
    HALF_PAIR_AT, HALF_STEP, HALF_SUM_AT, PAIR_AT, RECORD, ROW_BYTES, SCALE_AT, SUM_AT,
};
pub(crate) use panel::{
    BLOCK, CodeLayout, Codebook, E4m3Scale, PAIRS_BYTES, PANEL, PanelLayout, ScaleKind, float_bytes,
    power_of_two, unsigned_e4m3,
};
