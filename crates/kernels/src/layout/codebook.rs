//! Values of codes that are not evenly spaced.

/// A table of values of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codebook {
    /// Codebook of IQ4_NL and IQ4_XS.
    Iq4,
    /// The numbers of MXFP4 and NVFP4, doubled so that they are integers.
    E2m1,
    /// IQ1: eight times a ternary number that is shifted up or down by an eighth.
    Iq1,
    /// IQ2: three magnitudes and their negatives.
    Iq2,
    /// IQ3_XXS: twice eight magnitudes and their negatives.
    Iq3Xxs,
    /// IQ3_S: the odd numbers below 16 and their negatives.
    Iq3S,
}

/// The value of each code of IQ4_NL and IQ4_XS, before the block's scale (ggml-common.h, `kvalues_iq4nl`).
const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the value of each code of MXFP4: one sign, two exponent bits, one mantissa bit (OCP Microscaling
/// Formats 1.0, E2M1).
const E2M1_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Eight times the coordinates of IQ1's grid, -1, 0 and 1, each 1/8 larger; then each 1/8 smaller. Codes 3
/// and 7 do not occur.
const IQ1_VALUES: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The coordinates of IQ2's grids, then their negatives. Codes 3 and 7 do not occur.
const IQ2_VALUES: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Twice the coordinates of IQ3_XXS's grid, then their negatives.
const IQ3_XXS_VALUES: [i8; 16] = [8, 24, 40, 56, 72, 88, 104, 124, -8, -24, -40, -56, -72, -88, -104, -124];

/// The coordinates of IQ3_S's grid, then their negatives.
const IQ3_S_VALUES: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];

impl Codebook {
    /// The value of each code, before the block's scale.
    pub(crate) const fn values(self) -> &'static [i8; 16] {
        match self {
            Self::Iq4 => &IQ4_VALUES,
            Self::E2m1 => &E2M1_VALUES,
            Self::Iq1 => &IQ1_VALUES,
            Self::Iq2 => &IQ2_VALUES,
            Self::Iq3Xxs => &IQ3_XXS_VALUES,
            Self::Iq3S => &IQ3_S_VALUES,
        }
    }

    /// The values of the codebook, each plus 128.
    pub(crate) const fn biased(self) -> &'static [u8; 16] {
        const IQ4: [u8; 16] = biased(&IQ4_VALUES);
        const E2M1: [u8; 16] = biased(&E2M1_VALUES);
        const IQ1: [u8; 16] = biased(&IQ1_VALUES);
        const IQ2: [u8; 16] = biased(&IQ2_VALUES);
        const IQ3_XXS: [u8; 16] = biased(&IQ3_XXS_VALUES);
        const IQ3_S: [u8; 16] = biased(&IQ3_S_VALUES);
        match self {
            Self::Iq4 => &IQ4,
            Self::E2m1 => &E2M1,
            Self::Iq1 => &IQ1,
            Self::Iq2 => &IQ2,
            Self::Iq3Xxs => &IQ3_XXS,
            Self::Iq3S => &IQ3_S,
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
