//! Numbers of E4M3 (OCP 8-bit Floating Point Specification), decoded and encoded.

use crate::formats::bits::f32_at;
use crate::formats::range::inverse;
use crate::layout::{E4m3Scale, unsigned_e4m3};

/// Scales are applied to a 256th of a code's number, which is the f16 value of its bits.
pub(crate) const SCALED_BY: f32 = 256.0;

/// A 256th of the number of each code: a sign, four bits of exponent with bias 7, three of mantissa. The
/// codes of NaN count as ±480.
pub(crate) static NUMBERS: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        numbers[code] = number(code as u8);
        code += 1;
    }
    numbers
};

const fn number(code: u8) -> f32 {
    let size = unsigned_e4m3(code & 0x7F);
    if code & 0x80 == 0 { size } else { -size }
}

/// The number of a code of E4M3 (OCP 8-bit Floating Point Specification): no infinities, and NaN for the two
/// codes of NaN.
pub fn e4m3_number(code: u8) -> f32 {
    if code & 0x7F == 0x7F { f32::NAN } else { NUMBERS[usize::from(code)] * SCALED_BY }
}

/// The code of the nearest number, even in a tie; numbers beyond the range give the largest code.
fn nearest(x: f32) -> u8 {
    let size = x.abs() / SCALED_BY;
    // The codes of numbers that are not negative are in their order; the last one is that of NaN.
    let above = NUMBERS[..127].partition_point(|number| *number < size);
    let code = match above {
        0 => 0,
        127 => 126,
        _ => {
            let (low, high) = (size - NUMBERS[above - 1], NUMBERS[above] - size);
            if low < high || low == high && above % 2 == 1 { above - 1 } else { above }
        }
    };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Writes the codes nearest to `x / scale`.
pub(super) fn put_codes(x: &[f32], scale: f32, out: &mut [u8]) {
    let per_x = inverse(scale);
    std::iter::zip(out, x).for_each(|(out, x)| *out = nearest(x * per_x));
}

/// The exponent that a panel holds: the bits of 256 times the scale `2^(e - 127)`; infinite where that is too
/// large.
pub(crate) fn panel_exponent(e: u8) -> u8 {
    e.saturating_add(8)
}

/// Writes the elements of stored blocks: codes after their scale.
pub(in crate::formats) fn decode(kind: E4m3Scale, block_bytes: usize, bytes: &[u8], out: &mut [f32]) {
    let scale_bytes = kind.stored_bytes();
    let blocks = bytes.chunks_exact(block_bytes);
    for (block, out) in blocks.zip(out.chunks_exact_mut(block_bytes - scale_bytes)) {
        let scale = match kind {
            E4m3Scale::F32 => f32_at(block, 0) * SCALED_BY,
            E4m3Scale::Exponent => f32::from_bits(u32::from(panel_exponent(block[0])) << 23),
        };
        for (out, code) in out.iter_mut().zip(&block[scale_bytes..]) {
            *out = NUMBERS[usize::from(*code)] * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        let known =
            [(0x00, 0.0), (0x01, 2.0_f32.powi(-9)), (0x08, 2.0_f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0)];
        for (code, number) in known {
            assert_eq!(NUMBERS[code] * 256.0, number);
            assert_eq!(NUMBERS[code | 0x80] * 256.0, -number);
            assert_eq!((e4m3_number(code as u8), e4m3_number(code as u8 | 0x80)), (number, -number));
        }
        assert!(NUMBERS[0x80].is_sign_negative());
        assert!(e4m3_number(0x7f).is_nan() && e4m3_number(0xff).is_nan());
    }

    #[test]
    fn each_number_has_its_own_code() {
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(nearest(NUMBERS[usize::from(code)] * 256.0), code);
        }
        // Between 1 and 1.125, and beyond the largest.
        assert_eq!(
            [1.06, 1.0625, 1.07, 1.1875, 1e9, -1e9].map(nearest),
            [0x38, 0x38, 0x39, 0x3a, 0x7e, 0xfe]
        );
    }
}
