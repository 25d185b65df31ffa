//! Operations of an ISA with AMX tiles of bf16 beside [`SimdIsa`], and the kernels that need them. Compiles
//! on every architecture; one without AMX has no implementation.

use super::{KeyRun, ProductRun, SimdIsa, ValueRun};
use crate::layout::ScaleKind;

/// A kernel that needs AMX tiles, otherwise equal to [`super::Kernel`].
pub(crate) trait AmxKernel {
    type Output;

    /// # Safety
    /// The ISA's features must be available; pointers in `self` must be valid as the kernel documents.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other ISA has tiles"))]
    unsafe fn run<S: AmxIsa>(self) -> Self::Output;
}

/// Vectors and tiles of an ISA with AMX-BF16.
///
/// # Safety of all functions
/// The ISA's features must be available. Loads and stores need pointers valid for the whole vector or tile,
/// of any alignment.
#[allow(clippy::missing_safety_doc, reason = "one condition for all, above")]
pub(crate) trait AmxIsa: SimdIsa {
    /// Rounds 32 columns, multiplied by a power of two (see [`super::TILE_DOTS_BY`]), to bf16 (nearest even),
    /// interleaved like the unpacked weights.
    unsafe fn store_bf16_pairs(p: *mut u16, a: Self::F, b: Self::F);
    /// Scale and min (or the scale twice, without mins) of a block's first and second half, from the stored
    /// scales of its superblock and of the block: multiplied by 2^`power` (the bits of an f16), rounded to
    /// f16, each value duplicated for the two columns of a pair.
    unsafe fn pair_scales(
        kind: ScaleKind,
        supers: *const u8,
        scales: *const u8,
        power: u16,
    ) -> [[Self::B; 2]; 2];
    /// Converts codes of value + 128 (four columns of sixteen rows) to bf16 weight pairs: columns 0 and 2 of
    /// all rows, then columns 1 and 3. Value × scale (+ min) is rounded to f16, then to bf16.
    unsafe fn byte_pairs(has_min: bool, codes: Self::B, scale: [Self::B; 2]) -> [Self::B; 2];
    /// Pairs as above, for two 4-bit codes in each byte (value + 8, or the value if there is a min): the low
    /// nibbles, then the high ones.
    unsafe fn nibble_pairs(has_min: bool, codes: Self::B, scale: [Self::B; 2]) -> [[Self::B; 2]; 2];
    /// Adds the products of a run of blocks to its accumulators. Activations have `X` bf16 parts, weights
    /// `W`, the high part first; all products of parts are added except low × low.
    unsafe fn add_products<const G: usize, const P: usize, const X: usize, const W: usize>(run: &ProductRun);

    /// Rounds to bf16 (nearest even).
    unsafe fn store_bf16(p: *mut u16, x: Self::F);
    /// Splits into two bf16 parts: the nearest bf16, and the remainder rounded to bf16 (nearest even).
    unsafe fn store_split(high: *mut u16, low: *mut u16, x: Self::F);
    /// Computes [`KeyRun`].
    unsafe fn key_dots<const G: usize, const P: usize>(run: &KeyRun);
    /// Computes [`ValueRun`].
    unsafe fn value_dots<const G: usize>(run: &ValueRun);
}
