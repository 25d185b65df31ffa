//! Q2_K: `x = d s q - dmin m` per 16; 16 × (4-bit s, 4-bit m), 2-bit q, f16 d, f16 dmin.

use super::{codes, integer_scales, plain_pairs, put_two_bits, two_bits};
use crate::formats::bits::{f16_at, pair};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(10),
    block_elements: 256,
    block_bytes: 84,
    elements: Elements::Codes(CodeLayout::Q2_K, |s, b| BlockCodes {
        codes: two_bits(&s[16..], b),
        scales: [[s[2 * b], 0], [s[2 * b + 1], 0]],
        superscales: [pair(s, 80), pair(s, 82)],
    }),
    encode: |x, out| {
        out.fill(0);
        let pairs = integer_scales(plain_pairs::<16>(x, 3.0), 15.0, out, 80);
        for (out, (scale, min)) in out.iter_mut().zip(pairs) {
            *out = scale | min << 4;
        }
        let (d, dmin) = (f16_at(out, 80), f16_at(out, 82));
        let pairs = pairs.map(|(scale, min)| (d * f32::from(scale), dmin * f32::from(min)));
        put_two_bits(&mut out[16..80], &codes(x, pairs, 3.0));
    },
};
