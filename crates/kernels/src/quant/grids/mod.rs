//! Blocks whose weights are points of a grid (IQ1 to IQ3), ternary (TQ) or FP4 with a scale for sixteen (NVFP4): splits them into
//! codes and scales without rounding. Layouts and grids are those of ggml-common.h. Does not know where in a panel they go.

use super::stored_block::BlockCodes;
use super::{Format, f16_at, f32_at};
use crate::layout::{BLOCK, CodeLayout, ScaleKind, unsigned_e4m3};

/// A grid: a point is a number of sixteen bits, which holds eight coordinates of two bits or four of three, the first one lowest.
pub(super) struct Grid {
    points: &'static [u8],
    /// Bits of a coordinate.
    pub(super) bits: usize,
}

impl Grid {
    /// The one of a format; `None` where it has none.
    pub(super) const fn of(format: Format) -> Option<Self> {
        let (points, bits): (&[u8], _) = match format {
            Format::IQ2_XXS => (include_bytes!("iq2_xxs.bin"), 2),
            Format::IQ2_XS => (include_bytes!("iq2_xs.bin"), 2),
            Format::IQ2_S => (include_bytes!("iq2_s.bin"), 2),
            Format::IQ3_XXS => (include_bytes!("iq3_xxs.bin"), 3),
            Format::IQ3_S => (include_bytes!("iq3_s.bin"), 3),
            Format::IQ1_S | Format::IQ1_M => (include_bytes!("iq1.bin"), 2),
            _ => return None,
        };
        Some(Self { points, bits })
    }

    /// How many points it has: a power of two.
    pub(super) const fn n_points(&self) -> usize {
        self.points.len() / 2
    }

    /// Coordinates of a point.
    pub(super) const fn n_coordinates(&self) -> usize {
        if self.bits == 2 { 8 } else { 4 }
    }

    /// A coordinate of a point, as an index into the magnitudes of the format's code book.
    pub(super) fn coordinate(&self, point: usize, i: usize) -> u8 {
        let coordinates = u16::from_le_bytes([self.points[2 * point], self.points[2 * point + 1]]);
        (coordinates >> (self.bits * i)) as u8 & ((1 << self.bits) - 1)
    }
}

/// Eight signs of seven bits: the last one makes the number of negative ones even.
fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn u16_at(s: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([s[at], s[at + 1]])
}

fn u32_at(s: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
}

/// `1 + 2 s` of a scale `s`.
fn odd(s: u8) -> [u8; 2] {
    [1 + 2 * s, 0]
}

/// The `i`-th nibble.
fn nibble(s: &[u8], i: usize) -> u8 {
    s[i / 2] >> (4 * (i % 2)) & 15
}

/// Block `b` (of 32 columns) of a stored block `s`.
pub(super) fn block_codes(format: Format, s: &[u8], b: usize) -> BlockCodes {
    match format {
        Format::NVFP4 => nvfp4(s, b, 1.0),
        Format::NVFP4_SCALED => nvfp4(&s[4..], b, f32_at(s, 0)),
        Format::TQ1_0 => ternary(std::array::from_fn(|i| trit(s, 32 * b + i)), [s[52], s[53]]),
        Format::TQ2_0 => {
            let codes = std::array::from_fn(|i| s[b / 4 * BLOCK + i] >> (b % 4 * 2) & 3);
            ternary(codes, [s[64], s[65]])
        }
        Format::IQ1_S | Format::IQ1_M => of_signs_and_shifts(format, s, b),
        _ => of_signed_points(format, s, b),
    }
}

/// A sign for each weight.
fn of_signed_points(format: Format, s: &[u8], b: usize) -> BlockCodes {
    let halves = |at: usize| [odd(nibble(&s[at..], 2 * b)), odd(nibble(&s[at..], 2 * b + 1))];
    let whole = |scale: u8| [odd(scale), [0; 2]];
    // Points of four or eight weights, and the signs of eight.
    let word = |at: usize| u32_at(s, at + 4 * (b % 8));
    let (point, signs, scales): (Box<dyn Fn(usize) -> usize>, [u8; 4], _) = match format {
        Format::IQ2_XXS => {
            let (points, signs) = (8 * b + 2, u32_at(s, 8 * b + 6));
            let of_group = std::array::from_fn(|i| even_signs(signs >> (7 * i)));
            (Box::new(move |i| s[points + i].into()), of_group, whole((signs >> 28) as u8))
        }
        Format::IQ2_XS => {
            let point = move |i: usize| u16_at(s, 2 + 8 * b + 2 * i);
            let signs = std::array::from_fn(|i| even_signs(u32::from(point(i) >> 9)));
            (Box::new(move |i| usize::from(point(i) & 511)), signs, halves(66))
        }
        Format::IQ2_S => {
            let point = move |i| usize::from(s[2 + 4 * b + i]) | usize::from(s[66 + b] >> (2 * i) & 3) << 8;
            (Box::new(point), word(34).to_le_bytes(), halves(74))
        }
        Format::IQ3_XXS => {
            let signs = word(66);
            let of_group = std::array::from_fn(|i| even_signs(signs >> (7 * i)));
            (Box::new(move |i| s[2 + 8 * b + i].into()), of_group, whole((signs >> 28) as u8))
        }
        Format::IQ3_S => {
            let point = move |i| usize::from(s[2 + 8 * b + i]) | usize::from(s[66 + b] >> i & 1) << 8;
            (Box::new(point), word(74).to_le_bytes(), whole(nibble(&s[106..], b)))
        }
        _ => unreachable!("{} has no signs", format.name()),
    };
    let grid = Grid::of(format).expect("a format with a grid");
    let n = grid.n_coordinates();
    let points: [usize; 8] = std::array::from_fn(|i| if i < BLOCK / n { point(i) } else { 0 });
    let code = |i: usize| grid.coordinate(points[i / n], i % n) | (signs[i / 8] >> (i % 8) & 1) << grid.bits;
    BlockCodes { codes: std::array::from_fn(code), scales, superscales: [[s[0], s[1]], [0; 2]] }
}

/// Ternary points that are shifted up or down by an eighth.
fn of_signs_and_shifts(format: Format, s: &[u8], b: usize) -> BlockCodes {
    // Points, whether eight weights are shifted down, scales of the halves, and the scale of all.
    let (points, down, scales, d): ([usize; 4], [bool; 4], _, [u8; 2]) = if format == Format::IQ1_S {
        let high = u16_at(s, 34 + 2 * b);
        let point = |i: usize| usize::from(s[2 + 4 * b + i]) | usize::from(high >> (3 * i) & 7) << 8;
        let scales = [odd((high >> 12 & 7) as u8), [0; 2]];
        (std::array::from_fn(point), [high >> 15 != 0; 4], scales, [s[0], s[1]])
    } else {
        let high = |i: usize| nibble(&s[32..48], 4 * b + i);
        let point = |i: usize| usize::from(s[4 * b + i]) | usize::from(high(i) & 7) << 8;
        let scale = |half: usize| odd((u16_at(s, 48 + b / 2 * 2) >> (b % 2 * 6 + 3 * half) & 7) as u8);
        // Four bits of it in each word of scales.
        let d = (0..4).fold(0, |d, i| d | u16_at(s, 48 + 2 * i) >> 12 << (4 * i));
        let down = std::array::from_fn(|i| high(i) & 8 != 0);
        (std::array::from_fn(point), down, [scale(0), scale(1)], d.to_le_bytes())
    };
    let grid = Grid::of(format).expect("a format with a grid");
    let code = |i: usize| grid.coordinate(points[i / 8], i % 8) | u8::from(down[i / 8]) << 2;
    BlockCodes { codes: std::array::from_fn(code), scales, superscales: [d, [0; 2]] }
}

fn ternary(codes: [u8; BLOCK], d: [u8; 2]) -> BlockCodes {
    BlockCodes { codes, scales: [[1, 0], [0; 2]], superscales: [d, [0; 2]] }
}

/// Element `i` of TQ1_0: a digit in base 3 of a byte that is a fraction of 256. Five digits of 32 bytes, five of 16 and four of 4.
fn trit(s: &[u8], i: usize) -> u8 {
    let (byte, digit) = match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    };
    let rest = s[byte].wrapping_mul(3u8.pow(digit as u32));
    ((u16::from(rest) * 3) >> 8) as u8
}

/// Half blocks of eight bytes, which hold elements eight apart; before them their scales, E4M3 without a sign, which are multiplied with `factor`.
fn nvfp4(s: &[u8], b: usize, factor: f32) -> BlockCodes {
    let code = |i: usize| {
        let byte = s[4 + 16 * b + i / 16 * 8 + i % 8];
        if i % 16 < 8 { byte & 15 } else { byte >> 4 }
    };
    // NaN is 0, and a sign is ignored, as in ggml.
    let scale = |half: usize| match s[2 * b + half] {
        0x7F => [0; 2],
        code => [code & 0x7F, 0],
    };
    // The code book has doubled numbers, and scales are read as a 256th.
    let [low, second, third, high] = (128.0 * factor).to_le_bytes();
    let superscales = [[low, second], [third, high]];
    BlockCodes { codes: std::array::from_fn(code), scales: [scale(0), scale(1)], superscales }
}

/// Writes the elements of a stored row to `out`: code book value times scale, exact in f32.
pub(super) fn dequantize(format: Format, stored: &[u8], out: &mut [f32]) {
    let layout = CodeLayout::of(format).expect("a format of codes");
    let per_stored = format.block_elements() / BLOCK;
    for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let stored = &stored[b / per_stored * format.block_bytes()..][..format.block_bytes()];
        let block = block_codes(format, stored, b % per_stored);
        let scales: [f32; 2] = std::array::from_fn(|half| {
            let scale = block.scales[if layout.scales.halves() { half } else { 0 }];
            match layout.scales {
                ScaleKind::E4m3Halves => {
                    unsigned_e4m3(scale[0]) * f32_at(block.superscales.as_flattened(), 0)
                }
                kind => f16_at(&block.superscales[0], 0) * f32::from(scale[0] as i8) * kind.unit(),
            }
        });
        for (i, (out, code)) in out.iter_mut().zip(block.codes).enumerate() {
            *out = scales[i / 16] * layout.value(code);
        }
    }
}
