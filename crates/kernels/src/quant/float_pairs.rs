//! Pairs of short floats, in as many parts of bfloat16 as lose nothing. Refuses to multiply.

use super::PackedMatrix;
use super::layout::{BLOCK, PANEL};
use super::pairs::{PAIRS_BYTES, PairUnpacker};
use crate::simd::{Lane, ask};

/// Bytes of a block of floats.
const STORED: usize = PANEL * BLOCK * 2;

/// Of bfloat16, whose columns only have to come side by side.
pub(super) type BFloats = ShortFloats<1>;
/// Of half floats: their first eight bits, and the three that are left.
pub(super) type HalfFloats = ShortFloats<2>;

/// Of the floats that so many parts are.
#[derive(Clone, Copy)]
pub(super) struct ShortFloats<const PARTS: usize>;

impl<const PARTS: usize> PairUnpacker for ShortFloats<PARTS> {
    const TOKEN_PARTS: usize = 2;
    const PARTS: usize = PARTS;

    fn of(_: &PackedMatrix) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn unpack<L: Lane>(&self, panel: *const u8, b: usize, out: *mut u8) {
        for k in 0..BLOCK / 2 {
            // SAFETY: a block of floats and the parts of its pairs, by the caller.
            unsafe {
                let columns = panel.add(b * STORED).cast::<u16>().add(2 * k * PANEL);
                let out = out.add(k * 64);
                if PARTS == 1 {
                    put_pair::<L>(out, L::load_bf16(columns), L::load_bf16(columns.add(PANEL)));
                } else {
                    let (even, odd) = (L::load_f16(columns), L::load_f16(columns.add(PANEL)));
                    let (high_even, high_odd) = (high::<L>(even), high::<L>(odd));
                    put_pair::<L>(out, high_even, high_odd);
                    put_pair::<L>(out.add(PAIRS_BYTES), L::sub(even, high_even), L::sub(odd, high_odd));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn ask<L: Lane, const NEAR: bool>(&self, panel: *const u8, b: usize) {
        // SAFETY: any address may be asked for.
        unsafe { ask::<L, NEAR>(panel.wrapping_add(b * STORED), STORED) };
    }
}

/// The upper halves of two columns' floats, side by side; the lower halves are zeros.
#[inline(always)]
unsafe fn put_pair<L: Lane>(out: *mut u8, even: L::F, odd: L::F) {
    // SAFETY: room for a vector, by the callers.
    unsafe { L::istore(out.cast(), L::iadd(L::ishr::<16>(L::bits(even)), L::bits(odd))) }
}

/// The first eight significant bits.
#[inline(always)]
unsafe fn high<L: Lane>(x: L::F) -> L::F {
    // SAFETY: no memory is touched.
    unsafe { L::from_bits(L::iand(L::bits(x), L::isplat(0xFFFF_0000_u32 as i32))) }
}
