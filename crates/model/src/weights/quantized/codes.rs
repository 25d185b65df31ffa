//! The numbers of codes of short floats: E2M1, E4M3 and E8M0 (OCP Microscaling Formats 1.0). Does not know scales.

/// E2M1 by the lowest bits of a byte: a sign, two bits of exponent, one of mantissa.
pub(super) fn e2m1(code: u8) -> f32 {
    const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let size = SIZES[(code & 7) as usize];
    if code & 8 == 0 { size } else { -size }
}

/// E4M3 without infinities: four bits of exponent, three of mantissa.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// E8M0: a power of two.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        0 => 2.0_f32.powi(-127),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_has_the_numbers_of_its_specification() {
        let known =
            [(0x00, 0.0), (0x01, 2.0_f32.powi(-9)), (0x08, 2.0_f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0)];
        for (code, number) in known {
            assert_eq!((e4m3(code), e4m3(code | 0x80)), (number, -number));
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
