//! Codes and scales of one row's block of 32 columns, as packing takes them, and their numbers.

use super::bits::{f16_at, f32_at};
use crate::layout::{BLOCK, CodeLayout, ScaleKind, power_of_two, unsigned_e4m3};

/// A block of 32 of one row.
pub(crate) struct BlockCodes {
    /// Unsigned codes of the layout's bits.
    pub(crate) codes: [u8; BLOCK],
    /// The scales' bytes of this row in their stored types: up to two values of up to two bytes.
    pub(crate) scales: [[u8; 2]; 2],
    /// d and dmin of the superblock, f16, or one f32.
    pub(crate) superscales: [[u8; 2]; 2],
}

impl BlockCodes {
    /// A block outside superblocks.
    pub(super) const fn simple(codes: [u8; BLOCK], scales: [[u8; 2]; 2]) -> Self {
        Self { codes, scales, superscales: [[0; 2]; 2] }
    }

    /// Writes the elements to `out`: value times scale, then plus the min. The order of the f32 operations is
    /// ggml's, so that the results are the same bits.
    pub(crate) fn decode(&self, layout: CodeLayout, out: &mut [f32]) {
        let n_scaled = if layout.scales.halves() { BLOCK / 2 } else { BLOCK };
        for (half, (out, codes)) in out.chunks_mut(n_scaled).zip(self.codes.chunks(n_scaled)).enumerate() {
            let (scale, min) = self.scale_and_min(layout.scales, half);
            let outputs = out.iter_mut().zip(codes);
            if let Some(codebook) = layout.codebook {
                // Layouts with code books have no mins.
                let numbers = codebook.values().map(|value| scale * f32::from(value));
                outputs.for_each(|(out, code)| *out = numbers[usize::from(code & 15)]);
                continue;
            }
            let zero = i16::from(layout.zero);
            let number = |code: &u8| scale * f32::from(i16::from(*code) - zero);
            match layout.scales.has_min() {
                true => outputs.for_each(|(out, code)| *out = number(code) + min),
                false => outputs.for_each(|(out, code)| *out = number(code)),
            }
        }
    }

    /// The scale of the block, or of a half of it, and the min that is added.
    fn scale_and_min(&self, kind: ScaleKind, half: usize) -> (f32, f32) {
        let f16 = |i: usize| f16_at(&self.scales[i], 0);
        let byte = |i: usize| self.scales[i][0];
        let d = |i: usize| f16_at(&self.superscales[i], 0);
        let signed = |i: usize| d(0) * f32::from(byte(i) as i8) * kind.unit();
        match kind {
            ScaleKind::F16 => (f16(0), 0.0),
            ScaleKind::F16Min => (f16(0), f16(1)),
            ScaleKind::Exponent => (power_of_two(byte(0)), 0.0),
            ScaleKind::Super | ScaleKind::SuperEighths => (signed(0), 0.0),
            ScaleKind::SuperHalves | ScaleKind::SuperHalvesEighths => (signed(half), 0.0),
            ScaleKind::E4m3Halves => {
                (unsigned_e4m3(byte(half)) * f32_at(self.superscales.as_flattened(), 0), 0.0)
            }
            ScaleKind::SuperMin => (d(0) * f32::from(byte(0)), -(d(1) * f32::from(byte(1)))),
            ScaleKind::SuperHalvesMin => {
                let both = byte(half);
                (d(0) * f32::from(both & 15), -(d(1) * f32::from(both >> 4)))
            }
        }
    }
}
