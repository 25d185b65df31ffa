//! A stretch of a panel in the one form that the matmul tiles read: codes of eight bits, scales and mins in f32 (or
//! the weights themselves in f32). Done once for all tokens of a call. Refuses to multiply.

use super::layout::{BLOCK, CodeLayout, PANEL, PanelLayout, SUPER, ScaleKind};
use super::{Format, IQ4_VALUES};
use crate::simd::{Lane, Task, ask};

/// Where the unpacked stretch lies: in the panel itself where the format is that form already, else in the scratch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacked {
    /// [block][8][64] codes; [column][16] f32 of float formats.
    pub(crate) codes: *const u8,
    /// [block][half or whole][16].
    pub(crate) scales: *const f32,
    /// As `scales`, to be added; only where the format has mins.
    pub(crate) mins: *const f32,
    /// As `scales`: pairs of i16, the sum of the codes (less their offset) and the offset that a dot of codes leaves in.
    /// Not of float formats.
    pub(crate) sums: *const i32,
    /// The stored bytes that will be wanted after these, to be asked for early; need not be valid.
    pub(crate) ahead: *const u8,
    /// How many of them to ask for with each block of the stretch.
    pub(crate) ahead_bytes: usize,
}

/// Unpacks blocks `first..first + n` of a panel. Codes without mins become value + 128, but for narrow ones where wide ones
/// are slow.
///
/// `scratch_codes` has room for `n` blocks of 512 bytes (of 2048 for float formats), `scratch_scales` for `2 n`
/// vectors of scales, `2 n` of mins and `2 n` of sums.
pub(crate) struct Unpack<'a> {
    pub(crate) format: Format,
    pub(crate) layout: &'a PanelLayout,
    pub(crate) panel: &'a [u8],
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// What will be wanted after these, to be asked for early: a panel, which need not be valid, and the first block.
    pub(crate) ahead: (*const u8, usize),
    pub(crate) scratch_codes: &'a mut [u8],
    pub(crate) scratch_scales: &'a mut [f32],
}

/// Bytes of a block in the scratch.
pub(crate) fn unpacked_block_bytes(format: Format) -> usize {
    match CodeLayout::of(format) {
        Some(_) => PANEL * BLOCK,
        None => PANEL * BLOCK * 4,
    }
}

impl Task for Unpack<'_> {
    type Output = Unpacked;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) -> Unpacked {
        assert!(self.first + self.n <= self.layout.n_blocks && self.panel.len() == self.layout.bytes);
        assert!(self.scratch_codes.len() >= self.n * unpacked_block_bytes(self.format));
        let at = self.layout.codes_at + self.first * self.layout.code_bytes;
        let stored = self.panel[at..].as_ptr();
        let out = self.scratch_codes.as_mut_ptr();
        let none = std::ptr::null::<f32>();
        let ahead_bytes = self.layout.code_bytes;
        let ahead = self.ahead.0.wrapping_add(self.layout.codes_at + self.ahead.1 * ahead_bytes);
        // SAFETY: sizes were checked above and by the layout; the features are the caller's word.
        unsafe {
            let Some(codes) = CodeLayout::of(self.format) else {
                let weights = match self.format {
                    Format::F32 => stored,
                    Format::F16 => widen(stored, out, self.n, |p| L::load_f16(p), |p, x| L::store(p, x)),
                    _ => widen(stored, out, self.n, |p| L::load_bf16(p), |p, x| L::store(p, x)),
                };
                let sums = std::ptr::null();
                return Unpacked { codes: weights, scales: none, mins: none, sums, ahead, ahead_bytes };
            };
            let n_vectors = self.n * if codes.scales.halves() { 2 } else { 1 };
            assert!(self.scratch_scales.len() >= 3 * n_vectors * PANEL);
            let scales = self.scratch_scales.as_mut_ptr();
            let mins = scales.add(n_vectors * PANEL);
            let sums = mins.add(n_vectors * PANEL).cast::<i32>();
            self.scales::<L>(codes.scales, scales, mins);
            ask_for_scales::<L, false>(codes.scales, self.layout, self.ahead, self.n);
            let (has_min, halves) = (codes.scales.has_min(), codes.scales.halves());
            let is_narrow = L::WIDE_IS_SLOW && codes.is_narrow();
            let zero = i32::from(codes.zero);
            let offset = if has_min || is_narrow { 0 } else { 128 - codes.zero };
            let codes = match (codes.bits, codes.codebook) {
                (8, _) => stored,
                (4, true) => planes::<L, 4, true>(stored, out, self.n, 0),
                (2, _) => planes::<L, 2, false>(stored, out, self.n, offset),
                (3, _) => planes::<L, 3, false>(stored, out, self.n, offset),
                (4, _) => planes::<L, 4, false>(stored, out, self.n, offset),
                (5, _) => planes::<L, 5, false>(stored, out, self.n, offset),
                _ => planes::<L, 6, false>(stored, out, self.n, offset),
            };
            for b in 0..self.n {
                let block = codes.add(b * PANEL * BLOCK);
                match (has_min, halves) {
                    (false, false) if is_narrow => narrow_sums::<L, false>(block, zero, sums.add(b * PANEL)),
                    (false, true) if is_narrow => {
                        narrow_sums::<L, true>(block, zero, sums.add(2 * b * PANEL))
                    }
                    (false, false) => code_sums::<L, false>(block, sums.add(b * PANEL)),
                    (true, false) => narrow_sums::<L, false>(block, 0, sums.add(b * PANEL)),
                    (false, true) => code_sums::<L, true>(block, sums.add(2 * b * PANEL)),
                    (true, true) => narrow_sums::<L, true>(block, 0, sums.add(2 * b * PANEL)),
                }
            }
            Unpacked { codes, scales, mins, sums, ahead, ahead_bytes }
        }
    }
}

/// The sums that [`Unpacked::sums`] describes, of one block of unpacked codes, value + 128.
#[inline(always)]
pub(crate) unsafe fn code_sums<L: Lane, const HALVES: bool>(codes: *const u8, out: *mut i32) {
    let offset = if L::WIDE_IS_SIGNED { 0 } else { 128 };
    // SAFETY: by the caller.
    unsafe { sums::<L, HALVES, false>(codes, offset, out) }
}

/// The same of codes below 64, of which `zero` stands for zero.
#[inline(always)]
unsafe fn narrow_sums<L: Lane, const HALVES: bool>(codes: *const u8, zero: i32, out: *mut i32) {
    // SAFETY: by the caller.
    unsafe { sums::<L, HALVES, true>(codes, zero, out) }
}

#[inline(always)]
unsafe fn sums<L: Lane, const HALVES: bool, const NARROW: bool>(
    codes: *const u8,
    offset: i32,
    out: *mut i32,
) {
    // SAFETY: a block of codes; one vector of sums, or two.
    unsafe {
        let ones = [1i8; 16];
        let mut sum = L::isplat(0);
        for half in 0..2 {
            let w: [L::B; 4] = std::array::from_fn(|v| L::bload(codes.add((4 * half + v) * 64)));
            if HALVES {
                sum = L::isplat(0);
            }
            let dots =
                if NARROW { L::dot16(sum, &w, ones.as_ptr()) } else { L::dot16_wide(sum, &w, ones.as_ptr()) };
            sum = L::isub(dots, L::isplat(offset * 16));
            let pairs = L::iadd(L::iand(sum, L::isplat(0xFFFF)), L::isplat(offset << 16));
            L::istore(out.add(if HALVES { half * PANEL } else { 0 }), pairs);
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
    /// The f32 scales and mins of the stretch.
    #[inline(always)]
    unsafe fn scales<L: Lane>(&self, kind: ScaleKind, scales: *mut f32, mins: *mut f32) {
        let n_parts = if kind.halves() { 2 } else { 1 };
        for i in 0..self.n {
            for part in 0..n_parts {
                let at = (i * n_parts + part) * PANEL;
                // SAFETY: the block is in the panel, and the scratch has room for `n` of them.
                unsafe {
                    let of_block = (self.first + i, part);
                    let (scale, min) = scale_and_min::<L>(kind, self.layout, self.panel.as_ptr(), of_block);
                    L::store(scales.add(at), scale);
                    if kind.has_min() {
                        L::store(mins.add(at), min);
                    }
                }
            }
        }
    }
}

/// Asks for the scales of `n` blocks of a panel, which need not be valid, from block `first` on.
#[inline(always)]
pub(crate) unsafe fn ask_for_scales<L: Lane, const NEAR: bool>(
    kind: ScaleKind,
    layout: &PanelLayout,
    (panel, first): (*const u8, usize),
    n: usize,
) {
    let scales = panel.wrapping_add(layout.scales_at + first * kind.block_bytes());
    let supers = panel.wrapping_add(first / SUPER * kind.super_bytes());
    // SAFETY: any address may be asked for.
    unsafe {
        ask::<L, NEAR>(scales, n * kind.block_bytes());
        ask::<L, NEAR>(supers, n.div_ceil(SUPER) * kind.super_bytes());
    }
}

/// The f32 scales of a block, or of one of its halves, and what is added to its values: the mins, or zeros.
#[inline(always)]
unsafe fn scale_and_min<L: Lane>(
    kind: ScaleKind,
    layout: &PanelLayout,
    panel: *const u8,
    (b, part): (usize, usize),
) -> (L::F, L::F) {
    // SAFETY: block `b` is in the panel, by the caller.
    unsafe {
        let at = panel.add(layout.scales_at + b * kind.block_bytes());
        let d = panel.add(b / SUPER * kind.super_bytes()).cast::<u16>();
        let negative = |min| L::float(L::isub(L::isplat(0), min));
        let zero = L::splat(0.0);
        match kind {
            ScaleKind::F16 => (L::load_f16(at.cast()), zero),
            ScaleKind::F16Min => (L::load_f16(at.cast()), L::load_f16(at.cast::<u16>().add(PANEL))),
            ScaleKind::Super | ScaleKind::SuperHalves => {
                let scale = L::float(L::iload_i8(at.add(part * PANEL).cast()));
                (L::mul(L::load_f16(d), scale), zero)
            }
            ScaleKind::SuperMin => {
                let (s, m) = (L::iload_u8(at), L::iload_u8(at.add(PANEL)));
                (L::mul(L::load_f16(d), L::float(s)), L::mul(L::load_f16(d.add(PANEL)), negative(m)))
            }
            ScaleKind::SuperHalvesMin => {
                let both = L::iload_u8(at.add(part * PANEL));
                let (s, m) = (L::iand(both, L::isplat(15)), L::ishr::<4>(both));
                (L::mul(L::load_f16(d), L::float(s)), L::mul(L::load_f16(d.add(PANEL)), negative(m)))
            }
        }
    }
}

/// The code book's values + 128.
const CODEBOOK: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (IQ4_VALUES[i] as i16 + 128) as u8;
        i += 1;
    }
    table
};

/// Puts the planes of codes back together and adds `offset`.
#[inline(always)]
unsafe fn planes<L: Lane, const BITS: usize, const CODEBOOK_CODES: bool>(
    stored: *const u8,
    out: *mut u8,
    n: usize,
    offset: u8,
) -> *const u8 {
    for b in 0..n {
        // SAFETY: `n` blocks on both sides, by the caller; any address may be asked for.
        unsafe {
            let (stored, out) = (stored.add(b * BITS * 64), out.add(b * PANEL * BLOCK));
            ask::<L, false>(stored.wrapping_add(4096), BITS * 64);
            for (j, code) in gather::<L>(BITS, stored).into_iter().enumerate() {
                L::bstore(out.add(j * 64), with_offset::<L>(CODEBOOK_CODES, code, offset));
            }
        }
    }
    out
}

/// Codes plus `offset`, or what they stand for in the code book plus 128.
#[inline(always)]
pub(crate) unsafe fn with_offset<L: Lane>(codebook: bool, code: L::B, offset: u8) -> L::B {
    // SAFETY: no memory but the table is touched.
    unsafe { if codebook { L::blookup(&CODEBOOK, code) } else { L::badd(code, L::bsplat(offset)) } }
}

/// The codes of a block as they are stored, put together from their planes (the inverse of `packed::pack_codes`).
#[inline(always)]
pub(crate) unsafe fn gather<L: Lane>(bits: usize, stored: *const u8) -> [L::B; 8] {
    // SAFETY: a block's codes at `stored`, by the caller; shifts are below 8 and followed by their masks.
    unsafe {
        let mut codes = [L::bsplat(0); 8];
        if bits & 4 != 0 {
            for j in 0..4 {
                let v = L::bload(stored.add(j * 64));
                codes[j] = L::band(v, L::bsplat(15));
                codes[j + 4] = L::band(L::bshr::<4>(v), L::bsplat(15));
            }
        }
        if bits & 2 != 0 {
            for half in 0..2 {
                let v = L::bload(stored.add(((bits & 4) + half) * 64));
                let low = [v, L::bshr::<2>(v), L::bshr::<4>(v), L::bshr::<6>(v)];
                // In a code of six bits the pair stands above the nibble.
                let high = [L::bshl::<4>(v), L::bshl::<2>(v), v, L::bshr::<2>(v)];
                for i in 0..4 {
                    let (v, mask) = if bits & 4 != 0 { (high[i], 0x30) } else { (low[i], 3) };
                    codes[4 * half + i] = L::bor(codes[4 * half + i], L::band(v, L::bsplat(mask)));
                }
            }
        }
        if bits & 1 != 0 {
            let v = L::bload(stored.add((bits - 1) * 64));
            let shifted = if bits == 5 { fifth_bits::<L>(v) } else { third_bits::<L>(v) };
            for (code, v) in codes.iter_mut().zip(shifted) {
                *code = L::bor(*code, L::band(v, L::bsplat(1 << (bits - 1))));
            }
        }
        codes
    }
}

/// Bit `j` of each byte moved to bit 4, for every `j`; other bits are unspecified.
#[inline(always)]
unsafe fn fifth_bits<L: Lane>(v: L::B) -> [L::B; 8] {
    // SAFETY: no memory is touched.
    unsafe {
        let left = [L::bshl::<4>(v), L::bshl::<3>(v), L::bshl::<2>(v), L::bshl::<1>(v)];
        [left[0], left[1], left[2], left[3], v, L::bshr::<1>(v), L::bshr::<2>(v), L::bshr::<3>(v)]
    }
}

/// Bit `j` of each byte moved to bit 2, for every `j`; other bits are unspecified.
#[inline(always)]
unsafe fn third_bits<L: Lane>(v: L::B) -> [L::B; 8] {
    // SAFETY: no memory is touched.
    unsafe {
        let right = [L::bshr::<1>(v), L::bshr::<2>(v), L::bshr::<3>(v), L::bshr::<4>(v), L::bshr::<5>(v)];
        [L::bshl::<2>(v), L::bshl::<1>(v), v, right[0], right[1], right[2], right[3], right[4]]
    }
}
