//! IQ3_XXS: f16 d, a point of eight bits for four weights, then for 32 a word of four times seven signs and a
//! 4-bit scale.

use std::sync::LazyLock;

use super::encode::{Points, put_seven_signs, scaled_groups, signed};
use super::{Grid, even_signs, odd};
use crate::formats::bits::u32_at;
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq3_xxs.bin"),
    bits: 3,
    layout: CodeLayout::IQ3_XXS,
    n_scaled: 32,
    max_scale: 15,
    largest: 124.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(18),
    block_elements: 256,
    block_bytes: 98,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let word = u32_at(s, 66 + 4 * b);
        let signs = even_signs([0, 7, 14, 21].map(|shift| word >> shift));
        GRID.block(s, |i| s[2 + 8 * b + i].into(), signs, [odd((word >> 28) as u8), [0; 2]])
    }),
    encode: |x, out| {
        let groups = scaled_groups(&GRID, x, out, |i, scale, out| out[69 + 4 * i] |= scale << 4);
        for (group, x) in groups {
            let (points, signs) = signed(&GRID, &POINTS, x, true);
            out[2 + 2 * group..][..2].copy_from_slice(&points.map(|point| point as u8));
            put_seven_signs(out, 66 + group / 4 * 4, group, signs);
        }
    },
};

static POINTS: LazyLock<Points> = LazyLock::new(|| Points::of(&GRID, false));
