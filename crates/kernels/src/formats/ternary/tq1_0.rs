//! TQ1_0: digits in base 3 of bytes that are fractions of 256. Five digits of 32 bytes, five of 16 and four
//! of 4; f16 d.

use super::{block, codes};
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(34),
    block_elements: 256,
    block_bytes: 54,
    elements: Elements::Codes(CodeLayout::TQ2_0, |s, b| {
        block(std::array::from_fn(|i| digit(s, 32 * b + i)), s)
    }),
    encode: |x, out| {
        let code = codes(x, out);
        let digits = |first: usize, step: usize, n: usize| {
            let value = (0..5).fold(0, |value, digit| {
                3 * value + if digit < n { u32::from(code(first + digit * step)) } else { 0 }
            });
            // A fraction of 256, rounded up.
            (value * 256).div_ceil(243) as u8
        };
        for (i, out) in out[..52].iter_mut().enumerate() {
            *out = match i {
                0..32 => digits(i, 32, 5),
                32..48 => digits(160 + i - 32, 16, 5),
                _ => digits(240 + i - 48, 4, 4),
            };
        }
    },
};

/// Ternary digit of element `i`.
fn digit(s: &[u8], i: usize) -> u8 {
    let (byte, digit) = match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    };
    let rest = s[byte].wrapping_mul(3u8.pow(digit as u32));
    ((u16::from(rest) * 3) >> 8) as u8
}
