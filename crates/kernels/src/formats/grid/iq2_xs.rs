//! IQ2_XS: f16 d, for eight weights a point of nine bits and seven signs, then a 4-bit scale for sixteen.

use std::sync::LazyLock;

use super::encode::{Points, scaled_groups, signed};
use super::{Grid, even_signs, odd};
use crate::formats::bits::{nibble, u16_at};
use crate::formats::{Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq2_xs.bin"),
    bits: 2,
    layout: CodeLayout::IQ2_XS,
    n_scaled: 16,
    max_scale: 15,
    largest: 43.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(17),
    block_elements: 256,
    block_bytes: 74,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let word = |i: usize| u16_at(s, 2 + 8 * b + 2 * i);
        let signs = even_signs([0, 1, 2, 3].map(|i| u32::from(word(i) >> 9)));
        let scales = [2 * b, 2 * b + 1].map(|i| odd(nibble(&s[66..], i)));
        GRID.block(s, |i| usize::from(word(i) & 511), signs, scales)
    }),
    encode: |x, out| {
        let put = |i: usize, scale: u8, out: &mut [u8]| out[66 + i / 2] |= scale << (i % 2 * 4);
        let groups = scaled_groups(&GRID, x, out, put);
        for (group, x) in groups {
            let ([point, _], signs) = signed(&GRID, &POINTS, x, true);
            let word = point as u16 | u16::from(signs & 127) << 9;
            out[2 + 2 * group..][..2].copy_from_slice(&word.to_le_bytes());
        }
    },
};

static POINTS: LazyLock<Points> = LazyLock::new(|| Points::of(&GRID, false));
