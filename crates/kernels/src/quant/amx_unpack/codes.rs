//! Unpacks quantized weights to bf16 pairs for AMX tiles. Does not multiply.
//!
//! A weight is `scale · value (+ min)` in f16, where scale and min are multiplied by a power of two chosen
//! for the matrix (see [`crate::quant::pair_scale::PairScale`]) and rounded once; the result is rounded to
//! bf16. 4-bit values with a min are unpacked as value − 8, and 8 × scale (rounded once more) is added to the
//! min.

use half::f16;

use super::AmxUnpacker;
use crate::layout::{CodeLayout, PanelLayout};
use crate::quant::PackedMatrix;
use crate::quant::unpack::{gather, prefetch_scales, with_offset};
use crate::simd::{AmxIsa, SimdIsa, prefetch_bytes};

/// The unpacker of a layout of codes, given by its index in [`CodeLayout::ALL`].
#[derive(Clone, Copy)]
pub(super) struct Codes<const LAYOUT: usize> {
    layout: PanelLayout,
    /// Scales and mins are multiplied by 2^power; the bits of an f16.
    power: u16,
}

impl<const LAYOUT: usize> Codes<LAYOUT> {
    const LAYOUT: CodeLayout = CodeLayout::ALL[LAYOUT];
}

impl<const LAYOUT: usize> AmxUnpacker for Codes<LAYOUT> {
    // Where weights are exact, activations may be nearly so: see `Forms::mxfp4`.
    const TOKEN_PARTS: usize = if Self::LAYOUT.is_exact_in_bf16() { 2 } else { 1 };
    const PARTS: usize = 1;

    fn of(weights: &PackedMatrix) -> Self {
        let power = f16::from_f32(f32::from(weights.pair_scale().power)).to_bits();
        Self { layout: *weights.layout(), power }
    }

    #[inline(always)]
    unsafe fn unpack<S: AmxIsa>(&self, panel: *const u8, b: usize, out: *mut u8) {
        let CodeLayout { bits, codebook, zero, scales: kind, .. } = Self::LAYOUT;
        let has_min = kind.has_min();
        // SAFETY: the block is in the panel and has room in `out`, by the caller.
        unsafe {
            let stored = panel.add(self.layout.codes_at + b * Self::LAYOUT.code_bytes());
            let put = |v: usize, [even, odd]: [S::B; 2]| {
                S::bstore(out.add(v * 128), even);
                S::bstore(out.add(v * 128 + 64), odd);
            };
            let supers = panel.add(kind.super_at(b));
            let scales = panel.add(self.layout.scales_at + b * kind.block_bytes());
            let [scale, second] = S::pair_scales(kind, supers, scales, self.power);
            if bits == 8 {
                for v in 0..8 {
                    put(v, S::byte_pairs(has_min, S::bload(stored.add(v * 64)), scale));
                }
            } else if bits == 4 && codebook.is_none() {
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
            prefetch_scales::<S, TO_L1>(Self::LAYOUT.scales, &self.layout, panel, b, 1);
            let n_bytes = Self::LAYOUT.code_bytes();
            prefetch_bytes::<S, TO_L1>(panel.wrapping_add(self.layout.codes_at + b * n_bytes), n_bytes);
        }
    }
}
