//! Layouts of a panel's integer codes and of their scales: kernels are compiled for each.

use super::codebook::Codebook;
use super::{BLOCK, PANEL};

/// Storage of the scales of one block and sixteen rows; all arrays are [16], or [2][16] for the two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    /// A scale in f16 for each block.
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
    /// Scale of each half block in E4M3, without a sign; for two blocks an f32 factor, 256 times the factor
    /// of the E4M3 numbers.
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

    /// Number of blocks of a superblock.
    pub(crate) const fn blocks_per_super(self) -> usize {
        if matches!(self, Self::E4m3Halves) { 2 } else { 8 }
    }

    /// Offset of the shared data of block `b`'s superblock.
    pub(crate) const fn super_at(self, b: usize) -> usize {
        b / self.blocks_per_super() * self.super_bytes()
    }

    /// Whether a half block has its own scale.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Self::SuperHalves | Self::SuperHalvesMin | Self::SuperHalvesEighths | Self::E4m3Halves)
    }

    /// Unit of a block's scale, which is an integer times this and the superblock's scale.
    pub(crate) const fn unit(self) -> f32 {
        if matches!(self, Self::SuperEighths | Self::SuperHalvesEighths) { 0.125 } else { 1.0 }
    }

    /// Whether codes are unsigned and each scale has a min.
    pub(crate) const fn has_min(self) -> bool {
        matches!(self, Self::F16Min | Self::SuperMin | Self::SuperHalvesMin)
    }
}

/// Encoding of a quantized format's panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeLayout {
    idx: LayoutIdx,
    /// Bits of a stored code: 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// The stored code of zero, in layouts without a min; not used with a code book.
    pub(crate) zero: u8,
    /// The code book that codes are indices into.
    pub(crate) codebook: Option<Codebook>,
    pub(crate) scales: ScaleKind,
}

/// Work that is generic over a code layout, so that no block branches on it.
pub(crate) trait WithLayout {
    /// Runs the work for the layout of an index in [`CodeLayout::ALL`].
    fn run<const LAYOUT: usize>(self);
}

macro_rules! code_layouts {
    ($($name:ident($bits:literal, $zero:literal, $codebook:expr, $scales:ident);)*) => {
        /// Index of each layout in [`CodeLayout::ALL`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the names are those of formats")]
        enum LayoutIdx {
            $($name,)*
        }

        impl CodeLayout {
            $(pub(crate) const $name: Self = Self {
                idx: LayoutIdx::$name,
                bits: $bits,
                zero: $zero,
                codebook: $codebook,
                scales: ScaleKind::$scales,
            };)*

            /// All layouts.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// Runs work for which the layout is a compile-time constant.
            pub(crate) fn with(self, work: impl WithLayout) {
                match self.idx {
                    $(LayoutIdx::$name => work.run::<{ LayoutIdx::$name as usize }>(),)*
                }
            }
        }
    };
}

// Bits, the code of zero, code book and scales. Each is named after the first format that has it.
code_layouts! {
    Q8_0(8, 128, None, F16);
    Q4_0(4, 8, None, F16);
    Q4_1(4, 0, None, F16Min);
    Q5_0(5, 16, None, F16);
    Q5_1(5, 0, None, F16Min);
    Q2_K(2, 0, None, SuperHalvesMin);
    Q3_K(3, 4, None, SuperHalves);
    Q4_K(4, 0, None, SuperMin);
    Q5_K(5, 0, None, SuperMin);
    Q6_K(6, 32, None, SuperHalves);
    IQ4_NL(4, 128, Some(Codebook::Iq4), F16);
    IQ4_XS(4, 128, Some(Codebook::Iq4), Super);
    MXFP4(4, 128, Some(Codebook::E2m1), Exponent);
    NVFP4(4, 128, Some(Codebook::E2m1), E4m3Halves);
    IQ3_XXS(4, 128, Some(Codebook::Iq3Xxs), SuperEighths);
    IQ3_S(4, 128, Some(Codebook::Iq3S), Super);
    IQ2_XXS(3, 128, Some(Codebook::Iq2), SuperEighths);
    IQ2_XS(3, 128, Some(Codebook::Iq2), SuperHalvesEighths);
    IQ1_S(3, 128, Some(Codebook::Iq1), SuperEighths);
    IQ1_M(3, 128, Some(Codebook::Iq1), SuperHalvesEighths);
    TQ2_0(2, 1, None, Super);
}

impl CodeLayout {
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

    /// Whether codes are unsigned, below 64 and offset from their values. ISAs with `WIDE_IS_SLOW` do not
    /// widen such codes.
    pub(crate) const fn is_narrow(self) -> bool {
        self.bits < 8 && self.codebook.is_none() && !self.scales.has_min()
    }

    /// Whether weights are exact in bf16: a few digits times a power of two.
    pub(crate) const fn is_exact_in_bf16(self) -> bool {
        matches!(self.scales, ScaleKind::Exponent)
    }

    /// Bytes of one block's codes.
    pub(crate) const fn code_bytes(self) -> usize {
        PANEL * BLOCK * self.bits / 8
    }
}
