//! IQ1_M: the low bits of a point for eight weights, their three high bits and a shift, then for 64 a word of
//! four 3-bit scales and four bits of d, an f16.

use std::sync::LazyLock;

use super::encode::{Points, Scales, shifted};
use super::{Grid, odd};
use crate::formats::bits::{nibble, u16_at};
use crate::formats::{BlockCodes, Description, Elements};
use crate::layout::CodeLayout;

const GRID: Grid = Grid {
    points: include_bytes!("iq1.bin"),
    bits: 2,
    layout: CodeLayout::IQ1_M,
    n_scaled: 16,
    max_scale: 7,
    largest: 18.0,
};

pub(in crate::formats) const FORMAT: Description = Description {
    ggml_number: Some(29),
    block_elements: 256,
    block_bytes: 56,
    elements: Elements::Codes(GRID.layout, |s, b| {
        let high = |i: usize| nibble(&s[32..48], 4 * b + i);
        let point = |i: usize| usize::from(s[4 * b + i]) | usize::from(high(i) & 7) << 8;
        let scale = |half: usize| odd((u16_at(s, 48 + b / 2 * 2) >> (b % 2 * 6 + 3 * half) & 7) as u8);
        // Four bits of it in each word of scales.
        let d: u16 = (0..4).fold(0, |d, i| d | u16_at(s, 48 + 2 * i) >> 12 << (4 * i));
        let block = GRID.block(s, point, |i| high(i / 8) >> 3, [scale(0), scale(1)]);
        BlockCodes { superscales: [d.to_le_bytes(), [0; 2]], ..block }
    }),
    encode: |x, out| {
        let scales = Scales::of(&GRID, x);
        out.fill(0);
        let d = scales.d.to_bits();
        for (i, stored) in scales.stored.chunks_exact(4).enumerate() {
            let of_scales = stored.iter().rev().fold(0, |word, scale| word << 3 | u16::from(*scale));
            let word = of_scales | (d >> (4 * i) & 15) << 12;
            out[48 + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
        for (group, point, down) in shifted(&POINTS, scales.groups(&GRID, x), 1) {
            out[group] = point as u8;
            out[32 + group / 2] |= ((point >> 8) as u8 | u8::from(down) << 3) << (group % 2 * 4);
        }
    },
};

static POINTS: LazyLock<[Points; 2]> = LazyLock::new(|| Points::of_both(&GRID));
