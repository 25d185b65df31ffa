//! Numbers of scales without mantissa or sign, as panels hold them.

/// The scale `2^(e - 128)` of an exponent; infinite for 255, which encodes NaN.
pub(crate) fn power_of_two(e: u8) -> f32 {
    // The smallest one is not a normal number.
    f32::from_bits((u32::from(e) << 23).max(1 << 22)) * 0.5
}

/// A 256th of a number of E4M3 without a sign (OCP 8-bit Floating Point Specification): its bits are those of
/// an f16.
pub(crate) const fn unsigned_e4m3(code: u8) -> f32 {
    half::f16::from_bits((code as u16) << 7).to_f32_const()
}
