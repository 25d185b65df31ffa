//! Products of a few tokens: a panel's stored codes are unpacked in registers and multiplied at once, in one pass over memory, because
//! the time of such a product is that of reading the weights. Sums in the same order as the register tiles, so that bits agree.

use super::tile::Scales;
use crate::layout::{BLOCK, CodeLayout, PANEL, PanelLayout, RECORD};
use crate::quant::{gather, scale_and_min, with_offset};
use crate::simd::{Kernel, SimdIsa, prefetch_bytes};

/// How far ahead of the arithmetic a panel's bytes are prefetched: panels follow one another in memory.
const AHEAD_BYTES: usize = 2048;

/// `T` tokens times the sixteen rows of one panel, over a K block.
pub(super) struct FewTokens<'a, const T: usize> {
    pub(super) codes: CodeLayout,
    pub(super) layout: &'a PanelLayout,
    pub(super) panel: &'a [u8],
    /// The first quantization block and their number.
    pub(super) first: usize,
    pub(super) n: usize,
    /// The token group's first record of the K block.
    pub(super) x: *const u8,
    /// The first token within the group.
    pub(super) token: usize,
    /// T rows of sixteen, `stride` elements apart.
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    /// Adds to the outputs instead of overwriting them.
    pub(super) adds: bool,
}

impl<const T: usize> Kernel for FewTokens<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        assert!(self.first + self.n <= self.layout.n_blocks && self.panel.len() == self.layout.bytes);
        let scales = self.codes.scales;
        // SAFETY: the panel was checked; the caller provides as many records and outputs as the fields say.
        unsafe {
            match (self.codes.bits, scales.halves(), scales.has_min()) {
                (8, ..) => self.blocks::<S, 8, false, false>(),
                (2, ..) => self.blocks::<S, 2, true, true>(),
                (3, ..) => self.blocks::<S, 3, true, false>(),
                (4, _, false) => self.blocks::<S, 4, false, false>(),
                (4, _, true) => self.blocks::<S, 4, false, true>(),
                (5, _, false) => self.blocks::<S, 5, false, false>(),
                (5, _, true) => self.blocks::<S, 5, false, true>(),
                _ => self.blocks::<S, 6, true, false>(),
            }
        }
    }
}

impl<const T: usize> FewTokens<'_, T> {
    #[inline(always)]
    unsafe fn blocks<S: SimdIsa, const BITS: usize, const HALVES: bool, const MIN: bool>(&self) {
        let (layout, kind) = (self.layout, self.codes.scales);
        assert!(kind.halves() == HALVES && kind.has_min() == MIN && self.codes.bits == BITS);
        let is_narrow = S::WIDE_IS_SLOW && self.codes.is_narrow();
        let is_wide = !MIN && !is_narrow;
        let to_wide = if is_wide { 128 - self.codes.zero } else { 0 };
        let offset = match () {
            () if MIN || (is_wide && S::WIDE_IS_SIGNED) => 0,
            () if is_wide => 128,
            () => i32::from(self.codes.zero),
        };
        let ones = [1i8; 16];
        let step = layout.bytes / layout.n_blocks;
        // SAFETY: blocks `first..first + n` are in the panel; records and outputs by contract; any address may be prefetched.
        unsafe {
            let mut acc = [S::splat(0.0); T];
            if self.adds {
                for (t, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load(self.out.add(t * self.stride));
                }
            }
            for i in 0..self.n {
                let b = self.first + i;
                prefetch_bytes::<S, true>(self.panel.as_ptr().wrapping_add(AHEAD_BYTES + b * step), step);
                let stored = self.panel.as_ptr().add(layout.codes_at + b * layout.code_bytes);
                let mut codes = [S::bsplat(0); 8];
                if BITS == 8 {
                    for (j, code) in codes.iter_mut().enumerate() {
                        *code = S::bload(stored.add(j * 64));
                    }
                } else {
                    codes = gather::<S>(BITS, stored);
                    for code in &mut codes {
                        *code = with_offset::<S>(self.codes.codebook, *code, to_wide);
                    }
                }
                let record = self.x.add(i * RECORD);
                for part in 0..if HALVES { 2 } else { 1 } {
                    let mut dots = [S::isplat(0); T];
                    let mut sum = S::isplat(0);
                    for half in if HALVES { part..part + 1 } else { 0..2 } {
                        let at = 4 * half;
                        let w = [codes[at], codes[at + 1], codes[at + 2], codes[at + 3]];
                        for (t, dots) in dots.iter_mut().enumerate() {
                            let x = record.add((self.token + t) * BLOCK + half * PANEL).cast();
                            *dots =
                                if is_wide { S::dot16_wide(*dots, &w, x) } else { S::dot16(*dots, &w, x) };
                        }
                        let x = ones.as_ptr();
                        sum = if is_wide { S::dot16_wide(sum, &w, x) } else { S::dot16(sum, &w, x) };
                        sum = S::isub(sum, S::isplat(offset * 16));
                    }
                    let sums = S::iadd(S::iand(sum, S::isplat(0xFFFF)), S::isplat(offset << 16));
                    let (scale, min) = scale_and_min::<S>(kind, layout, self.panel.as_ptr(), (b, part));
                    let scales =
                        Scales::<S, HALVES, MIN>::new((sums, scale, min), record.add(self.token * 4), part);
                    for (t, acc) in acc.iter_mut().enumerate() {
                        *acc = scales.add(*acc, dots[t], t);
                    }
                }
            }
            for (t, acc) in acc.iter().enumerate() {
                S::store(self.out.add(t * self.stride), *acc);
            }
        }
    }
}
