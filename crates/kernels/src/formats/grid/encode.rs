//! Encodes blocks plainly: one scale a (half) block from its largest magnitude, and the nearest point of all.
//! For test data.

use super::Grid;
use crate::formats::range::{extreme, inverse};

/// The scales of a superblock.
pub(super) struct Scales {
    /// The scale of the superblock, an f16.
    pub(super) d: half::f16,
    /// Stored numbers `s` of scales `1 + 2 s`.
    pub(super) stored: Vec<u8>,
}

impl Scales {
    pub(super) fn of(grid: &Grid, x: &[f32]) -> Self {
        let unit = grid.layout.scales.unit();
        let wanted: Vec<f32> =
            x.chunks(grid.n_scaled).map(|x| extreme(x).abs() / grid.largest / unit).collect();
        let d = half::f16::from_f32(extreme(&wanted) / f32::from(1 + 2 * grid.max_scale));
        let max = f32::from(grid.max_scale);
        let stored =
            |wanted: &f32| ((wanted * inverse(d.to_f32()) - 1.0) / 2.0).round().clamp(0.0, max) as u8;
        Self { d, stored: wanted.iter().map(stored).collect() }
    }

    /// Groups of eight weights over their scale.
    pub(super) fn groups(&self, grid: &Grid, x: &[f32]) -> impl Iterator<Item = (usize, [f32; 8])> {
        let unit = grid.layout.scales.unit();
        x.as_chunks::<8>().0.iter().enumerate().map(move |(group, x)| {
            let step = self.d.to_f32() * unit * f32::from(1 + 2 * self.stored[8 * group / grid.n_scaled]);
            (group, x.map(|x| x * inverse(step)))
        })
    }
}

/// Clears a stored block, writes d and, by `put`, each scale, and returns the groups of eight weights divided
/// by their scale.
pub(super) fn scaled_groups(
    grid: &Grid,
    x: &[f32],
    out: &mut [u8],
    put: impl Fn(usize, u8, &mut [u8]),
) -> Vec<(usize, [f32; 8])> {
    let scales = Scales::of(grid, x);
    out.fill(0);
    out[..2].copy_from_slice(&scales.d.to_le_bytes());
    scales.stored.iter().enumerate().for_each(|(i, scale)| put(i, *scale, out));
    scales.groups(grid, x).collect()
}

/// Number of points that are compared at a time; each grid has a multiple of it.
const LANES: usize = 16;

/// The points of a grid in units of the code book, [`LANES`] together, coordinate by coordinate; a point of
/// four coordinates leaves the other four zero.
pub(super) struct Points(Vec<[[f32; LANES]; 8]>);

impl Points {
    /// Points of the lower or upper half of the code book.
    pub(super) fn of(grid: &Grid, upper: bool) -> Self {
        let values = grid.layout.codebook.expect("grids have code books").values();
        let value = |code: u8| f32::from(values[usize::from(code | u8::from(upper) << grid.bits)]);
        let points: Vec<usize> = (0..grid.n_points()).collect();
        let (lanes, rest) = points.as_chunks::<LANES>();
        assert!(rest.is_empty(), "a grid has a multiple of {LANES} points");
        let coordinate = |lanes: &[usize; LANES], i| match i < grid.n_coordinates() {
            true => lanes.map(|point| value(grid.coordinate(point, i))),
            false => [0.0; LANES],
        };
        Self(lanes.iter().map(|lanes| std::array::from_fn(|i| coordinate(lanes, i))).collect())
    }

    /// Points of the lower and of the upper half of the code book.
    pub(super) fn of_both(grid: &Grid) -> [Self; 2] {
        [false, true].map(|upper| Self::of(grid, upper))
    }

    /// The point that is nearest to `x`, the first of equals, and the squared error.
    pub(super) fn nearest(&self, x: &[f32]) -> (usize, f32) {
        let mut padded = [0.0; 8];
        padded[..x.len()].copy_from_slice(x);
        let mut best = (0, f32::INFINITY);
        for (chunk, points) in self.0.iter().enumerate() {
            let mut lost = [0.0_f32; LANES];
            for i in 0..8 {
                for lane in 0..LANES {
                    let distance = padded[i] - points[i][lane];
                    lost[lane] += distance * distance;
                }
            }
            // Few chunks have a better point: one comparison passes over all the others.
            let n_better: u32 = lost.iter().map(|lost| u32::from(*lost < best.1)).sum();
            if n_better > 0 {
                for (lane, &lost) in lost.iter().enumerate() {
                    if lost < best.1 {
                        best = (chunk * LANES + lane, lost);
                    }
                }
            }
        }
        best
    }
}

/// The points of eight magnitudes (one or two), and their signs, of which an even number is negative with
/// `seven_signs`.
pub(super) fn signed(grid: &Grid, points: &Points, mut x: [f32; 8], seven_signs: bool) -> ([usize; 2], u8) {
    let n_negative = x.iter().filter(|x| x.is_sign_negative()).count();
    if seven_signs && n_negative % 2 == 1 {
        // The one that matters least gets the other sign.
        let least = (0..8).min_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).expect("eight");
        x[least] = -x[least];
    }
    let signs = x.iter().rev().fold(0u8, |signs, x| signs << 1 | u8::from(x.is_sign_negative()));
    x.iter_mut().for_each(|x| *x = x.abs());
    let mut found = [0; 2];
    for (found, x) in found.iter_mut().zip(x.chunks_exact(grid.n_coordinates())) {
        *found = points.nearest(x).0;
    }
    (found, signs)
}

/// Writes seven signs of a group in the word at `at`, which four groups share.
pub(super) fn put_seven_signs(out: &mut [u8], at: usize, group: usize, signs: u8) {
    let bits = (u32::from(signs & 127) << (group % 4 * 7)).to_le_bytes();
    std::iter::zip(&mut out[at..], bits).for_each(|(out, bits)| *out |= bits);
}

/// The nearest point of each group, and whether it is shifted down; groups but the first of each `n_together`
/// have the shift of the group before.
pub(super) fn shifted(
    points: &[Points; 2],
    groups: impl Iterator<Item = (usize, [f32; 8])>,
    n_together: usize,
) -> impl Iterator<Item = (usize, usize, bool)> {
    let mut before = false;
    groups.map(move |(group, x)| {
        let shifts = if group % n_together == 0 { &[false, true][..] } else { &[before][..] };
        let nearest = shifts.iter().map(|down| (*down, points[usize::from(*down)].nearest(&x)));
        let (down, (point, _)) = nearest.min_by(|a, b| a.1.1.total_cmp(&b.1.1)).expect("a shift");
        before = down;
        (group, point, down)
    })
}
