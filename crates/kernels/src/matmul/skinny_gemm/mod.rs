//! Products of a few tokens: a panel's stored codes are unpacked in registers and multiplied at once, in one
//! pass over memory, because the time of such a product is that of reading the weights. Sums in the same
//! order as the register tiles, so that bits agree.

mod floats;

use super::tile::Scales;
use crate::formats::{Elements, Format};
use crate::layout::{BLOCK, CodeLayout, FloatLayout, PANEL, PanelLayout, RECORD, WithLayout};
use crate::quant::{gather, scale_and_min, with_offset};
use crate::simd::{Isa, Kernel, SimdIsa, prefetch_bytes};
use floats::OfFloats;

/// Distance ahead of the arithmetic at which a panel's bytes are prefetched: panels are adjacent in memory.
const AHEAD_BYTES: usize = 8192;

/// `T` tokens times the sixteen rows of one panel.
pub(super) struct SkinnyGemm<'a, const T: usize> {
    pub(super) layout: &'a PanelLayout,
    pub(super) panel: &'a [u8],
    /// The token group's first record, in the form that the format is multiplied with.
    pub(super) x: *const u8,
    /// The first token within the group.
    pub(super) token: usize,
    /// T rows of sixteen, `stride` elements apart.
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    /// Adds to the outputs instead of overwriting them.
    pub(super) adds: bool,
}

impl<const T: usize> SkinnyGemm<'_, T> {
    /// Multiplies with a panel in the format.
    ///
    /// # Safety
    /// Records and outputs must be as the fields describe, for every block of the panel.
    ///
    /// # Panics
    /// When the panel does not have the length of its layout.
    pub(super) unsafe fn multiply(self, format: Format, isa: Isa) {
        assert_eq!(self.panel.len(), self.layout.bytes, "length of a panel");
        macro_rules! of_floats {
            ($($layout:ident)*) => {
                match format.elements() {
                    Elements::Codes(codes, _) => codes.with(OnIsa { kernel: self, isa }),
                    // SAFETY: the panel was checked; records and outputs by the caller.
                    $(Elements::Floats(FloatLayout::$layout) => unsafe {
                        isa.run(OfFloats::<T, { FloatLayout::$layout as usize }>(self))
                    },)*
                }
            };
        }
        of_floats!(F32 F16 BF16 Fp8 Mxfp8);
    }
}

/// A product for an ISA. Made by [`SkinnyGemm::multiply`] only, after its checks.
struct OnIsa<'a, const T: usize> {
    kernel: SkinnyGemm<'a, T>,
    isa: Isa,
}

impl<const T: usize> WithLayout for OnIsa<'_, T> {
    #[inline(always)]
    fn run<const LAYOUT: usize>(self) {
        // SAFETY: `SkinnyGemm::multiply` checked the panel; records and outputs by its caller.
        unsafe { self.isa.run(OfCodes::<T, LAYOUT>(self.kernel)) }
    }
}

/// The product for a layout of codes given by its index in [`CodeLayout::ALL`].
struct OfCodes<'a, const T: usize, const LAYOUT: usize>(SkinnyGemm<'a, T>);

impl<const T: usize, const LAYOUT: usize> Kernel for OfCodes<'_, T, LAYOUT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let scales = Self::CODES.scales;
        // SAFETY: the panel, records and outputs are as the fields say.
        unsafe {
            match (scales.halves(), scales.has_min()) {
                (false, false) => self.blocks::<S, false, false>(),
                (false, true) => self.blocks::<S, false, true>(),
                (true, false) => self.blocks::<S, true, false>(),
                (true, true) => self.blocks::<S, true, true>(),
            }
        }
    }
}

impl<const T: usize, const LAYOUT: usize> OfCodes<'_, T, LAYOUT> {
    const CODES: CodeLayout = CodeLayout::ALL[LAYOUT];
    /// Number of bytes of a block in the panel, rounded up.
    const BLOCK_BYTES: usize = {
        let scales = Self::CODES.scales;
        Self::CODES.code_bytes()
            + scales.block_bytes()
            + scales.super_bytes().div_ceil(scales.blocks_per_super())
    };

    #[inline(always)]
    unsafe fn blocks<S: SimdIsa, const HALVES: bool, const MIN: bool>(self) {
        let CodeLayout { bits, zero, codebook, scales: kind, .. } = Self::CODES;
        let SkinnyGemm { layout, panel, x, token, out, stride, adds } = self.0;
        let panel = panel.as_ptr();
        let is_wide = !MIN && !Self::CODES.is_narrow();
        let to_wide = if is_wide { 128 - zero } else { 0 };
        let offset = match () {
            () if MIN || (is_wide && S::WIDE_IS_SIGNED) => 0,
            () if is_wide => 128,
            () => i32::from(zero),
        };
        let ones = [1i8; 16];
        let mut ahead = panel.wrapping_add(AHEAD_BYTES);
        // SAFETY: the blocks are in the panel; records and outputs by contract; any address may be prefetched.
        unsafe {
            let mut acc = [S::splat(0.0); T];
            if adds {
                for (t, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load(out.add(t * stride));
                }
            }
            for b in 0..layout.n_blocks {
                prefetch_bytes::<S, true>(ahead, Self::BLOCK_BYTES);
                ahead = ahead.wrapping_add(Self::BLOCK_BYTES);
                let stored = panel.add(layout.codes_at + b * Self::CODES.code_bytes());
                let mut codes = [S::bsplat(0); 8];
                if bits == 8 {
                    for (j, code) in codes.iter_mut().enumerate() {
                        *code = S::bload(stored.add(j * 64));
                    }
                } else {
                    codes = gather::<S>(bits, stored);
                    for code in &mut codes {
                        *code = with_offset::<S>(codebook, *code, to_wide);
                    }
                }
                let record = x.add(b * RECORD);
                for part in 0..if HALVES { 2 } else { 1 } {
                    let mut dots = [S::isplat(0); T];
                    let mut sum = S::isplat(0);
                    for half in if HALVES { part..part + 1 } else { 0..2 } {
                        let at = 4 * half;
                        let w = [codes[at], codes[at + 1], codes[at + 2], codes[at + 3]];
                        for (t, dots) in dots.iter_mut().enumerate() {
                            let x = record.add((token + t) * BLOCK + half * PANEL).cast();
                            *dots =
                                if is_wide { S::dot16_wide(*dots, &w, x) } else { S::dot16(*dots, &w, x) };
                        }
                        let x = ones.as_ptr();
                        sum = if is_wide { S::dot16_wide(sum, &w, x) } else { S::dot16(sum, &w, x) };
                        sum = S::isub(sum, S::isplat(offset * 16));
                    }
                    let sums = S::iadd(S::iand(sum, S::isplat(0xFFFF)), S::isplat(offset << 16));
                    let (scale, min) = scale_and_min::<S>(kind, layout, panel, b, part);
                    let scales = Scales::<S, HALVES, MIN>::new(sums, scale, min, record.add(token * 4), part);
                    for (t, acc) in acc.iter_mut().enumerate() {
                        *acc = scales.add(*acc, dots[t], t);
                    }
                }
            }
            for (t, acc) in acc.iter().enumerate() {
                S::store(out.add(t * stride), *acc);
            }
        }
    }
}
