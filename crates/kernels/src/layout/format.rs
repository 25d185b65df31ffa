//! The element formats of stored tensors. Does not know how they are computed with.

/// How the elements of a stored tensor are encoded; block formats as ggml defines them (ggml-common.h), except the last three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, non_camel_case_types, reason = "the names are those of the formats")]
pub enum Format {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    IQ3_XXS,
    IQ3_S,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ1_S,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    /// 128 elements of E4M3 (OCP 8-bit Floating Point Specification) after their scale, an f32. The two codes of NaN count as ±480, and a
    /// scale of 2^120 or more as infinite.
    FP8,
    /// 32 elements of E4M3 after the exponent `e` of their scale `2^(e - 127)`, a byte (OCP Microscaling Formats 1.0). The two codes of NaN
    /// count as ±480, and a scale of 2^120 or more as infinite.
    MXFP8,
    /// A factor, an f32, before a block of NVFP4 that is multiplied with it: the layout of ModelOpt and compressed-tensors, which have one factor for a
    /// matrix, and of ggml with a tensor of factors. A factor of 2^121 or more counts as infinite.
    NVFP4_SCALED,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 29] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::NVFP4,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::FP8,
        Self::MXFP8,
        Self::NVFP4_SCALED,
    ];

    /// Elements that share one block; a row's length is a multiple of it.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::MXFP8 => 32,
            Self::NVFP4 | Self::NVFP4_SCALED => 64,
            Self::FP8 => 128,
            _ => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2_K => 84,
            Self::Q3_K | Self::IQ3_S => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
            Self::NVFP4 => 36,
            Self::IQ3_XXS => 98,
            Self::IQ2_XXS | Self::TQ2_0 => 66,
            Self::IQ2_XS => 74,
            Self::IQ2_S => 82,
            Self::IQ1_S => 50,
            Self::IQ1_M => 56,
            Self::TQ1_0 => 54,
            Self::FP8 => 132,
            Self::MXFP8 => 33,
            Self::NVFP4_SCALED => 40,
        }
    }

    /// Bytes of `n` elements; `None` when they do not fill whole blocks or the product overflows.
    pub fn bytes_of(self, n: usize) -> Option<usize> {
        n.is_multiple_of(self.block_elements())
            .then(|| (n / self.block_elements()).checked_mul(self.block_bytes()))?
    }

    /// Whether ggml has the format, so that tensors of GGUF files may be in it.
    pub const fn is_ggml(self) -> bool {
        !matches!(self, Self::FP8 | Self::MXFP8 | Self::NVFP4_SCALED)
    }

    /// Whether elements are floats, each in F32, F16, BF16 or E4M3 with a scale. Others are integers, each with a scale.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::FP8 | Self::MXFP8)
    }

    /// The format's name, as ggml spells it where it has the format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
            Self::NVFP4 => "NVFP4",
            Self::IQ3_XXS => "IQ3_XXS",
            Self::IQ3_S => "IQ3_S",
            Self::IQ2_XXS => "IQ2_XXS",
            Self::IQ2_XS => "IQ2_XS",
            Self::IQ2_S => "IQ2_S",
            Self::IQ1_S => "IQ1_S",
            Self::IQ1_M => "IQ1_M",
            Self::TQ1_0 => "TQ1_0",
            Self::TQ2_0 => "TQ2_0",
            Self::FP8 => "FP8",
            Self::MXFP8 => "MXFP8",
            Self::NVFP4_SCALED => "NVFP4_SCALED",
        }
    }
}
