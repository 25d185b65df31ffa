//! The element formats of stored tensors. Each is described by a value: its sizes, how a panel holds its
//! elements, and how stored blocks are split into codes and encoded. Does not know how panels are computed
//! with.
//!
//! A format with a code layout that exists is a file in one of the folders and a row of the table here:
//! kernels are chosen by layout.

mod bits;
mod block;
mod floats;
mod fp4;
mod grid;
pub(crate) mod k;
mod range;
mod rows;
mod simple;
mod ternary;

pub(crate) use bits::{f16_at, f32_at, put_f16, put_fifth_bits, put_nibbles};
pub(crate) use block::BlockCodes;
pub(crate) use floats::e4m3;
pub(crate) use range::inverse;
pub use rows::{dequantize_row, quantize_row};

use crate::layout::{CodeLayout, FloatLayout};

/// Description of a format.
struct Description {
    /// Number in ggml's `enum ggml_type` (ggml.h); `None` for formats that ggml lacks.
    ggml_number: Option<u32>,
    /// Elements that share one block; a row's length is a multiple of it.
    block_elements: usize,
    /// Bytes of one block.
    block_bytes: usize,
    elements: Elements,
    /// Writes the stored block of a block's elements: plain round-to-nearest, without a search for better
    /// scales.
    encode: fn(&[f32], &mut [u8]),
}

/// Encoding of a format's elements.
#[derive(Clone, Copy)]
pub(crate) enum Elements {
    Floats(FloatLayout),
    /// Integers with scales. The function splits a block of 32 columns, given by its index in the stored
    /// block, into codes and scales without rounding.
    Codes(CodeLayout, fn(&[u8], usize) -> BlockCodes),
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $folder:ident::$file:ident,)*) => {
        /// Encoding of a stored tensor's elements; block formats as ggml defines them (ggml-common.h), except
        /// the last three.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, non_camel_case_types, reason = "the names are those of the formats")]
        pub enum Format {
            $($(#[$doc])* $name,)*
        }

        impl Format {
            /// All formats.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// The format's name, as ggml spells it where it has the format.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            const fn description(self) -> &'static Description {
                match self {
                    $(Self::$name => &$folder::$file::FORMAT,)*
                }
            }
        }
    };
}

formats! {
    F32 = floats::f32,
    F16 = floats::f16,
    BF16 = floats::bf16,
    Q8_0 = simple::q8_0,
    Q4_0 = simple::q4_0,
    Q4_1 = simple::q4_1,
    Q5_0 = simple::q5_0,
    Q5_1 = simple::q5_1,
    Q2_K = k::q2_k,
    Q3_K = k::q3_k,
    Q4_K = k::q4_k,
    Q5_K = k::q5_k,
    Q6_K = k::q6_k,
    IQ4_NL = simple::iq4_nl,
    IQ4_XS = k::iq4_xs,
    MXFP4 = fp4::mxfp4,
    NVFP4 = fp4::nvfp4,
    IQ3_XXS = grid::iq3_xxs,
    IQ3_S = grid::iq3_s,
    IQ2_XXS = grid::iq2_xxs,
    IQ2_XS = grid::iq2_xs,
    IQ2_S = grid::iq2_s,
    IQ1_S = grid::iq1_s,
    IQ1_M = grid::iq1_m,
    TQ1_0 = ternary::tq1_0,
    TQ2_0 = ternary::tq2_0,
    /// 128 elements of E4M3 (OCP 8-bit Floating Point Specification) after their scale, an f32. The two codes
    /// of NaN count as ±480, and a scale of 2^120 or more as infinite.
    FP8 = floats::fp8,
    /// 32 elements of E4M3 after the exponent `e` of their scale `2^(e - 127)`, a byte (OCP Microscaling
    /// Formats 1.0). The two codes of NaN count as ±480, and a scale of 2^120 or more as infinite.
    MXFP8 = floats::mxfp8,
    /// A factor, an f32, before a block of NVFP4 that is multiplied with it: the layout of ModelOpt and
    /// compressed-tensors, which have one factor for a matrix, and of ggml with a tensor of factors. A factor
    /// of 2^121 or more counts as infinite.
    NVFP4_SCALED = fp4::nvfp4_scaled,
}

impl Format {
    /// Elements that share one block; a row's length is a multiple of it.
    pub const fn block_elements(self) -> usize {
        self.description().block_elements
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.description().block_bytes
    }

    /// Bytes of `n` elements; `None` when they do not fill whole blocks or the product overflows.
    pub fn bytes_of(self, n: usize) -> Option<usize> {
        n.is_multiple_of(self.block_elements())
            .then(|| (n / self.block_elements()).checked_mul(self.block_bytes()))?
    }

    /// Number in ggml's `enum ggml_type`, as in GGUF files; `None` for formats that ggml lacks.
    pub const fn ggml_number(self) -> Option<u32> {
        self.description().ggml_number
    }

    /// Whether elements are floats, each in F32, F16, BF16 or E4M3 with a scale. Others are integers, each
    /// with a scale.
    pub const fn is_float(self) -> bool {
        matches!(self.elements(), Elements::Floats(_))
    }

    pub(crate) const fn elements(self) -> Elements {
        self.description().elements
    }

    /// The layout of codes; `None` for formats of floats.
    pub(crate) const fn codes(self) -> Option<CodeLayout> {
        match self.elements() {
            Elements::Codes(layout, _) => Some(layout),
            Elements::Floats(_) => None,
        }
    }
}
