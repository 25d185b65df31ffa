//! TQ2_0: codes of two bits, each 32 bytes with 128 elements in four layers; f16 d.

use super::{block, codes};
use crate::formats::{Description, Elements};
use crate::layout::{BLOCK, CodeLayout};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(35),
    block_elements: 256,
    block_bytes: 66,
    elements: Elements::Codes(CodeLayout::TQ2_0, |s, b| {
        block(std::array::from_fn(|i| s[b / 4 * BLOCK + i] >> (b % 4 * 2) & 3), s)
    }),
    encode: |x, out| {
        let code = codes(x, out);
        (0..256).for_each(|i| out[i / 128 * 32 + i % 32] |= code(i) << (i % 128 / 32 * 2));
    },
};
