//! IQ3_S: f16 d, the low bits of a point for four weights, their ninth bits, a sign for each weight, then a
//! 4-bit scale for 32.

use std::sync::LazyLock;

use super::encode::{Points, scaled_groups, signed};
use super::{Grid, odd, signs};
use crate::formats::bits::{nibble, u32_at};
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq3_s.bin"),
    bits: 3,
    layout: CodeLayout::IQ3_S,
    n_scaled: 32,
    max_scale: 15,
    largest: 15.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(21),
    block_elements: 256,
    block_bytes: 110,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let point = |i: usize| usize::from(s[2 + 8 * b + i]) | usize::from(s[66 + b] >> i & 1) << 8;
        let scales = [odd(nibble(&s[106..], b)), [0; 2]];
        GRID.block(s, point, signs(u32_at(s, 74 + 4 * b).to_le_bytes()), scales)
    }),
    encode: |x, out| {
        let put = |i: usize, scale: u8, out: &mut [u8]| out[106 + i / 2] |= scale << (i % 2 * 4);
        let groups = scaled_groups(&GRID, x, out, put);
        for (group, x) in groups {
            let (points, signs) = signed(&GRID, &POINTS, x, false);
            for (idx, point) in (2 * group..).zip(points) {
                out[2 + idx] = point as u8;
                out[66 + idx / 8] |= ((point >> 8) as u8) << (idx % 8);
            }
            out[74 + group] = signs;
        }
    },
};

static POINTS: LazyLock<Points> = LazyLock::new(|| Points::of(&GRID, false));
