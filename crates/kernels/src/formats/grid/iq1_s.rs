//! IQ1_S: f16 d, the low bits of a point for eight weights, then for 32 a word of their high bits, a 3-bit
//! scale and a shift.

use std::sync::LazyLock;

use super::encode::{Points, scaled_groups, shifted};
use super::{Grid, odd};
use crate::formats::bits::u16_at;
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq1.bin"),
    bits: 2,
    layout: CodeLayout::IQ1_S,
    n_scaled: 32,
    max_scale: 7,
    // Half of the largest magnitude is a better step than all of it.
    largest: 18.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(19),
    block_elements: 256,
    block_bytes: 50,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let word = u16_at(s, 34 + 2 * b);
        let point = |i: usize| usize::from(s[2 + 4 * b + i]) | usize::from(word >> (3 * i) & 7) << 8;
        GRID.block(s, point, |_| (word >> 15) as u8, [odd((word >> 12 & 7) as u8), [0; 2]])
    }),
    encode: |x, out| {
        let groups = scaled_groups(&GRID, x, out, |i, scale, out| out[35 + 2 * i] |= scale << 4);
        for (group, point, down) in shifted(&POINTS, groups.into_iter(), 4) {
            out[2 + group] = point as u8;
            let high = (point >> 8) as u16;
            let bits = (high << (3 * (group % 4)) | u16::from(down) << 15).to_le_bytes();
            std::iter::zip(&mut out[34 + group / 4 * 2..], bits).for_each(|(out, bits)| *out |= bits);
        }
    },
};

static POINTS: LazyLock<[Points; 2]> = LazyLock::new(|| Points::of_both(&GRID));
