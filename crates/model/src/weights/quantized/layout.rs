//! The layouts of quantized linear layers, as data. Does not know configurations or tensors.

use throng_kernels::quant::Format;

/// A layout of quantized linear layers. A group is the columns that share a scale; without one, a row is a group.
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
    /// AWQ with four bits, in the order of AutoAWQ's GEMM kernel, …
    Awq { group: Option<usize> },
    /// … and in that of its GEMV kernel.
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

    /// The format that has the numbers of most such checkpoints exactly.
    pub(super) fn usual_format(self) -> Format {
        match self {
            Self::Fp8Blocks { .. } | Self::Fp8Rows | Self::Nvfp4 { .. } => Format::F32,
            Self::Mxfp8 => Format::BF16,
            Self::Mxfp4 => Format::MXFP4,
            // The difference of a code and its zero point has a bit more than either.
            Self::Awq { .. } | Self::AwqGemv { .. } => of_bits(5),
            Self::Packed { bits, is_symmetric, .. } => of_bits(bits + usize::from(!is_symmetric)),
            Self::Gptq { bits, .. } => of_bits(bits),
            Self::Int8 { .. } => Format::Q8_0,
        }
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
