//! Weights in E4M3 with scales: their numbers, and how panels hold them. Does not multiply with activations.
//!
//! A panel holds the stored bytes, `[column][16]`, so that one column of sixteen rows is one vector. Its weights are the numbers of
//! [`super::dequantize_row`]: code times scale, rounded to f32 once.

use super::{Format, f32_at};
use crate::layout::{BLOCK, E4m3Scale, PANEL, PanelLayout, unsigned_e4m3};
use crate::simd::SimdIsa;

/// Scales are applied to a 256th of a code's number, which is exactly what its bits are in f16.
const SCALED_BY: f32 = 256.0;

/// A 256th of the number of each code: a sign, four bits of exponent with bias 7, three of mantissa. The codes of NaN count as ±480.
static NUMBERS: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        numbers[code] = number(code as u8);
        code += 1;
    }
    numbers
};

const fn number(code: u8) -> f32 {
    let size = unsigned_e4m3(code & 0x7F);
    if code & 0x80 == 0 { size } else { -size }
}

/// The number of a code of E4M3 (OCP 8-bit Floating Point Specification): no infinities, and NaN for the two codes of NaN.
pub fn e4m3_number(code: u8) -> f32 {
    if code & 0x7F == 0x7F { f32::NAN } else { NUMBERS[usize::from(code)] * SCALED_BY }
}

/// The code of the nearest number, even in a tie; the largest one for what is larger.
pub(super) fn nearest(x: f32) -> u8 {
    let size = x.abs() / SCALED_BY;
    // The codes of numbers that are not negative are in their order; the last one is that of NaN.
    let above = NUMBERS[..127].partition_point(|number| *number < size);
    let code = match above {
        0 => 0,
        127 => 126,
        _ => {
            let (low, high) = (size - NUMBERS[above - 1], NUMBERS[above] - size);
            if low < high || low == high && above % 2 == 1 { above - 1 } else { above }
        }
    };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// 256 times the scale `2^(e - 127)`; infinite where that is too large.
fn exponent_scale(e: u8) -> f32 {
    f32::from_bits(u32::from(panel_exponent(e)) << 23)
}

/// The exponent that a panel holds: the bits of 256 times the scale.
fn panel_exponent(e: u8) -> u8 {
    e.saturating_add(8)
}

/// 256 times the scale of a stored block, and its codes.
fn parts(format: Format, block: &[u8]) -> (f32, &[u8]) {
    match format {
        Format::FP8 => (f32_at(block, 0) * SCALED_BY, &block[4..]),
        _ => (exponent_scale(block[0]), &block[1..]),
    }
}

/// Writes the elements of stored blocks of FP8 or MXFP8 to `out`.
pub(super) fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_elements())) {
        let (scale, codes) = parts(format, block);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = NUMBERS[usize::from(*code)] * scale;
        }
    }
}

/// Packs stored rows into a panel; missing rows stay zero.
pub(super) fn pack(format: Format, layout: &PanelLayout, stored: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let Some(kind) = E4m3Scale::of(format) else { unreachable!("{} is not E4M3", format.name()) };
    let (n_bytes, in_block) = (format.block_bytes(), format.block_elements());
    for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
        for (i, block) in row.chunks_exact(n_bytes).enumerate() {
            let scales_at = layout.scales_at + kind.at(i * in_block / BLOCK);
            let (scale, codes) = block.split_at(n_bytes - in_block);
            match kind {
                E4m3Scale::F32 => panel[scales_at + 4 * r..][..4].copy_from_slice(scale),
                E4m3Scale::Exponent => panel[scales_at + r] = panel_exponent(scale[0]),
            }
            let columns = panel[layout.codes_at + i * in_block * PANEL..].chunks_exact_mut(PANEL);
            columns.zip(codes).for_each(|(column, code)| column[r] = *code);
        }
    }
}

/// The elements of row `r` of a panel.
pub(super) fn dequantize_panel_row(
    kind: E4m3Scale,
    layout: &PanelLayout,
    panel: &[u8],
    r: usize,
    out: &mut [f32],
) {
    for (b, out) in out.chunks_mut(BLOCK).enumerate() {
        let at = layout.scales_at + kind.at(b);
        let scale = match kind {
            E4m3Scale::F32 => f32_at(panel, at + 4 * r) * SCALED_BY,
            E4m3Scale::Exponent => f32::from_bits(u32::from(panel[at + r]) << 23),
        };
        for (k, out) in out.iter_mut().enumerate() {
            let code = panel[layout.codes_at + (b * BLOCK + k) * PANEL + r];
            *out = NUMBERS[usize::from(code)] * scale;
        }
    }
}

/// What the numbers that [`SimdIsa::load_e4m3`] reads of block `b` are multiplied with.
///
/// # Safety
/// The ISA's features must be available, and the panel must have the block.
#[inline(always)]
pub(crate) unsafe fn e4m3_scale<S: SimdIsa>(
    kind: E4m3Scale,
    layout: &PanelLayout,
    panel: *const u8,
    b: usize,
) -> S::F {
    // SAFETY: the scales of the block are in the panel, by the caller.
    unsafe {
        let at = panel.add(layout.scales_at + kind.at(b));
        match kind {
            E4m3Scale::F32 => S::mul(S::load(at.cast()), S::splat(SCALED_BY)),
            E4m3Scale::Exponent => S::from_bits(S::ishl::<23>(S::iload_u8(at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        let known =
            [(0x00, 0.0), (0x01, 2.0_f32.powi(-9)), (0x08, 2.0_f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0)];
        for (code, number) in known {
            assert_eq!(NUMBERS[code] * 256.0, number);
            assert_eq!(NUMBERS[code | 0x80] * 256.0, -number);
            assert_eq!((e4m3_number(code as u8), e4m3_number(code as u8 | 0x80)), (number, -number));
        }
        assert!(NUMBERS[0x80].is_sign_negative());
        assert!(e4m3_number(0x7f).is_nan() && e4m3_number(0xff).is_nan());
    }

    #[test]
    fn each_number_has_its_own_code() {
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(nearest(NUMBERS[usize::from(code)] * 256.0), code);
        }
        // Between 1 and 1.125, and beyond the largest.
        assert_eq!(
            [1.06, 1.0625, 1.07, 1.1875, 1e9, -1e9].map(nearest),
            [0x38, 0x38, 0x39, 0x3a, 0x7e, 0xfe]
        );
    }
}
