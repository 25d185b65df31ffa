//! The values of 4-bit codes that are not evenly spaced. Does not know scales.

use crate::layout::Codebook;

/// The value of each code of IQ4_NL and IQ4_XS, before the block's scale (ggml-common.h, `kvalues_iq4nl`).
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the value of each code of MXFP4: one sign, two exponent bits, one mantissa bit (OCP Microscaling Formats 1.0, E2M1).
pub(crate) const E2M1_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Codebook {
    /// The value of each code, before the block's scale.
    pub(crate) const fn values(self) -> &'static [i8; 16] {
        match self {
            Self::Iq4 => &IQ4_VALUES,
            Self::E2m1 => &E2M1_VALUES,
        }
    }

    /// The values + 128.
    pub(crate) const fn biased(self) -> &'static [u8; 16] {
        const IQ4: [u8; 16] = biased(&IQ4_VALUES);
        const E2M1: [u8; 16] = biased(&E2M1_VALUES);
        match self {
            Self::Iq4 => &IQ4,
            Self::E2m1 => &E2M1,
        }
    }
}

const fn biased(values: &[i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i16 + 128) as u8;
        i += 1;
    }
    table
}
