//! The packed weight panel: the memory layout of sixteen rows of a matrix. Does not compute.
//!
//! A panel holds sixteen output rows in blocks of 32 columns. A block's 512 codes are stored as eight vectors of 64 bytes: vector `j`
//! has the codes of columns `4j..4j + 4` of all sixteen rows, the operand order of int8 dot products. Codes below eight bits are
//! split into bit planes of 4, 2 and 1 bits, each a whole number of vectors, so that a panel takes as many bits as the file's
//! format. A panel has three sections of whole cache lines: superblock scales, block scales, codes.

use super::Format;

/// Output rows of a panel.
pub(crate) const PANEL: usize = 16;
/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of one panel's block unpacked to bf16 for AMX tiles.
pub(crate) const PAIRS_BYTES: usize = PANEL * BLOCK * 2;

/// How the scales of one block and sixteen rows are stored; all arrays are [16], or [2][16] for the two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    /// f16 scale.
    F16,
    /// f16 scale, f16 min (added).
    F16Min,
    /// u8 scale, u8 min (subtracted); superblock f16 d, f16 dmin.
    SuperMin,
    /// i8 scale; superblock f16 d.
    Super,
    /// i8 scale of each half block; superblock f16 d.
    SuperHalves,
    /// u8 of 4-bit scale and 4-bit min (subtracted) of each half block; superblock f16 d, f16 dmin.
    SuperHalvesMin,
    /// Scale of each half block in E4M3, without a sign; for two blocks an f32 factor, which is 256 times what the number of E4M3 is multiplied
    /// with.
    E4m3Halves,
    /// i8 scale in eighths; superblock f16 d.
    SuperEighths,
    /// i8 scale of each half block in eighths; superblock f16 d.
    SuperHalvesEighths,
    /// u8 exponent `e` of a scale `2^(e - 128)`.
    Exponent,
}

impl ScaleKind {
    pub(crate) const fn block_bytes(self) -> usize {
        match self {
            Self::F16
            | Self::SuperMin
            | Self::SuperHalves
            | Self::SuperHalvesEighths
            | Self::SuperHalvesMin
            | Self::E4m3Halves => 32,
            Self::F16Min => 64,
            Self::Super | Self::SuperEighths | Self::Exponent => 16,
        }
    }

    pub(crate) const fn super_bytes(self) -> usize {
        match self {
            Self::F16 | Self::F16Min | Self::Exponent => 0,
            Self::Super | Self::SuperHalves | Self::SuperEighths | Self::SuperHalvesEighths => 32,
            Self::SuperMin | Self::SuperHalvesMin | Self::E4m3Halves => 64,
        }
    }

    /// Blocks of a superblock.
    pub(crate) const fn blocks_per_super(self) -> usize {
        if matches!(self, Self::E4m3Halves) { 2 } else { 8 }
    }

    /// Offset of what the superblock of block `b` has in common.
    pub(crate) const fn super_at(self, b: usize) -> usize {
        b / self.blocks_per_super() * self.super_bytes()
    }

    /// Whether a half block has its own scale.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Self::SuperHalves | Self::SuperHalvesMin | Self::SuperHalvesEighths | Self::E4m3Halves)
    }

    /// What a block's scale, an integer, is multiplied with besides that of its superblock.
    pub(crate) const fn unit(self) -> f32 {
        if matches!(self, Self::SuperEighths | Self::SuperHalvesEighths) { 0.125 } else { 1.0 }
    }

    /// Whether codes are unsigned and a min goes with each scale.
    pub(crate) const fn has_min(self) -> bool {
        matches!(self, Self::F16Min | Self::SuperMin | Self::SuperHalvesMin)
    }
}

/// The values of codes that are not evenly spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codebook {
    /// That of IQ4_NL and IQ4_XS.
    Iq4,
    /// The numbers of MXFP4 and NVFP4, doubled so that they are integers.
    E2m1,
    /// Of IQ1: eight times a ternary number that is shifted up or down by an eighth.
    Iq1,
    /// Of IQ2: three magnitudes and their negatives.
    Iq2,
    /// Of IQ3_XXS: twice eight magnitudes and their negatives.
    Iq3Xxs,
    /// Of IQ3_S: the odd numbers below 16 and their negatives.
    Iq3S,
}

/// How a quantized format's panel is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeLayout {
    /// Bits of a stored code: 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// The stored code that stands for zero, where there is no min; not used with a code book.
    pub(crate) zero: u8,
    /// The code book that codes are indices into.
    pub(crate) codebook: Option<Codebook>,
    pub(crate) scales: ScaleKind,
}

impl CodeLayout {
    /// `None` for the float formats.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        use ScaleKind::{E4m3Halves, Exponent, F16, F16Min, Super, SuperEighths};
        use ScaleKind::{SuperHalves, SuperHalvesEighths, SuperHalvesMin, SuperMin};
        let (bits, zero, codebook, scales) = match format {
            Format::F32 | Format::F16 | Format::BF16 | Format::FP8 | Format::MXFP8 => return None,
            Format::Q8_0 => (8, 128, None, F16),
            Format::Q4_0 => (4, 8, None, F16),
            Format::Q4_1 => (4, 0, None, F16Min),
            Format::Q5_0 => (5, 16, None, F16),
            Format::Q5_1 => (5, 0, None, F16Min),
            Format::Q2_K => (2, 0, None, SuperHalvesMin),
            Format::Q3_K => (3, 4, None, SuperHalves),
            Format::Q4_K => (4, 0, None, SuperMin),
            Format::Q5_K => (5, 0, None, SuperMin),
            Format::Q6_K => (6, 32, None, SuperHalves),
            Format::IQ4_NL => (4, 128, Some(Codebook::Iq4), F16),
            Format::IQ4_XS => (4, 128, Some(Codebook::Iq4), Super),
            Format::MXFP4 => (4, 128, Some(Codebook::E2m1), Exponent),
            Format::NVFP4 | Format::NVFP4_SCALED => (4, 128, Some(Codebook::E2m1), E4m3Halves),
            Format::IQ3_XXS => (4, 128, Some(Codebook::Iq3Xxs), SuperEighths),
            Format::IQ3_S => (4, 128, Some(Codebook::Iq3S), Super),
            Format::IQ2_XXS => (3, 128, Some(Codebook::Iq2), SuperEighths),
            Format::IQ2_XS | Format::IQ2_S => (3, 128, Some(Codebook::Iq2), SuperHalvesEighths),
            Format::IQ1_S => (3, 128, Some(Codebook::Iq1), SuperEighths),
            Format::IQ1_M => (3, 128, Some(Codebook::Iq1), SuperHalvesEighths),
            Format::TQ1_0 | Format::TQ2_0 => (2, 1, None, Super),
        };
        Some(Self { bits, zero, codebook, scales })
    }

    /// The largest magnitude of a code's value.
    const fn largest_value(self) -> f32 {
        match self.zero {
            128 => 128.0,
            0 => ((1 << self.bits) - 1) as f32,
            // A code of two bits may stand for 2.
            1 => 2.0,
            zero => zero as f32,
        }
    }

    /// The value of a code, before the scale; a min is not part of it.
    pub(crate) fn value(self, code: u8) -> f32 {
        match self.codebook {
            Some(codebook) => f32::from(codebook.values()[usize::from(code)]),
            None => f32::from(i16::from(code) - i16::from(self.zero)),
        }
    }

    /// An upper bound of the magnitude of a matrix's weights.
    pub(crate) fn largest_weight(self, [scale, min]: [f32; 2]) -> f32 {
        let (scales, mins) = match self.scales {
            ScaleKind::F16 | ScaleKind::F16Min | ScaleKind::E4m3Halves | ScaleKind::Exponent => (1.0, 1.0),
            ScaleKind::Super | ScaleKind::SuperHalves => (128.0, 0.0),
            ScaleKind::SuperEighths | ScaleKind::SuperHalvesEighths => (16.0, 0.0),
            ScaleKind::SuperMin => (63.0, 63.0),
            ScaleKind::SuperHalvesMin => (15.0, 15.0),
        };
        scale * scales * self.largest_value() + min * mins
    }

    /// Whether codes are unsigned, below 64 and offset from their values. ISAs with `WIDE_IS_SLOW` do not widen such codes.
    pub(crate) const fn is_narrow(self) -> bool {
        self.bits < 8 && self.codebook.is_none() && !self.scales.has_min()
    }

    /// Bytes of one block's codes.
    pub(crate) const fn code_bytes(self) -> usize {
        PANEL * BLOCK * self.bits / 8
    }
}

/// How the scales of a panel's E4M3 weights are stored, [16] each. A weight's code is read as a 256th of its number (see
/// [`crate::simd::SimdIsa::load_e4m3`]) and multiplied by 256 times the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum E4m3Scale {
    /// f32, for four blocks.
    F32,
    /// u8 exponent `e` of a scale `2^(e - 127)` of codes that are read so, for one block.
    Exponent,
}

impl E4m3Scale {
    /// `None` for formats of other elements.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        match format {
            Format::FP8 => Some(Self::F32),
            Format::MXFP8 => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Blocks that share a scale.
    pub(crate) const fn blocks(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Exponent => 1,
        }
    }

    /// Bytes of the scales of sixteen rows.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4 * PANEL,
            Self::Exponent => PANEL,
        }
    }

    /// Offset of the scales of block `b` in their section.
    pub(crate) const fn at(self, b: usize) -> usize {
        b / self.blocks() * self.bytes()
    }
}

/// Bytes of one weight of a format of floats, its scale apart.
pub(crate) const fn float_bytes(format: Format) -> usize {
    if E4m3Scale::of(format).is_some() { 1 } else { format.block_bytes() }
}

/// Offsets and sizes of a panel's sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    /// Blocks along the columns, the last one padded with zeros.
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
    /// `None` when a size overflows.
    pub(crate) fn of(format: Format, cols: usize) -> Option<Self> {
        let n_blocks = cols.div_ceil(BLOCK);
        let line = |n: usize| n.checked_next_multiple_of(64);
        let (n_super_bytes, (blocks, scale_bytes), code_bytes) = match CodeLayout::of(format) {
            None => {
                let scales = E4m3Scale::of(format).map_or((1, 0), |scale| (scale.blocks(), scale.bytes()));
                (0, scales, PANEL * BLOCK * float_bytes(format))
            }
            Some(codes) => {
                let CodeLayout { scales, .. } = codes;
                let n_supers = n_blocks.div_ceil(scales.blocks_per_super());
                let n_super_bytes = n_supers.checked_mul(scales.super_bytes())?;
                (n_super_bytes, (1, scales.block_bytes()), codes.code_bytes())
            }
        };
        let scales_at = line(n_super_bytes)?;
        let codes_at = scales_at.checked_add(line(n_blocks.div_ceil(blocks).checked_mul(scale_bytes)?)?)?;
        let bytes = codes_at.checked_add(n_blocks.checked_mul(code_bytes)?)?;
        Some(Self { n_blocks, scales_at, codes_at, code_bytes, bytes })
    }

    /// The largest magnitudes of a panel's scales and mins (of superblocks where the format has them), as bits of an f32. NaN counts as
    /// larger than all numbers.
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

/// The scale `2^(e - 128)` of an exponent; infinite for 255, which stands for NaN.
pub(crate) fn power_of_two(e: u8) -> f32 {
    // The smallest one is not a normal number.
    f32::from_bits((u32::from(e) << 23).max(1 << 22)) * 0.5
}

/// A 256th of a number of E4M3 without a sign (OCP 8-bit Floating Point Specification): its bits are those of an f16.
pub(crate) const fn unsigned_e4m3(code: u8) -> f32 {
    half::f16::from_bits((code as u16) << 7).to_f32_const()
}
