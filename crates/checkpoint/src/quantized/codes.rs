//! The numbers of codes of E2M1 and E8M0 (OCP Microscaling Formats 1.0). Does not know scales.

/// Number of columns of MXFP8 and MXFP4 that share a scale.
pub(super) const MX_GROUP: usize = 32;
/// Number of bits of a code of E2M1.
pub(super) const E2M1_BITS: usize = 4;

/// E2M1 by the lowest bits of a byte: a sign, two bits of exponent, one of mantissa.
pub(super) fn e2m1(code: u8) -> f32 {
    const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let size = SIZES[(code & 7) as usize];
    if code & 8 == 0 { size } else { -size }
}

/// The number of a code of E8M0: a power of two.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        0 => 2.0_f32.powi(-127),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}
