//! Q5_K: Q4_K with fifth bits before the nibbles: bit `j` of byte `l` belongs to element `32 j + l`.

use super::q4_k::{block, put_head, put_nibble_pairs};
use super::{codes, fields, joined, nibbles, plain_pairs, put_high_bits};
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(13),
    block_elements: 256,
    block_bytes: 176,
    elements: Elements::Codes(CodeLayout::Q5_K, |s, b| {
        block(s, b, joined(nibbles(&s[48..], b), fields(&s[16..], b, 1), 4))
    }),
    encode: |x, out| {
        let pairs = put_head(plain_pairs(x, 31.0), out);
        let codes = codes(x, pairs, 31.0);
        out[16..48].fill(0);
        put_high_bits(&mut out[16..48], &codes, 4);
        put_nibble_pairs(&mut out[48..], &codes);
    },
};
