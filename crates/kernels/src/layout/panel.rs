//! The packed weight panel: the memory layout of sixteen rows of a matrix. Does not compute.
//!
//! A panel holds sixteen output rows in blocks of 32 columns. A block's 512 codes are stored as eight vectors
//! of 64 bytes: vector `j` has the codes of columns `4j..4j + 4` of all sixteen rows, the operand order of
//! int8 dot products. Codes below eight bits are split into bit planes of 4, 2 and 1 bits, each a whole
//! number of vectors, so that a panel takes as many bits as the file's format. A panel has three sections of
//! whole cache lines: superblock scales, block scales, codes.

use super::codes::{CodeLayout, ScaleKind};
use super::floats::FloatLayout;
use super::{BLOCK, PANEL, power_of_two, unsigned_e4m3};

/// Offsets and sizes of a panel's sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    /// Number of blocks along the columns, the last one padded with zeros.
    pub(crate) n_blocks: usize,
    /// Offset of the blocks' scales.
    pub(crate) scales_at: usize,
    /// Offset of the blocks' codes (or floats, [column][row]).
    pub(crate) codes_at: usize,
    /// Bytes of one block's codes (or floats).
    pub(crate) code_bytes: usize,
    /// Bytes of a panel.
    pub(crate) bytes: usize,
}

impl PanelLayout {
    /// The layout of codes; `None` when a size overflows.
    pub(crate) fn of_codes(codes: CodeLayout, cols: usize) -> Option<Self> {
        let scales = codes.scales;
        let n_supers = cols.div_ceil(BLOCK).div_ceil(scales.blocks_per_super());
        let n_super_bytes = n_supers.checked_mul(scales.super_bytes())?;
        Self::new(cols, n_super_bytes, 1, scales.block_bytes(), codes.code_bytes())
    }

    /// The layout of floats; `None` when a size overflows.
    pub(crate) fn of_floats(floats: FloatLayout, cols: usize) -> Option<Self> {
        let (blocks, scale_bytes) = floats.scale().map_or((1, 0), |scale| (scale.blocks(), scale.bytes()));
        Self::new(cols, 0, blocks, scale_bytes, PANEL * BLOCK * floats.bytes())
    }

    fn new(
        cols: usize,
        n_super_bytes: usize,
        blocks: usize,
        scale_bytes: usize,
        code_bytes: usize,
    ) -> Option<Self> {
        let n_blocks = cols.div_ceil(BLOCK);
        let line = |n: usize| n.checked_next_multiple_of(64);
        let scales_at = line(n_super_bytes)?;
        let codes_at = scales_at.checked_add(line(n_blocks.div_ceil(blocks).checked_mul(scale_bytes)?)?)?;
        let bytes = codes_at.checked_add(n_blocks.checked_mul(code_bytes)?)?;
        Some(Self { n_blocks, scales_at, codes_at, code_bytes, bytes })
    }

    /// The largest magnitudes of a panel's scales and mins (of superblocks where the format has them), as
    /// bits of an f32. NaN counts as larger than all numbers.
    pub(crate) fn largest_scales(&self, kind: ScaleKind, panel: &[u8]) -> [u32; 2] {
        let of_blocks = &panel[self.scales_at..][..self.n_blocks * kind.block_bytes()];
        let of_supers = &panel[..self.n_blocks.div_ceil(kind.blocks_per_super()) * kind.super_bytes()];
        let largest_byte = || of_blocks.iter().copied().max().unwrap_or(0);
        let stored = match kind {
            ScaleKind::F16 | ScaleKind::F16Min => of_blocks,
            ScaleKind::Exponent => return [power_of_two(largest_byte()).to_bits(), 0],
            ScaleKind::E4m3Halves => {
                let magnitudes =
                    of_supers.as_chunks::<4>().0.iter().map(|x| u32::from_le_bytes(*x) & 0x7FFF_FFFF);
                let factor = f32::from_bits(magnitudes.max().unwrap_or(0));
                return [(unsigned_e4m3(largest_byte()) * factor).abs().to_bits(), 0];
            }
            _ => of_supers,
        };
        let mut largest = [0; 2];
        for (i, of_rows) in stored.as_chunks::<{ 2 * PANEL }>().0.iter().enumerate() {
            let largest = &mut largest[if kind.has_min() { i % 2 } else { 0 }];
            for bits in of_rows.as_chunks::<2>().0 {
                let magnitude = half::f16::from_bits(u16::from_le_bytes(*bits) & 0x7FFF);
                *largest = (*largest).max(magnitude.to_f32().to_bits());
            }
        }
        largest
    }
}
