//! Which way a format's matrices go through the matmul, for people who ask. Refuses to know lanes and models.

use std::fmt;

use super::{CodeLayout, Format};

/// How a matrix is held and multiplied. Every format has a path of its own in every lane: none is converted to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixPath {
    /// Panels of integer codes of so many bits; activations are rounded to bytes and dots are exact integers, or to
    /// bfloat16 where the lane has tiles for it.
    Int8 {
        /// Of a stored code: 2, 3, 4, 5, 6 or 8.
        bits: usize,
    },
    /// Panels of floats in this format, widened to 32 bits where they are multiplied; short ones are taken as bfloat16, in two
    /// parts where they have more bits, where the lane has tiles for it.
    Float(Format),
}

impl MatrixPath {
    /// The path of a stored format.
    pub const fn of(format: Format) -> Self {
        match CodeLayout::of(format) {
            Some(codes) => Self::Int8 { bits: codes.bits },
            None => Self::Float(format),
        }
    }
}

impl fmt::Display for MatrixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 { bits: 8 } => write!(f, "int8 panels, bytes"),
            Self::Int8 { bits } => {
                // The planes are the powers of two that the bits consist of.
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
        let paths = Format::ALL.map(|format| (format.name(), MatrixPath::of(format).to_string()));
        let path = |name| &paths.iter().find(|(format, _)| *format == name).expect("a format").1;
        assert_eq!(path("Q8_0"), "int8 panels, bytes");
        assert_eq!(path("Q4_K"), "int8 panels, 4-bit planes");
        assert_eq!(path("Q5_0"), "int8 panels, 4+1-bit planes");
        assert_eq!(path("Q6_K"), "int8 panels, 4+2-bit planes");
        assert_eq!(path("Q3_K"), "int8 panels, 2+1-bit planes");
        assert_eq!(path("BF16"), "float panels, BF16");
        for format in Format::ALL {
            let is_int8 = matches!(MatrixPath::of(format), MatrixPath::Int8 { .. });
            assert_eq!(is_int8, format.block_elements() > 1, "{}", format.name());
        }
    }
}
