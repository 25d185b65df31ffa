//! The layouts of packed activations: a group of sixteen tokens by blocks of 32 columns, as int8 or as bf16.
//! Does not compute.

use super::BLOCK;

/// Bytes of a group's quantized block: 16 × 32 codes, then the arrays below, sixteen values each.
pub(crate) const RECORD: usize = 960;
/// Offset of the f32 scales.
pub(crate) const SCALE_AT: usize = 512;
/// Pairs of i16, the zero point and `-Σ codes`: multiplied by the weights' sum and their codes' offset.
pub(crate) const PAIR_AT: usize = 576;
/// f32 `Σ x` of the rounded elements: multiplied by a weight block's min.
pub(crate) const SUM_AT: usize = 640;
/// Offset of the pairs of the two half blocks.
pub(crate) const HALF_PAIR_AT: usize = 704;
/// The sums of the two half blocks.
pub(crate) const HALF_SUM_AT: usize = 832;
/// Bytes from one array of a half block to the other's.
pub(crate) const HALF_STEP: usize = 64;

/// Bytes of one token's block of bf16, or of one of its two parts: a group's record is [token][part][32]
/// bf16.
pub(crate) const ROW_BYTES: usize = BLOCK * 2;
