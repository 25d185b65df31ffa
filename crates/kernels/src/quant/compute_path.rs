//! Describes how matrices of a format are stored and multiplied, for reports. Does not know models.

use std::fmt;

use super::Format;
use crate::formats::Elements;

/// Path of a matrix product. Every format has a native path on every ISA: none is converted to another
/// format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComputePath {
    /// Panels of integer codes. Activations are quantized to int8 and dot products are exact integers; with
    /// AMX, activations and weights are bf16.
    Int8 {
        /// Bits of a stored code: 2, 3, 4, 5, 6 or 8.
        bits: usize,
    },
    /// Panels of floats, widened to f32 when they are multiplied, E4M3 with its scale. With AMX, F16, BF16
    /// and MXFP8 are multiplied as bf16: f16 in two bf16 parts.
    Float(Format),
}

impl ComputePath {
    /// The path of a stored format.
    pub const fn of(format: Format) -> Self {
        match format.codes() {
            Some(codes) => Self::Int8 { bits: codes.bits },
            None => Self::Float(format),
        }
    }

    /// Whether operands are multiplied in f32 on every ISA, also with AMX.
    pub const fn needs_f32(self) -> bool {
        match self {
            Self::Int8 { .. } => false,
            Self::Float(format) => {
                matches!(format.elements(), Elements::Floats(floats) if floats.needs_f32())
            }
        }
    }
}

impl fmt::Display for ComputePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 { bits: 8 } => write!(f, "int8 panels, bytes"),
            Self::Int8 { bits } => {
                // Bit planes: the powers of two that sum to `bits`.
                let planes = [4, 2, 1].into_iter().filter(|plane| bits & plane != 0);
                let planes: Vec<String> = planes.map(|plane| plane.to_string()).collect();
                write!(f, "int8 panels, {}-bit planes", planes.join("+"))
            }
            Self::Float(format) => write!(f, "float panels, {}", format.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_path_that_says_how_it_is_held() {
        let paths = Format::ALL.map(|format| (format.name(), ComputePath::of(format).to_string()));
        let path = |name| &paths.iter().find(|(format, _)| *format == name).expect("a format").1;
        assert_eq!(path("Q8_0"), "int8 panels, bytes");
        assert_eq!(path("Q4_K"), "int8 panels, 4-bit planes");
        assert_eq!(path("Q5_0"), "int8 panels, 4+1-bit planes");
        assert_eq!(path("Q6_K"), "int8 panels, 4+2-bit planes");
        assert_eq!(path("Q3_K"), "int8 panels, 2+1-bit planes");
        assert_eq!(path("IQ3_S"), "int8 panels, 4-bit planes");
        assert_eq!(path("IQ2_XS"), "int8 panels, 2+1-bit planes");
        assert_eq!(path("TQ1_0"), "int8 panels, 2-bit planes");
        assert_eq!(path("BF16"), "float panels, BF16");
        assert_eq!(path("FP8"), "float panels, FP8");
        for format in Format::ALL {
            let is_int8 = matches!(ComputePath::of(format), ComputePath::Int8 { .. });
            assert_eq!(is_int8, !format.is_float(), "{}", format.name());
        }
    }
}
