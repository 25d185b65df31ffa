//! IQ2_S: f16 d, the low bits of a point for eight weights, their eight signs, two high bits, then a 4-bit
//! scale for sixteen.

use std::sync::LazyLock;

use super::encode::{Points, scaled_groups, signed};
use super::{Grid, odd, signs};
use crate::formats::bits::{nibble, u32_at};
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq2_s.bin"),
    bits: 2,
    layout: CodeLayout::IQ2_XS,
    n_scaled: 16,
    max_scale: 15,
    largest: 43.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(22),
    block_elements: 256,
    block_bytes: 82,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let point = |i: usize| usize::from(s[2 + 4 * b + i]) | usize::from(s[66 + b] >> (2 * i) & 3) << 8;
        let scales = [2 * b, 2 * b + 1].map(|i| odd(nibble(&s[74..], i)));
        GRID.block(s, point, signs(u32_at(s, 34 + 4 * b).to_le_bytes()), scales)
    }),
    encode: |x, out| {
        let put = |i: usize, scale: u8, out: &mut [u8]| out[74 + i / 2] |= scale << (i % 2 * 4);
        let groups = scaled_groups(&GRID, x, out, put);
        for (group, x) in groups {
            let ([point, _], signs) = signed(&GRID, &POINTS, x, false);
            out[2 + group] = point as u8;
            out[34 + group] = signs;
            out[66 + group / 4] |= ((point >> 8) as u8) << (group % 4 * 2);
        }
    },
};

static POINTS: LazyLock<Points> = LazyLock::new(|| Points::of(&GRID, false));
