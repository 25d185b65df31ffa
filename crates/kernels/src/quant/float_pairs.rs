//! A stretch of a panel of short floats for lanes with tiles: pairs of columns side by side, in as many parts of bfloat16 as
//! lose nothing. Refuses to multiply.

use super::Format;
use super::layout::{BLOCK, PANEL, PanelLayout};
use super::pairs::PAIRS_BYTES;
use crate::simd::{Lane, TILE_ASKS, Task, ask};

/// Parts of bfloat16 that a matrix's weights take in tiles: the eleven bits of a half float are two.
pub(crate) const fn weight_parts(format: Format) -> usize {
    match format {
        Format::F16 => 2,
        _ => 1,
    }
}

/// Unpacks blocks `first..first + n` of a panel in F16 or BF16 to `out`, [`PAIRS_BYTES`] for each block and part.
pub(crate) struct PairFloats<'a> {
    pub(crate) format: Format,
    pub(crate) layout: &'a PanelLayout,
    pub(crate) panel: &'a [u8],
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// What will be wanted after these, to be asked for early: a panel, which need not be valid, and the first block.
    pub(crate) ahead: (*const u8, usize),
    pub(crate) out: &'a mut [u8],
}

impl Task for PairFloats<'_> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let bytes = self.layout.code_bytes;
        assert!(matches!(self.format, Format::F16 | Format::BF16) && bytes == PANEL * BLOCK * 2);
        assert!(self.first + self.n <= self.layout.n_blocks && self.panel.len() == self.layout.bytes);
        assert!(self.out.len() >= self.n * weight_parts(self.format) * PAIRS_BYTES);
        for i in 0..self.n {
            let stored = self.panel[(self.first + i) * bytes..][..bytes].as_ptr().cast();
            let ahead = self.ahead.0.wrapping_add((self.ahead.1 + i) * bytes);
            // SAFETY: a block on both sides; any address may be asked for; the features are the caller's word.
            unsafe {
                ask::<L>(ahead.wrapping_add(TILE_ASKS * 64), bytes - TILE_ASKS * 64);
                let out = self.out.as_mut_ptr().add(i * weight_parts(self.format) * PAIRS_BYTES);
                match self.format {
                    Format::F16 => half_floats::<L>(stored, out),
                    _ => bfloats::<L>(stored, out),
                }
            }
        }
    }
}

/// The upper halves of two columns' floats, side by side; the lower halves are zeros.
#[inline(always)]
unsafe fn put_pair<L: Lane>(out: *mut u8, even: L::F, odd: L::F) {
    // SAFETY: room for a vector, by the callers.
    unsafe { L::istore(out.cast(), L::iadd(L::ishr::<16>(L::bits(even)), L::bits(odd))) }
}

/// A block of bfloat16.
#[inline(always)]
unsafe fn bfloats<L: Lane>(stored: *const u16, out: *mut u8) {
    for k in 0..BLOCK / 2 {
        // SAFETY: a block on both sides, by the caller.
        unsafe {
            let columns = stored.add(2 * k * PANEL);
            put_pair::<L>(out.add(k * 64), L::load_bf16(columns), L::load_bf16(columns.add(PANEL)));
        }
    }
}

/// A block of half floats: their first eight bits, and what is left.
#[inline(always)]
unsafe fn half_floats<L: Lane>(stored: *const u16, out: *mut u8) {
    for k in 0..BLOCK / 2 {
        // SAFETY: a block of floats and two of pairs, by the caller.
        unsafe {
            let columns = stored.add(2 * k * PANEL);
            let (even, odd) = (L::load_f16(columns), L::load_f16(columns.add(PANEL)));
            let (high_even, high_odd) = (high::<L>(even), high::<L>(odd));
            put_pair::<L>(out.add(k * 64), high_even, high_odd);
            let low = out.add(PAIRS_BYTES + k * 64);
            put_pair::<L>(low, L::sub(even, high_even), L::sub(odd, high_odd));
        }
    }
}

/// The first eight significant bits.
#[inline(always)]
unsafe fn high<L: Lane>(x: L::F) -> L::F {
    // SAFETY: no memory is touched.
    unsafe { L::from_bits(L::iand(L::bits(x), L::isplat(0xFFFF_0000_u32 as i32))) }
}
