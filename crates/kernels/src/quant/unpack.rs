//! Unpacks a K block of a panel into the form that register tiles read: 8-bit codes with f32 scales and mins,
//! or f32 weights for float formats. Done once for all tokens of a call. Does not multiply.

use super::{Format, e4m3_scale};
use crate::formats::Elements;
use crate::layout::{BLOCK, Codebook, E4m3Scale, FloatLayout, PANEL, PanelLayout, ScaleKind};
use crate::simd::{Kernel, SimdIsa, prefetch_bytes};

/// An unpacked K block: in the panel itself where the stored form is that form already, otherwise in the
/// scratch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacked {
    /// [block][8][64] codes; [column][16] f32 of float formats.
    pub(crate) codes: *const u8,
    /// [block][half or whole][16].
    pub(crate) scales: *const f32,
    /// Minimums, laid out as `scales`, to be added; only where the format has mins.
    pub(crate) mins: *const f32,
    /// Sums, laid out as `scales`: i16 pairs of the sum of the codes (without their offset) and the offset
    /// that a dot product of codes contains. Null for float formats.
    pub(crate) sums: *const i32,
    /// Address to prefetch: the stored bytes read after this K block. Need not be valid.
    pub(crate) ahead: *const u8,
    /// Bytes to prefetch with each block.
    pub(crate) ahead_bytes: usize,
}

/// Unpacks blocks `first..first + n` of a panel. Codes without mins become value + 128, except codes below 64
/// on ISAs where [`SimdIsa::WIDE_IS_SLOW`].
///
/// `scratch_codes` has room for `n` blocks of 512 bytes (of 2048 for float formats), `scratch_scales` for `2
/// n` vectors of scales, `2 n` of mins and `2 n` of sums.
pub(crate) struct Unpack<'a> {
    pub(crate) format: Format,
    pub(crate) layout: &'a PanelLayout,
    pub(crate) panel: &'a [u8],
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// Operands to prefetch: the panel read after these blocks (need not be valid) and its first block.
    pub(crate) ahead: (*const u8, usize),
    pub(crate) scratch_codes: &'a mut [u8],
    pub(crate) scratch_scales: &'a mut [f32],
}

/// Bytes of an unpacked block.
pub(crate) fn unpacked_block_bytes(format: Format) -> usize {
    PANEL * BLOCK * if format.is_float() { 4 } else { 1 }
}

impl Kernel for Unpack<'_> {
    type Output = Unpacked;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> Unpacked {
        assert!(self.first + self.n <= self.layout.n_blocks && self.panel.len() == self.layout.bytes);
        assert!(self.scratch_codes.len() >= self.n * unpacked_block_bytes(self.format));
        let at = self.layout.codes_at + self.first * self.layout.code_bytes;
        let stored = self.panel[at..].as_ptr();
        let out = self.scratch_codes.as_mut_ptr();
        let none = std::ptr::null::<f32>();
        let ahead_bytes = self.layout.code_bytes;
        let ahead = self.ahead.0.wrapping_add(self.layout.codes_at + self.ahead.1 * ahead_bytes);
        // SAFETY: sizes were checked above and by the layout; the caller guarantees the features.
        unsafe {
            let codes = match self.format.elements() {
                Elements::Codes(codes, _) => codes,
                Elements::Floats(floats) => {
                    let store = |p, x| S::store(p, x);
                    let weights = match floats {
                        FloatLayout::F32 => stored,
                        FloatLayout::F16 => widen(stored, out, self.n, |p| S::load_f16(p), store),
                        FloatLayout::BF16 => widen(stored, out, self.n, |p| S::load_bf16(p), store),
                        FloatLayout::Fp8 => self.widen_e4m3::<S>(E4m3Scale::F32, stored, out),
                        FloatLayout::Mxfp8 => self.widen_e4m3::<S>(E4m3Scale::Exponent, stored, out),
                    };
                    let sums = std::ptr::null();
                    return Unpacked { codes: weights, scales: none, mins: none, sums, ahead, ahead_bytes };
                }
            };
            let n_vectors = self.n * if codes.scales.halves() { 2 } else { 1 };
            assert!(self.scratch_scales.len() >= 3 * n_vectors * PANEL);
            let scales = self.scratch_scales.as_mut_ptr();
            let mins = scales.add(n_vectors * PANEL);
            let sums = mins.add(n_vectors * PANEL).cast::<i32>();
            self.scales::<S>(codes.scales, scales, mins);
            let (panel, first) = self.ahead;
            prefetch_scales::<S, false>(codes.scales, self.layout, panel, first, self.n);
            let (has_min, halves) = (codes.scales.has_min(), codes.scales.halves());
            let is_narrow = S::WIDE_IS_SLOW && codes.is_narrow();
            let zero = i32::from(codes.zero);
            let offset = if has_min || is_narrow { 0 } else { 128 - codes.zero };
            let codes = match (codes.bits, codes.codebook) {
                (8, _) => stored,
                (4, Some(codebook)) => planes::<S, 4>(stored, out, self.n, Some(codebook), 0),
                (3, Some(codebook)) => planes::<S, 3>(stored, out, self.n, Some(codebook), 0),
                (2, _) => planes::<S, 2>(stored, out, self.n, None, offset),
                (3, _) => planes::<S, 3>(stored, out, self.n, None, offset),
                (4, _) => planes::<S, 4>(stored, out, self.n, None, offset),
                (5, _) => planes::<S, 5>(stored, out, self.n, None, offset),
                _ => planes::<S, 6>(stored, out, self.n, None, offset),
            };
            for b in 0..self.n {
                let block = codes.add(b * PANEL * BLOCK);
                match (has_min, halves) {
                    (false, false) if is_narrow => narrow_sums::<S, false>(block, zero, sums.add(b * PANEL)),
                    (false, true) if is_narrow => {
                        narrow_sums::<S, true>(block, zero, sums.add(2 * b * PANEL))
                    }
                    (false, false) => code_sums::<S, false>(block, sums.add(b * PANEL)),
                    (true, false) => narrow_sums::<S, false>(block, 0, sums.add(b * PANEL)),
                    (false, true) => code_sums::<S, true>(block, sums.add(2 * b * PANEL)),
                    (true, true) => narrow_sums::<S, true>(block, 0, sums.add(2 * b * PANEL)),
                }
            }
            Unpacked { codes, scales, mins, sums, ahead, ahead_bytes }
        }
    }
}

/// The sums that [`Unpacked::sums`] describes, of one block of unpacked codes, value + 128.
#[inline(always)]
pub(crate) unsafe fn code_sums<S: SimdIsa, const HALVES: bool>(codes: *const u8, out: *mut i32) {
    let offset = if S::WIDE_IS_SIGNED { 0 } else { 128 };
    // SAFETY: by the caller.
    unsafe { sums::<S, HALVES, false>(codes, offset, out) }
}

/// Sums as above, for codes below 64 with `zero` as the code of zero.
#[inline(always)]
unsafe fn narrow_sums<S: SimdIsa, const HALVES: bool>(codes: *const u8, zero: i32, out: *mut i32) {
    // SAFETY: by the caller.
    unsafe { sums::<S, HALVES, true>(codes, zero, out) }
}

#[inline(always)]
unsafe fn sums<S: SimdIsa, const HALVES: bool, const NARROW: bool>(
    codes: *const u8,
    offset: i32,
    out: *mut i32,
) {
    // SAFETY: a block of codes; one vector of sums, or two.
    unsafe {
        let ones = [1i8; 16];
        let mut sum = S::isplat(0);
        for half in 0..2 {
            let w: [S::B; 4] = std::array::from_fn(|v| S::bload(codes.add((4 * half + v) * 64)));
            if HALVES {
                sum = S::isplat(0);
            }
            let dots =
                if NARROW { S::dot16(sum, &w, ones.as_ptr()) } else { S::dot16_wide(sum, &w, ones.as_ptr()) };
            sum = S::isub(dots, S::isplat(offset * 16));
            let pairs = S::iadd(S::iand(sum, S::isplat(0xFFFF)), S::isplat(offset << 16));
            S::istore(out.add(if HALVES { half * PANEL } else { 0 }), pairs);
        }
    }
}

/// Floats of two bytes to f32.
#[inline(always)]
unsafe fn widen<F>(
    stored: *const u8,
    out: *mut u8,
    n: usize,
    load: impl Fn(*const u16) -> F,
    store: impl Fn(*mut f32, F),
) -> *const u8 {
    for k in 0..n * BLOCK {
        // SAFETY: `n` blocks on both sides, by the caller.
        unsafe { store(out.cast::<f32>().add(k * PANEL), load(stored.cast::<u16>().add(k * PANEL))) };
    }
    out
}

impl Unpack<'_> {
    /// E4M3 to f32, scales applied.
    #[inline(always)]
    unsafe fn widen_e4m3<S: SimdIsa>(&self, kind: E4m3Scale, stored: *const u8, out: *mut u8) -> *const u8 {
        for i in 0..self.n {
            // SAFETY: the blocks are in the panel, and the scratch has room for `n` of them.
            unsafe {
                let scale = e4m3_scale::<S>(kind, self.layout, self.panel.as_ptr(), self.first + i);
                for k in i * BLOCK..(i + 1) * BLOCK {
                    let x = S::mul(S::load_e4m3(stored.add(k * PANEL)), scale);
                    S::store(out.cast::<f32>().add(k * PANEL), x);
                }
            }
        }
        out
    }

    /// Unpacks the f32 scales and mins of the K block.
    #[inline(always)]
    unsafe fn scales<S: SimdIsa>(&self, kind: ScaleKind, scales: *mut f32, mins: *mut f32) {
        let n_parts = if kind.halves() { 2 } else { 1 };
        for i in 0..self.n {
            for part in 0..n_parts {
                let at = (i * n_parts + part) * PANEL;
                // SAFETY: the block is in the panel, and the scratch has room for `n` of them.
                unsafe {
                    let (b, panel) = (self.first + i, self.panel.as_ptr());
                    let (scale, min) = scale_and_min::<S>(kind, self.layout, panel, b, part);
                    S::store(scales.add(at), scale);
                    if kind.has_min() {
                        S::store(mins.add(at), min);
                    }
                }
            }
        }
    }
}

/// Prefetches the scales of `n` blocks of a panel, which need not be valid, from block `first` on.
#[inline(always)]
pub(crate) unsafe fn prefetch_scales<S: SimdIsa, const TO_L1: bool>(
    kind: ScaleKind,
    layout: &PanelLayout,
    panel: *const u8,
    first: usize,
    n: usize,
) {
    let scales = panel.wrapping_add(layout.scales_at + first * kind.block_bytes());
    let supers = panel.wrapping_add(kind.super_at(first));
    // SAFETY: any address may be prefetched.
    unsafe {
        prefetch_bytes::<S, TO_L1>(scales, n * kind.block_bytes());
        prefetch_bytes::<S, TO_L1>(supers, n.div_ceil(kind.blocks_per_super()) * kind.super_bytes());
    }
}

/// The f32 scales of a block (or half block) and the mins that are added to its values, or zeros.
#[inline(always)]
pub(crate) unsafe fn scale_and_min<S: SimdIsa>(
    kind: ScaleKind,
    layout: &PanelLayout,
    panel: *const u8,
    b: usize,
    part: usize,
) -> (S::F, S::F) {
    // SAFETY: block `b` is in the panel, by the caller.
    unsafe {
        let at = panel.add(layout.scales_at + b * kind.block_bytes());
        let d = panel.add(kind.super_at(b)).cast::<u16>();
        let negative = |min| S::float(S::isub(S::isplat(0), min));
        let zero = S::splat(0.0);
        match kind {
            ScaleKind::F16 => (S::load_f16(at.cast()), zero),
            ScaleKind::Exponent => {
                // The smallest scale is not a normal number.
                let twice = S::imax(S::ishl::<23>(S::iload_u8(at)), S::isplat(1 << 22));
                (S::mul(S::from_bits(twice), S::splat(0.5)), zero)
            }
            ScaleKind::F16Min => (S::load_f16(at.cast()), S::load_f16(at.cast::<u16>().add(PANEL))),
            ScaleKind::E4m3Halves => (S::mul(S::load_e4m3(at.add(part * PANEL)), S::load(d.cast())), zero),
            ScaleKind::Super
            | ScaleKind::SuperHalves
            | ScaleKind::SuperEighths
            | ScaleKind::SuperHalvesEighths => {
                let scale = S::float(S::iload_i8(at.add(part * PANEL).cast()));
                let scale = S::mul(S::load_f16(d), scale);
                // The product has at most nineteen digits: the unit, a power of two, does not round it.
                let scale = if kind.unit() == 1.0 { scale } else { S::mul(scale, S::splat(kind.unit())) };
                (scale, zero)
            }
            ScaleKind::SuperMin => {
                let (s, m) = (S::iload_u8(at), S::iload_u8(at.add(PANEL)));
                (S::mul(S::load_f16(d), S::float(s)), S::mul(S::load_f16(d.add(PANEL)), negative(m)))
            }
            ScaleKind::SuperHalvesMin => {
                let both = S::iload_u8(at.add(part * PANEL));
                let (s, m) = (S::iand(both, S::isplat(15)), S::ishr::<4>(both));
                (S::mul(S::load_f16(d), S::float(s)), S::mul(S::load_f16(d.add(PANEL)), negative(m)))
            }
        }
    }
}

/// Reassembles codes from their bit planes and adds `offset`.
#[inline(always)]
unsafe fn planes<S: SimdIsa, const BITS: usize>(
    stored: *const u8,
    out: *mut u8,
    n: usize,
    codebook: Option<Codebook>,
    offset: u8,
) -> *const u8 {
    for b in 0..n {
        // SAFETY: `n` blocks on both sides, by the caller; any address may be prefetched.
        unsafe {
            let (stored, out) = (stored.add(b * BITS * 64), out.add(b * PANEL * BLOCK));
            prefetch_bytes::<S, false>(stored.wrapping_add(4096), BITS * 64);
            for (j, code) in gather::<S>(BITS, stored).into_iter().enumerate() {
                S::bstore(out.add(j * 64), with_offset::<S>(codebook, code, offset));
            }
        }
    }
    out
}

/// Codes plus `offset`, or their codebook values plus 128.
#[inline(always)]
pub(crate) unsafe fn with_offset<S: SimdIsa>(codebook: Option<Codebook>, code: S::B, offset: u8) -> S::B {
    // SAFETY: no memory but the table is touched.
    unsafe {
        match codebook {
            Some(codebook) => S::blookup(codebook.biased(), code),
            None => S::badd(code, S::bsplat(offset)),
        }
    }
}

/// A block's codes reassembled from their bit planes (the inverse of `packed::pack_codes`).
#[inline(always)]
pub(crate) unsafe fn gather<S: SimdIsa>(bits: usize, stored: *const u8) -> [S::B; 8] {
    // SAFETY: a block's codes at `stored`, by the caller; shifts are below 8 and followed by their masks.
    unsafe {
        let mut codes = [S::bsplat(0); 8];
        if bits & 4 != 0 {
            for j in 0..4 {
                let v = S::bload(stored.add(j * 64));
                codes[j] = S::band(v, S::bsplat(15));
                codes[j + 4] = S::band(S::bshr::<4>(v), S::bsplat(15));
            }
        }
        if bits & 2 != 0 {
            for half in 0..2 {
                let v = S::bload(stored.add(((bits & 4) + half) * 64));
                let low = [v, S::bshr::<2>(v), S::bshr::<4>(v), S::bshr::<6>(v)];
                // In 6-bit codes the two bits are above the nibble.
                let high = [S::bshl::<4>(v), S::bshl::<2>(v), v, S::bshr::<2>(v)];
                for i in 0..4 {
                    let (v, mask) = if bits & 4 != 0 { (high[i], 0x30) } else { (low[i], 3) };
                    codes[4 * half + i] = S::bor(codes[4 * half + i], S::band(v, S::bsplat(mask)));
                }
            }
        }
        if bits & 1 != 0 {
            let v = S::bload(stored.add((bits - 1) * 64));
            let shifted = if bits == 5 { fifth_bits::<S>(v) } else { third_bits::<S>(v) };
            for (code, v) in codes.iter_mut().zip(shifted) {
                *code = S::bor(*code, S::band(v, S::bsplat(1 << (bits - 1))));
            }
        }
        codes
    }
}

/// Bit `j` of each byte moved to bit 4, for every `j`; other bits are unspecified.
#[inline(always)]
unsafe fn fifth_bits<S: SimdIsa>(v: S::B) -> [S::B; 8] {
    // SAFETY: no memory is touched.
    unsafe {
        let left = [S::bshl::<4>(v), S::bshl::<3>(v), S::bshl::<2>(v), S::bshl::<1>(v)];
        [left[0], left[1], left[2], left[3], v, S::bshr::<1>(v), S::bshr::<2>(v), S::bshr::<3>(v)]
    }
}

/// Bit `j` of each byte moved to bit 2, for every `j`; other bits are unspecified.
#[inline(always)]
unsafe fn third_bits<S: SimdIsa>(v: S::B) -> [S::B; 8] {
    // SAFETY: no memory is touched.
    unsafe {
        let right = [S::bshr::<1>(v), S::bshr::<2>(v), S::bshr::<3>(v), S::bshr::<4>(v), S::bshr::<5>(v)];
        [S::bshl::<2>(v), S::bshl::<1>(v), v, right[0], right[1], right[2], right[3], right[4]]
    }
}
