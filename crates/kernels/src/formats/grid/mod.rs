//! Formats whose weights are points of a grid, with signs (IQ2, IQ3) or a shift by an eighth (IQ1). Layouts
//! and grids are those of ggml-common.h.

mod encode;
pub(super) mod iq1_m;
pub(super) mod iq1_s;
pub(super) mod iq2_s;
pub(super) mod iq2_xs;
pub(super) mod iq2_xxs;
pub(super) mod iq3_s;
pub(super) mod iq3_xxs;

use super::BlockCodes;
use super::bits::pair;
use crate::layout::{BLOCK, CodeLayout};

/// A grid, and the conversion of its points to weights. A point is a number of sixteen bits, which holds
/// eight coordinates of two bits or four of three, the first one lowest.
struct Grid {
    points: &'static [u8],
    /// Number of bits of a coordinate.
    bits: usize,
    /// The layout of a coordinate with its sign or shift.
    layout: CodeLayout,
    /// Number of weights that share a scale.
    n_scaled: usize,
    /// The largest stored number `s` of a scale `1 + 2 s`.
    max_scale: u8,
    /// The value that the encoder maps the largest magnitude to.
    largest: f32,
}

impl Grid {
    /// Number of points: a power of two.
    const fn n_points(&self) -> usize {
        self.points.len() / 2
    }

    /// Number of coordinates of a point.
    const fn n_coordinates(&self) -> usize {
        if self.bits == 2 { 8 } else { 4 }
    }

    /// A coordinate of a point, as an index into the magnitudes of the code book.
    fn coordinate(&self, point: usize, i: usize) -> u8 {
        let coordinates = u16::from_le_bytes([self.points[2 * point], self.points[2 * point + 1]]);
        (coordinates >> (self.bits * i)) as u8 & ((1 << self.bits) - 1)
    }

    /// A block of points, bits above their coordinates, and scales. The stored block begins with d, an f16.
    fn block(
        &self,
        s: &[u8],
        point: impl Fn(usize) -> usize,
        above: impl Fn(usize) -> u8,
        scales: [[u8; 2]; 2],
    ) -> BlockCodes {
        let n = self.n_coordinates();
        let points: [usize; 8] = std::array::from_fn(|i| if i < BLOCK / n { point(i) } else { 0 });
        let code = |i: usize| self.coordinate(points[i / n], i % n) | above(i) << self.bits;
        BlockCodes { codes: std::array::from_fn(code), scales, superscales: [pair(s, 0), [0; 2]] }
    }
}

/// The sign of each weight, by eight signs of each group of eight.
fn signs(signs: [u8; 4]) -> impl Fn(usize) -> u8 {
    move |i| signs[i / 8] >> (i % 8) & 1
}

/// Eight signs of each group of the lowest seven bits: the last one makes the number of negative ones even.
fn even_signs(seven: [u32; 4]) -> impl Fn(usize) -> u8 {
    signs(seven.map(|seven| {
        let seven = seven as u8 & 127;
        seven | (seven.count_ones() as u8 & 1) << 7
    }))
}

/// `1 + 2 s` of a scale `s`.
fn odd(s: u8) -> [u8; 2] {
    [1 + 2 * s, 0]
}
