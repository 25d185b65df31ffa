//! Unpacks weights that are floats of at most 16 bits to bf16 pairs for AMX tiles, in as many parts as an
//! exact result needs. Does not multiply.

use super::AmxUnpacker;
use crate::layout::{BLOCK, E4m3Scale, PAIRS_BYTES, PANEL, PanelLayout};
use crate::quant::{PackedMatrix, e4m3_scale};
use crate::simd::{AmxIsa, SimdIsa, prefetch_bytes};

/// Bytes of a stored block.
const STORED: usize = PANEL * BLOCK * 2;

/// bf16 weights: only the columns are interleaved.
pub(super) type BFloats = ShortFloats<1>;
/// f16 weights: the first eight significant bits and the remaining three.
pub(super) type HalfFloats = ShortFloats<2>;

/// Unpacks a 16-bit float format into `PARTS` bf16 parts.
#[derive(Clone, Copy)]
pub(super) struct ShortFloats<const PARTS: usize>;

impl<const PARTS: usize> AmxUnpacker for ShortFloats<PARTS> {
    const TOKEN_PARTS: usize = 2;
    const PARTS: usize = PARTS;

    fn of(_: &PackedMatrix) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn unpack<S: AmxIsa>(&self, panel: *const u8, b: usize, out: *mut u8) {
        for k in 0..BLOCK / 2 {
            // SAFETY: a block of floats and the parts of its pairs, by the caller.
            unsafe {
                let columns = panel.add(b * STORED).cast::<u16>().add(2 * k * PANEL);
                let out = out.add(k * 64);
                if PARTS == 1 {
                    put_pair::<S>(out, S::load_bf16(columns), S::load_bf16(columns.add(PANEL)));
                } else {
                    let (even, odd) = (S::load_f16(columns), S::load_f16(columns.add(PANEL)));
                    let (high_even, high_odd) = (high::<S>(even), high::<S>(odd));
                    put_pair::<S>(out, high_even, high_odd);
                    put_pair::<S>(out.add(PAIRS_BYTES), S::sub(even, high_even), S::sub(odd, high_odd));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize) {
        // SAFETY: any address may be prefetched.
        unsafe { prefetch_bytes::<S, TO_L1>(panel.wrapping_add(b * STORED), STORED) };
    }
}

/// MXFP8 weights: every number is one of bf16.
#[derive(Clone, Copy)]
pub(super) struct MxFloats {
    layout: PanelLayout,
}

impl AmxUnpacker for MxFloats {
    const TOKEN_PARTS: usize = 2;
    const PARTS: usize = 1;

    fn of(weights: &PackedMatrix) -> Self {
        Self { layout: *weights.layout() }
    }

    #[inline(always)]
    unsafe fn unpack<S: AmxIsa>(&self, panel: *const u8, b: usize, out: *mut u8) {
        // SAFETY: the panel has the block and `out` has room for its pairs, by the caller.
        unsafe {
            let scale = e4m3_scale::<S>(E4m3Scale::Exponent, &self.layout, panel, b);
            let stored = panel.add(self.layout.codes_at + b * PANEL * BLOCK);
            for k in 0..BLOCK / 2 {
                let column = |c: usize| S::mul(S::load_e4m3(stored.add((2 * k + c) * PANEL)), scale);
                put_pair::<S>(out.add(k * 64), column(0), column(1));
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize) {
        // SAFETY: any address may be prefetched.
        unsafe {
            S::prefetch(panel.wrapping_add(self.layout.scales_at + E4m3Scale::Exponent.at(b)));
            let codes = panel.wrapping_add(self.layout.codes_at + b * PANEL * BLOCK);
            prefetch_bytes::<S, TO_L1>(codes, PANEL * BLOCK);
        }
    }
}

/// Interleaves the upper halves of two columns' f32; their lower halves are zeros.
#[inline(always)]
unsafe fn put_pair<S: SimdIsa>(out: *mut u8, even: S::F, odd: S::F) {
    // SAFETY: room for a vector, by the callers.
    unsafe { S::istore(out.cast(), S::iadd(S::ishr::<16>(S::bits(even)), S::bits(odd))) }
}

/// Keeps the first eight significant bits.
#[inline(always)]
unsafe fn high<S: SimdIsa>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe { S::from_bits(S::iand(S::bits(x), S::isplat(0xFFFF_0000_u32 as i32))) }
}
