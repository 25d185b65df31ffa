//! A stretch of a panel for lanes with tiles: the weights themselves in bfloat16, pairs of columns side by side. Done once
//! for all tokens of a call. Refuses to multiply.
//!
//! A weight is `scale · value (+ min)` in half floats, the scale and the min times a power of two that suits the matrix
//! (see [`PairScale`]), rounded once; then rounded to the eight significant bits of bfloat16.

use super::layout::{BLOCK, CodeLayout, PANEL, PanelLayout};
use super::unpack::{ask_for_scales, gather, scale_and_min};
use crate::simd::{Lane, TILE_ASKS, TILE_DOTS_BY, Task, ask};

/// Bytes of an unpacked block.
pub(crate) const PAIRS_BYTES: usize = PANEL * BLOCK * 2;

/// What brings a matrix's weights into the range of half floats and its products back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PairScale {
    /// What scales and mins are multiplied by: a power of two.
    by: f32,
    /// What products are multiplied by: a power of two, or NaN where a scale is not finite.
    pub(crate) back: f32,
}

impl PairScale {
    /// For weights that are floats already.
    pub(crate) const NONE: Self = Self { by: 1.0, back: 1.0 };

    /// For weights of at most this magnitude.
    pub(crate) fn of(largest: f32) -> Self {
        if !largest.is_finite() {
            return Self { by: 1.0, back: f32::NAN };
        }
        // Weights are to stay below 2^15; all zeros may have any exponent.
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        let by = 14 - exponent.clamp(-60, 60);
        let power = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << 23);
        Self { by: power(by), back: TILE_DOTS_BY * power(-by) }
    }
}

/// Unpacks blocks `first..first + n` of a panel to `out`, [`PAIRS_BYTES`] each.
pub(crate) struct UnpackPairs<'a> {
    pub(crate) codes: CodeLayout,
    pub(crate) scale: PairScale,
    pub(crate) layout: &'a PanelLayout,
    pub(crate) panel: &'a [u8],
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// What will be wanted after these, to be asked for early: a panel, which need not be valid, and the first block.
    pub(crate) ahead: (*const u8, usize),
    pub(crate) out: &'a mut [u8],
}

impl Task for UnpackPairs<'_> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        assert!(self.first + self.n <= self.layout.n_blocks && self.panel.len() == self.layout.bytes);
        assert!(self.out.len() >= self.n * PAIRS_BYTES);
        // SAFETY: sizes were checked above and by the layout; the features are the caller's word.
        unsafe {
            ask_for_scales::<L>(self.codes.scales, self.layout, self.ahead, self.n);
            match (self.codes.bits, self.codes.scales.has_min()) {
                (8, _) => self.blocks::<L, 8, false>(),
                (4, false) => self.blocks::<L, 4, false>(),
                (4, true) => self.blocks::<L, 4, true>(),
                (5, false) => self.blocks::<L, 5, false>(),
                (5, true) => self.blocks::<L, 5, true>(),
                (6, _) => self.blocks::<L, 6, false>(),
                (3, _) => self.blocks::<L, 3, false>(),
                _ => self.blocks::<L, 2, true>(),
            }
        }
    }
}

impl UnpackPairs<'_> {
    #[inline(always)]
    unsafe fn blocks<L: Lane, const BITS: usize, const MIN: bool>(self) {
        let codes_at = |b: usize| self.layout.codes_at + b * self.layout.code_bytes;
        let (stored, ahead) = (self.panel[codes_at(self.first)..].as_ptr(), self.ahead.0);
        let ahead = ahead.wrapping_add(codes_at(self.ahead.1));
        let table = self.codes.table();
        for i in 0..self.n {
            // SAFETY: the block is in the panel and has room in `out`; any address may be asked for.
            unsafe {
                let (stored, ahead) = (stored.add(i * BITS * 64), ahead.wrapping_add(i * BITS * 64));
                let out = self.out.as_mut_ptr().add(i * PAIRS_BYTES);
                let put = |v: usize, [even, odd]: [L::B; 2]| {
                    L::bstore(out.add(v * 128), even);
                    L::bstore(out.add(v * 128 + 64), odd);
                };
                ask::<L>(ahead.wrapping_add(TILE_ASKS * 64), (BITS * 64).saturating_sub(TILE_ASKS * 64));
                let scale = self.scale_and_min::<L, BITS, MIN>(self.first + i, 0);
                match BITS {
                    8 => {
                        for v in 0..8 {
                            put(v, L::wide_pairs(L::bload(stored.add(v * 64)), scale[0]));
                        }
                    }
                    4 => {
                        for v in 0..4 {
                            let [low, high] =
                                L::nibble_pairs::<MIN>(L::bload(stored.add(v * 64)), table, scale);
                            put(v, low);
                            put(v + 4, high);
                        }
                    }
                    _ => {
                        let halves = self.codes.scales.halves();
                        let second = if halves {
                            self.scale_and_min::<L, BITS, MIN>(self.first + i, 1)
                        } else {
                            scale
                        };
                        for (v, codes) in gather::<L, BITS>(stored).into_iter().enumerate() {
                            let scale = if v < 4 { scale } else { second };
                            put(v, L::small_pairs::<MIN>(codes, self.codes.zero, scale));
                        }
                    }
                }
            }
        }
    }

    /// The scale of a block, or of one of its halves, and its min if it has one, as the lane takes them.
    #[inline(always)]
    unsafe fn scale_and_min<L: Lane, const BITS: usize, const MIN: bool>(
        &self,
        b: usize,
        part: usize,
    ) -> [L::B; 2] {
        // Codes of eight bits stand for 256ths.
        let by = if BITS == 8 { self.scale.by / 256.0 } else { self.scale.by };
        // SAFETY: the block is in the panel.
        unsafe {
            let of_block = (b, part);
            let (scale, min) =
                scale_and_min::<L>(self.codes.scales, self.layout, self.panel.as_ptr(), of_block);
            let scale = L::halves(L::mul(scale, L::splat(by)));
            [scale, if MIN { L::halves(L::mul(min, L::splat(by))) } else { scale }]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fill_the_range_of_half_floats_and_products_come_back() {
        for largest in [1.0, 0.999, 1e-7, 3.0e4, 65_504.0 * 128.0 * 63.0, f32::from_bits(1), 0.0] {
            let PairScale { by, back } = PairScale::of(largest);
            assert!(largest * by < 32_768.0 && (largest < 1e-10 || largest * by >= 16_384.0), "{largest}");
            assert!(back.is_normal() && by * back == TILE_DOTS_BY, "{largest}");
        }
        assert!(PairScale::of(f32::INFINITY).back.is_nan() && PairScale::of(f32::NAN).back.is_nan());
    }
}
