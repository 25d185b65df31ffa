//! Panels of weights in E4M3 with scales. Does not multiply with activations.
//!
//! A panel holds the stored bytes, `[column][16]`, so that one column of sixteen rows is one vector. Its
//! weights are the numbers of [`super::dequantize_row`]: code times scale, rounded to f32 once.

use crate::formats::e4m3::{NUMBERS, SCALED_BY, panel_exponent};
use crate::formats::f32_at;
use crate::layout::{BLOCK, E4m3Scale, PANEL, PanelLayout};
use crate::simd::SimdIsa;

/// Packs stored rows into a panel; missing rows stay zero.
pub(super) fn pack(kind: E4m3Scale, layout: &PanelLayout, stored: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let in_block = kind.blocks() * BLOCK;
    let n_bytes = kind.stored_bytes() + in_block;
    for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
        for (i, block) in row.chunks_exact(n_bytes).enumerate() {
            let scales_at = layout.scales_at + kind.at(i * in_block / BLOCK);
            let (scale, codes) = block.split_at(kind.stored_bytes());
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

/// Factor of the numbers that [`SimdIsa::load_e4m3`] reads of block `b`.
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
