//! A stretch of a panel for lanes with tiles: the weights themselves in bfloat16, pairs of columns side by side. Done once
//! for all tokens of a call. Refuses to multiply.
//!
//! A weight is `scale · value (+ min)` in half floats, the scale and the min times a power of two that suits the matrix
//! (see [`PairScale`]), rounded once; then rounded to the eight significant bits of bfloat16. Values of four bits with a min
//! are taken for eight less, and eight scales, rounded once more, added to the min.

use half::f16;

use super::float_pairs::{BFloats, HalfFloats};
use super::layout::{BLOCK, CodeLayout, PANEL, PanelLayout, SUPER};
use super::unpack::{ask_for_scales, gather, with_offset};
use super::{Format, PackedMatrix};
use crate::simd::{Lane, TILE_DOTS_BY, ask};

/// Bytes of an unpacked block.
pub(crate) const PAIRS_BYTES: usize = PANEL * BLOCK * 2;

/// What brings a matrix's weights into the range of half floats and its products back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PairScale {
    /// Scales and mins are multiplied by two to this power.
    power: i8,
    /// What products are multiplied by: a power of two, or NaN where a scale is not finite.
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
        // Weights are to stay below 2^15; all zeros may have any exponent.
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        let power = 14 - exponent.clamp(-60, 60);
        Self { power: power as i8, back: TILE_DOTS_BY * f32::from_bits(((127 - power) as u32) << 23) }
    }
}

/// What makes pairs of a format's blocks.
pub(crate) trait PairUnpacker: Copy {
    /// Parts of bfloat16 that tokens come in.
    const TOKEN_PARTS: usize;
    /// Parts that a weight becomes, [`PAIRS_BYTES`] of a block each.
    const PARTS: usize;

    /// Of a matrix in the format.
    fn of(weights: &PackedMatrix) -> Self;

    /// Unpacks block `b` of a panel.
    ///
    /// # Safety
    /// The panel has the block, `out` has room for it, and the lane has its features and tiles.
    unsafe fn unpack<L: Lane>(&self, panel: *const u8, b: usize, out: *mut u8);

    /// Asks for what unpacking block `b` of a panel reads; see [`ask`].
    ///
    /// # Safety
    /// The lane's features must be there; the panel need not be valid.
    unsafe fn ask<L: Lane, const NEAR: bool>(&self, panel: *const u8, b: usize);
}

/// Work that wants to know a matrix's unpacker.
pub(crate) trait WithUnpacker {
    /// Does the work.
    fn run<U: PairUnpacker>(self);
}

impl PackedMatrix {
    /// Does work with the matrix's unpacker.
    ///
    /// # Panics
    /// With a matrix of 32-bit floats, which has none.
    pub(crate) fn with_unpacker(&self, work: impl WithUnpacker) {
        macro_rules! of_codes {
            ($($format:ident)*) => {
                match self.format() {
                    $(Format::$format => work.run::<Codes<{ Format::$format as usize }>>(),)*
                    Format::F16 => work.run::<HalfFloats>(),
                    Format::BF16 => work.run::<BFloats>(),
                    Format::F32 => panic!("floats of 32 bits have no pairs"),
                }
            };
        }
        of_codes!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
    }
}

/// Of the codes of a format, by its place in [`Format::ALL`]: what is known of them when the program is compiled need
/// not be asked for each block.
#[derive(Clone, Copy)]
struct Codes<const FORMAT: usize> {
    layout: PanelLayout,
    /// Scales and mins are multiplied by two to this power: the bits of a half float.
    power: u16,
}

impl<const FORMAT: usize> Codes<FORMAT> {
    const LAYOUT: CodeLayout = CodeLayout::of(Format::ALL[FORMAT]).expect("a format of codes");
}

impl<const FORMAT: usize> PairUnpacker for Codes<FORMAT> {
    const TOKEN_PARTS: usize = 1;
    const PARTS: usize = 1;

    fn of(weights: &PackedMatrix) -> Self {
        let power = f16::from_f32(f32::from(weights.pair_scale().power)).to_bits();
        Self { layout: *weights.layout(), power }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lane>(&self, panel: *const u8, b: usize, out: *mut u8) {
        let CodeLayout { bits, codebook, zero, scales: kind } = Self::LAYOUT;
        let has_min = kind.has_min();
        // SAFETY: the block is in the panel and has room in `out`, by the caller.
        unsafe {
            let stored = panel.add(self.layout.codes_at + b * Self::LAYOUT.code_bytes());
            let put = |v: usize, [even, odd]: [L::B; 2]| {
                L::bstore(out.add(v * 128), even);
                L::bstore(out.add(v * 128 + 64), odd);
            };
            let supers = panel.add(b / SUPER * kind.super_bytes());
            let scales = panel.add(self.layout.scales_at + b * kind.block_bytes());
            let [scale, second] = L::pair_scales(kind, supers, scales, self.power);
            if bits == 8 {
                for v in 0..8 {
                    put(v, L::byte_pairs(has_min, L::bload(stored.add(v * 64)), scale));
                }
            } else if bits == 4 && !codebook {
                for v in 0..4 {
                    let [low, high] = L::nibble_pairs(has_min, L::bload(stored.add(v * 64)), scale);
                    put(v, low);
                    put(v + 4, high);
                }
            } else {
                for (v, code) in gather::<L>(bits, stored).into_iter().enumerate() {
                    let code = with_offset::<L>(codebook, code, 128 - zero);
                    put(v, L::byte_pairs(has_min, code, if v < 4 { scale } else { second }));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn ask<L: Lane, const NEAR: bool>(&self, panel: *const u8, b: usize) {
        // SAFETY: any address may be asked for.
        unsafe {
            ask_for_scales::<L, NEAR>(Self::LAYOUT.scales, &self.layout, (panel, b), 1);
            let n_bytes = Self::LAYOUT.code_bytes();
            ask::<L, NEAR>(panel.wrapping_add(self.layout.codes_at + b * n_bytes), n_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fill_the_range_of_half_floats_and_products_come_back() {
        for largest in [1.0, 0.999, 1e-7, 3.0e4, 65_504.0 * 128.0 * 63.0, f32::from_bits(1), 0.0] {
            let PairScale { power, back } = PairScale::of(largest);
            let by = 2.0_f32.powi(power.into());
            assert!(largest * by < 32_768.0 && (largest < 1e-10 || largest * by >= 16_384.0), "{largest}");
            assert!(back.is_normal() && by * back == TILE_DOTS_BY, "{largest}");
        }
        assert!(PairScale::of(f32::INFINITY).back.is_nan() && PairScale::of(f32::NAN).back.is_nan());
    }
}
