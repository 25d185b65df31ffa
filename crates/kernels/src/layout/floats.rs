//! Layouts of a panel's floats.

use super::PANEL;

/// Storage of floats in a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatLayout {
    F32,
    F16,
    BF16,
    /// E4M3 with [`E4m3Scale::F32`].
    Fp8,
    /// E4M3 with [`E4m3Scale::Exponent`].
    Mxfp8,
}

impl FloatLayout {
    /// All layouts.
    pub(crate) const ALL: [Self; 5] = [Self::F32, Self::F16, Self::BF16, Self::Fp8, Self::Mxfp8];

    /// Bytes of one weight, its scale apart.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Fp8 | Self::Mxfp8 => 1,
        }
    }

    /// Kind of the E4M3 scales; `None` for other layouts.
    pub(crate) const fn scale(self) -> Option<E4m3Scale> {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => None,
            Self::Fp8 => Some(E4m3Scale::F32),
            Self::Mxfp8 => Some(E4m3Scale::Exponent),
        }
    }

    /// Whether weights have too many digits to be multiplied in tiles of bf16.
    pub(crate) const fn needs_f32(self) -> bool {
        matches!(self, Self::F32 | Self::Fp8)
    }
}

/// Storage of the scales of a panel's E4M3 weights, [16] each. A weight's code is read as a 256th of its
/// number (see [`crate::simd::SimdIsa::load_e4m3`]) and multiplied by 256 times the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum E4m3Scale {
    /// An f32 scale for four blocks.
    F32,
    /// u8 exponent `e` of a scale `2^(e - 127)` of codes that are read so, for one block.
    Exponent,
}

impl E4m3Scale {
    /// Bytes of one scale in a stored block.
    pub(crate) const fn stored_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Exponent => 1,
        }
    }

    /// Number of blocks that share a scale.
    pub(crate) const fn blocks(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Exponent => 1,
        }
    }

    /// Bytes of the scales of sixteen rows.
    pub(crate) const fn bytes(self) -> usize {
        self.stored_bytes() * PANEL
    }

    /// Offset of the scales of block `b` in their section.
    pub(crate) const fn at(self, b: usize) -> usize {
        b / self.blocks() * self.bytes()
    }
}
