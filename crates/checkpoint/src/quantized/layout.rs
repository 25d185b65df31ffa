//! The layouts of quantized linear layers, as data. Does not know configurations or tensors.

use throng_kernels::quant::Format;

/// Columns of MXFP8 and MXFP4 that share a scale.
pub(super) const MX_GROUP: usize = 32;

/// A layout of quantized linear layers. A group is the columns that share a scale; without one, a row is a
/// group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the parameters of the layouts")]
pub enum QuantizedBy {
    /// FP8 (E4M3) with scales for blocks of rows and columns.
    Fp8Blocks { block: [usize; 2] },
    /// FP8 (E4M3) with a scale for each row, or one.
    Fp8Rows,
    /// MXFP8: FP8 (E4M3) with exponents for 32 columns of a row.
    Mxfp8,
    /// NVFP4, as ModelOpt or compressed-tensors names its tensors.
    Nvfp4 { is_modelopt: bool },
    /// MXFP4 as compressed-tensors names its tensors.
    Mxfp4,
    /// AWQ with four bits, in the order of AutoAWQ's GEMM kernel.
    Awq { group: Option<usize> },
    /// AWQ in the order of AutoAWQ's GEMV kernel.
    AwqGemv { group: Option<usize> },
    /// GPTQ; its first format stores zero points less one.
    Gptq { bits: usize, group: Option<usize>, zeros_are_less_one: bool },
    /// Packed integers of compressed-tensors.
    Packed { bits: usize, group: Option<usize>, is_symmetric: bool },
    /// A byte for each integer, whatever its bits.
    Int8 { group: Option<usize>, is_symmetric: bool },
}

impl QuantizedBy {
    /// Bits that a code takes.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::Fp8Blocks { .. } | Self::Fp8Rows | Self::Mxfp8 | Self::Int8 { .. } => 8,
            Self::Nvfp4 { .. } | Self::Mxfp4 | Self::Awq { .. } | Self::AwqGemv { .. } => 4,
            Self::Gptq { bits, .. } | Self::Packed { bits, .. } => bits,
        }
    }

    /// The format in which such a layer of `cols` columns is usually held; its numbers decide.
    /// `has_exponents`: scales are stored in E8M0. Where scales in another type happen to be powers of two,
    /// it is MXFP8 instead of FP8, which takes as much memory.
    pub(super) fn usual_format(self, cols: usize, has_exponents: bool) -> Format {
        match self {
            Self::Fp8Blocks { block: [_, wide] } => of_e4m3(cols, wide, has_exponents),
            Self::Fp8Rows => of_e4m3(cols, cols, has_exponents),
            Self::Nvfp4 { .. } if has_whole_blocks(Format::NVFP4_SCALED, cols, cols) => Format::NVFP4_SCALED,
            Self::Nvfp4 { .. } => Format::F32,
            Self::Mxfp8 => of_e4m3(cols, MX_GROUP, true),
            Self::Mxfp4 => Format::MXFP4,
            // The difference of a code and its zero point has a bit more than either.
            Self::Awq { .. } | Self::AwqGemv { .. } => of_bits(5),
            Self::Packed { bits, is_symmetric, .. } => of_bits(bits + usize::from(!is_symmetric)),
            Self::Gptq { bits, .. } => of_bits(bits),
            Self::Int8 { .. } => Format::Q8_0,
        }
    }
}

/// Whether rows are whole blocks of the format, each with one scale, where each `wide` columns have one.
pub(super) fn has_whole_blocks(format: Format, cols: usize, wide: usize) -> bool {
    cols.is_multiple_of(format.block_elements())
        && (wide.is_multiple_of(format.block_elements()) || wide >= cols)
}

/// The format of E4M3 with a scale for each `wide` columns of a row.
fn of_e4m3(cols: usize, wide: usize, has_exponents: bool) -> Format {
    match has_exponents {
        true if has_whole_blocks(Format::MXFP8, cols, wide) => Format::MXFP8,
        true => Format::BF16,
        false if has_whole_blocks(Format::FP8, cols, wide) => Format::FP8,
        false => Format::F32,
    }
}

/// The smallest format of blocks that has all integers of so many bits; with nine, F32.
fn of_bits(bits: usize) -> Format {
    match bits {
        0..=4 => Format::Q4_0,
        5 => Format::Q5_0,
        6..=8 => Format::Q8_0,
        _ => Format::F32,
    }
}
