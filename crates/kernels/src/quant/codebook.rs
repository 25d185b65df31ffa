//! The non-linear 4-bit code book shared by IQ4_NL and IQ4_XS (ggml-common.h, `kvalues_iq4nl`).

/// The value of each 4-bit code, before the block's scale.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
