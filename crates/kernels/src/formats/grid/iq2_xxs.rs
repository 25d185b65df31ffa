//! IQ2_XXS: f16 d, then for 32 weights four points of eight bits, and a word of four times seven signs and a
//! 4-bit scale.

use std::sync::LazyLock;

use super::encode::{Points, put_seven_signs, scaled_groups, signed};
use super::{Grid, even_signs, odd};
use crate::formats::bits::u32_at;
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq2_xxs.bin"),
    bits: 2,
    layout: CodeLayout::IQ2_XXS,
    n_scaled: 32,
    max_scale: 15,
    largest: 43.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(16),
    block_elements: 256,
    block_bytes: 66,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let word = u32_at(s, 8 * b + 6);
        let signs = even_signs([0, 7, 14, 21].map(|shift| word >> shift));
        GRID.block(s, |i| s[2 + 8 * b + i].into(), signs, [odd((word >> 28) as u8), [0; 2]])
    }),
    encode: |x, out| {
        let groups = scaled_groups(&GRID, x, out, |i, scale, out| out[9 + 8 * i] |= scale << 4);
        for (group, x) in groups {
            let ([point, _], signs) = signed(&GRID, &POINTS, x, true);
            out[2 + group / 4 * 8 + group % 4] = point as u8;
            put_seven_signs(out, 6 + group / 4 * 8, group, signs);
        }
    },
};

static POINTS: LazyLock<Points> = LazyLock::new(|| Points::of(&GRID, false));
