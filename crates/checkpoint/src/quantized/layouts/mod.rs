//! The layouts in which other libraries store quantized linear layers. Each is described by a value: the bits
//! of a code, the format that usually holds its numbers, and how it is decoded. Does not know configurations.
//!
//! A layout is a file here and a row of the table.

mod awq;
mod awq_gemv;
mod e4m3;
mod fp8_blocks;
mod fp8_rows;
mod gptq;
mod gptq_v2;
mod int8;
mod integers;
mod mxfp4;
mod mxfp8;
mod nvfp4;
mod nvfp4_modelopt;
mod packed;

use throng_kernels::quant::Format;

use super::DecodeError;
use super::layer::Layer;
use super::stacked::Stack;

/// Rows of a layer in a format of the engine.
pub(super) type Decoded = Result<(Format, Vec<u8>), DecodeError>;

/// Description of a layout.
struct Description {
    /// Bits of a code where the layout does not have them as a parameter.
    bits: usize,
    /// The format in which a layer of this number of columns is usually held; its numbers decide. The last
    /// argument says whether scales are stored in E8M0: where scales in another type happen to be powers of
    /// two, it is MXFP8 instead of FP8, which takes as much memory.
    usual_format: fn(Layout, usize, bool) -> Format,
    decode: fn(&Layer<'_>, Layout) -> Decoded,
    /// Decodes rows of one expert of a tensor with all experts; `None` if no library writes this layout so.
    decode_experts: Option<fn(&Stack<'_>, Layout) -> Decoded>,
}

macro_rules! layouts {
    ($($name:ident = $file:ident,)*) => {
        /// A layout apart from its parameters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum LayoutKind {
            $($name,)*
        }

        impl LayoutKind {
            const fn description(self) -> &'static Description {
                match self {
                    $(Self::$name => &$file::FORMAT,)*
                }
            }
        }
    };
}

layouts! {
    Awq = awq,
    AwqGemv = awq_gemv,
    Fp8Blocks = fp8_blocks,
    Fp8Rows = fp8_rows,
    Gptq = gptq,
    GptqV2 = gptq_v2,
    Int8 = int8,
    Mxfp4 = mxfp4,
    Mxfp8 = mxfp8,
    Nvfp4 = nvfp4,
    Nvfp4Modelopt = nvfp4_modelopt,
    Packed = packed,
}

/// Layout of quantized linear layers: one of the layouts with its parameters. Parameters that a layout
/// does not have are as [`Self::new`] sets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    kind: LayoutKind,
    /// Number of bits of a code.
    pub(super) bits: usize,
    /// Number of columns that share a scale; without them, those of a row do.
    pub(super) group: Option<usize>,
    /// Rows and columns that share a scale.
    block: [usize; 2],
    /// Whether codes have no zero points.
    is_symmetric: bool,
}

impl Layout {
    const fn new(kind: LayoutKind) -> Self {
        Self { kind, bits: kind.description().bits, group: None, block: [0; 2], is_symmetric: false }
    }

    /// This layout with another width of codes and another group size.
    pub(super) const fn with_sizes(self, bits: usize, group: Option<usize>) -> Self {
        Self { bits, group, ..self }
    }

    /// Number of bits of a code.
    pub fn code_bits(self) -> usize {
        self.bits
    }

    /// Whether codes are floats; others are integers.
    pub fn is_float(self) -> bool {
        use LayoutKind::{Fp8Blocks, Fp8Rows, Mxfp4, Mxfp8, Nvfp4, Nvfp4Modelopt};
        matches!(self.kind, Fp8Blocks | Fp8Rows | Mxfp4 | Mxfp8 | Nvfp4 | Nvfp4Modelopt)
    }

    /// Bits of a weight in a file, with its part of the scale and of the zero point of its group. Scales of
    /// whole rows and of blocks of rows are too few to count.
    pub fn stored_bits(self) -> f64 {
        let of_group = match (self.kind, self.group) {
            (LayoutKind::Mxfp4 | LayoutKind::Mxfp8, _) => 8.0 / 32.0,
            (LayoutKind::Nvfp4 | LayoutKind::Nvfp4Modelopt, _) => 8.0 / 16.0,
            (_, Some(group)) => {
                let zero_point = if self.is_symmetric { 0 } else { self.bits };
                (16 + zero_point) as f64 / group.max(1) as f64
            }
            (_, None) => 0.0,
        };
        self.bits as f64 + of_group
    }

    /// The format in which such a layer of `cols` columns is usually held.
    pub(super) fn usual_format(self, cols: usize, has_exponents: bool) -> Format {
        (self.kind.description().usual_format)(self, cols, has_exponents)
    }

    /// Decodes a layer into the smallest format of the engine that has its numbers exactly.
    pub(super) fn decode(self, layer: &Layer<'_>) -> Decoded {
        (self.kind.description().decode)(layer, self)
    }

    /// Decodes rows of one of the experts that a tensor holds.
    pub(super) fn decode_experts(self, stack: &Stack<'_>) -> Decoded {
        match self.kind.description().decode_experts {
            Some(decode) => decode(stack, self),
            None => Err(DecodeError::Stack(stack.name.to_owned())),
        }
    }

    /// Number of columns of a group in rows of `cols`.
    fn group_columns(self, cols: usize) -> usize {
        self.group.unwrap_or(cols).max(1)
    }
}
