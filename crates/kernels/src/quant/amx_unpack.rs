//! Unpacks blocks of a panel for AMX tiles: weights in bf16, interleaved in pairs of columns. Done once for all tokens of a call.
//! Does not multiply.
//!
//! A weight is `scale · value (+ min)` in f16, where scale and min are multiplied by a power of two chosen for the matrix (see
//! [`PairScale`]) and rounded once; the result is rounded to bf16. 4-bit values with a min are unpacked as value − 8, and 8 ×
//! scale (rounded once more) is added to the min.

use half::f16;

use super::amx_unpack_float::{BFloats, HalfFloats};
use super::unpack::{gather, prefetch_scales, with_offset};
use super::{Format, PackedMatrix};
use crate::layout::{BLOCKS_PER_SUPERBLOCK, CodeLayout, PanelLayout};
use crate::simd::{SimdIsa, TILE_DOTS_BY, prefetch_bytes};

/// The power of two that brings a matrix's weights into the range of f16, and the factor that undoes it in the products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PairScale {
    /// Scales and mins are multiplied by 2^power.
    power: i8,
    /// Products are multiplied by this: a power of two, or NaN where a scale is not finite.
    pub(crate) back: f32,
}

impl PairScale {
    /// For weights that are floats already.
    pub(crate) const NONE: Self = Self { power: 0, back: 1.0 };

    /// For weights of at most this magnitude.
    pub(crate) fn of(largest: f32) -> Self {
        if !largest.is_finite() {
            return Self { power: 0, back: f32::NAN };
        }
        // Keeps weights below 2^15; a matrix of zeros may have any exponent.
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        let power = 14 - exponent.clamp(-60, 60);
        Self { power: power as i8, back: TILE_DOTS_BY * f32::from_bits(((127 - power) as u32) << 23) }
    }
}

/// Unpacks blocks of one format to bf16 pairs.
pub(crate) trait AmxUnpacker: Copy {
    /// bf16 parts of an activation.
    const TOKEN_PARTS: usize;
    /// bf16 parts of a weight; each part of a block takes [`PAIRS_BYTES`].
    const PARTS: usize;

    /// The unpacker of a matrix in the format.
    fn of(weights: &PackedMatrix) -> Self;

    /// Unpacks block `b` of a panel.
    ///
    /// # Safety
    /// The panel must have the block, `out` room for it, and the machine the ISA's features and AMX tiles.
    unsafe fn unpack<S: SimdIsa>(&self, panel: *const u8, b: usize, out: *mut u8);

    /// Prefetches what unpacking block `b` of a panel reads; see [`prefetch_bytes`].
    ///
    /// # Safety
    /// The ISA's features must be available; the panel need not be valid.
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize);
}

/// Work that is generic over a matrix's unpacker.
pub(crate) trait WithUnpacker {
    /// Does the work.
    fn run<U: AmxUnpacker>(self);
}

impl PackedMatrix {
    /// Runs work with the matrix's unpacker.
    ///
    /// # Panics
    /// With an f32 matrix, which has none.
    pub(crate) fn with_unpacker(&self, work: impl WithUnpacker) {
        macro_rules! of_codes {
            ($($format:ident)*) => {
                match self.format() {
                    $(Format::$format => work.run::<Codes<{ Format::$format as usize }>>(),)*
                    Format::F16 => work.run::<HalfFloats>(),
                    Format::BF16 => work.run::<BFloats>(),
                    Format::F32 => panic!("f32 matrices have no bf16 unpacker"),
                }
            };
        }
        of_codes!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
    }
}

/// The unpacker of a quantized format, given by its index in [`Format::ALL`]: the layout is a compile-time constant, so that no block
/// branches on it.
#[derive(Clone, Copy)]
struct Codes<const FORMAT: usize> {
    layout: PanelLayout,
    /// Scales and mins are multiplied by 2^power; the bits of an f16.
    power: u16,
}

impl<const FORMAT: usize> Codes<FORMAT> {
    const LAYOUT: CodeLayout = CodeLayout::of(Format::ALL[FORMAT]).expect("a format of codes");
}

impl<const FORMAT: usize> AmxUnpacker for Codes<FORMAT> {
    const TOKEN_PARTS: usize = 1;
    const PARTS: usize = 1;

    fn of(weights: &PackedMatrix) -> Self {
        let power = f16::from_f32(f32::from(weights.pair_scale().power)).to_bits();
        Self { layout: *weights.layout(), power }
    }

    #[inline(always)]
    unsafe fn unpack<S: SimdIsa>(&self, panel: *const u8, b: usize, out: *mut u8) {
        let CodeLayout { bits, codebook, zero, scales: kind } = Self::LAYOUT;
        let has_min = kind.has_min();
        // SAFETY: the block is in the panel and has room in `out`, by the caller.
        unsafe {
            let stored = panel.add(self.layout.codes_at + b * Self::LAYOUT.code_bytes());
            let put = |v: usize, [even, odd]: [S::B; 2]| {
                S::bstore(out.add(v * 128), even);
                S::bstore(out.add(v * 128 + 64), odd);
            };
            let supers = panel.add(b / BLOCKS_PER_SUPERBLOCK * kind.super_bytes());
            let scales = panel.add(self.layout.scales_at + b * kind.block_bytes());
            let [scale, second] = S::pair_scales(kind, supers, scales, self.power);
            if bits == 8 {
                for v in 0..8 {
                    put(v, S::byte_pairs(has_min, S::bload(stored.add(v * 64)), scale));
                }
            } else if bits == 4 && !codebook {
                for v in 0..4 {
                    let [low, high] = S::nibble_pairs(has_min, S::bload(stored.add(v * 64)), scale);
                    put(v, low);
                    put(v + 4, high);
                }
            } else {
                for (v, code) in gather::<S>(bits, stored).into_iter().enumerate() {
                    let code = with_offset::<S>(codebook, code, 128 - zero);
                    put(v, S::byte_pairs(has_min, code, if v < 4 { scale } else { second }));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize) {
        // SAFETY: any address may be prefetched.
        unsafe {
            prefetch_scales::<S, TO_L1>(Self::LAYOUT.scales, &self.layout, (panel, b), 1);
            let n_bytes = Self::LAYOUT.code_bytes();
            prefetch_bytes::<S, TO_L1>(panel.wrapping_add(self.layout.codes_at + b * n_bytes), n_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fill_the_range_of_f16_and_products_are_scaled_back() {
        for largest in [1.0, 0.999, 1e-7, 3.0e4, 65_504.0 * 128.0 * 63.0, f32::from_bits(1), 0.0] {
            let PairScale { power, back } = PairScale::of(largest);
            let by = 2.0_f32.powi(power.into());
            assert!(largest * by < 32_768.0 && (largest < 1e-10 || largest * by >= 16_384.0), "{largest}");
            assert!(back.is_normal() && by * back == TILE_DOTS_BY, "{largest}");
        }
        assert!(PairScale::of(f32::INFINITY).back.is_nan() && PairScale::of(f32::NAN).back.is_nan());
    }
}
