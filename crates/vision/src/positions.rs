//! Learned embeddings of positions, interpolated to a picture's grid. Does not know devices.

use crate::config::{ClassToken, Positions};
use crate::patches::{Patches, TileShape};

/// Adds the embeddings of positions to the rows of patches, without those of class tokens.
pub fn add_positions(
    positions: Positions,
    class_token: Option<ClassToken>,
    table: &[f32],
    patches: &Patches,
    rows: &mut [f32],
    width: usize,
) {
    let TileShape { n_rows, n_cols, .. } = patches.shape;
    match positions {
        Positions::None => {}
        Positions::Table { .. } => {
            let first = usize::from(class_token == Some(ClassToken::First));
            for (row, place) in rows.chunks_exact_mut(width).zip(&patches.places) {
                let idx = first + place[0] as usize * n_cols + place[1] as usize;
                add(row, &table[idx * width..][..width], 1.0);
            }
        }
        Positions::Axes { n } => {
            for (row, place) in rows.chunks_exact_mut(width).zip(&patches.places) {
                let [y, x] = place.map(|side| (side as usize).min(n - 1));
                add(row, &table[x * width..][..width], 1.0);
                add(row, &table[(n + y) * width..][..width], 1.0);
            }
        }
        Positions::Bilinear { side } => {
            let [of_rows, of_cols] = [n_rows, n_cols].map(|n| aligned_corners(n, side));
            for (row, place) in rows.chunks_exact_mut(width).zip(&patches.places) {
                let (y, x) = (&of_rows[place[0] as usize], &of_cols[place[1] as usize]);
                for (y_idx, y_weight) in y {
                    for (x_idx, x_weight) in x {
                        let entry = &table[(y_idx * side + x_idx) * width..][..width];
                        add(row, entry, y_weight * x_weight);
                    }
                }
            }
        }
        Positions::Bicubic { side } => {
            let [of_rows, of_cols] = [n_rows, n_cols].map(|n| cubic_centres(n, side));
            for (row, place) in rows.chunks_exact_mut(width).zip(&patches.places) {
                let (y, x) = (&of_rows[place[0] as usize], &of_cols[place[1] as usize]);
                for (y_idx, y_weight) in y {
                    for (x_idx, x_weight) in x {
                        let entry = &table[(y_idx * side + x_idx) * width..][..width];
                        add(row, entry, y_weight * x_weight);
                    }
                }
            }
        }
    }
}

fn add(row: &mut [f32], entry: &[f32], weight: f32) {
    row.iter_mut().zip(entry).for_each(|(x, y)| *x += weight * y);
}

/// For each of `n` places, the two entries of a line of `side` around it, and their weights. The ends of both
/// lines coincide.
fn aligned_corners(n: usize, side: usize) -> Vec<[(usize, f32); 2]> {
    let step = if n > 1 { (side as f64 - 1.0) / (n as f64 - 1.0) } else { 0.0 };
    let entries = |i: usize| {
        let at = (i as f64 * step) as f32;
        let first = at as usize;
        let share = at - first as f32;
        [(first, 1.0 - share), ((first + 1).min(side - 1), share)]
    };
    (0..n).map(entries).collect()
}

/// For each of `n` places the four entries of a line of `side` around it, and their weights (cubic
/// convolution, a = −0.75). Places and entries are the centres of cells of one line; the ends repeat.
fn cubic_centres(n: usize, side: usize) -> Vec<[(usize, f32); 4]> {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let entries = |i: usize| {
        let at = (i as f64 + 0.5) / n as f64 * side as f64 - 0.5;
        let (first, share) = (at.floor(), at - at.floor());
        let weights = [far(share + 1.0), near(share), near(1.0 - share), far(2.0 - share)];
        let entry = |offset: usize| {
            let idx = (first + offset as f64 - 1.0).clamp(0.0, side as f64 - 1.0);
            (idx as usize, weights[offset] as f32)
        };
        [entry(0), entry(1), entry(2), entry(3)]
    };
    (0..n).map(entries).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_are_those_of_the_table() {
        let places = aligned_corners(3, 5);
        assert_eq!(places, [[(0, 1.0), (1, 0.0)], [(2, 1.0), (3, 0.0)], [(4, 1.0), (4, 0.0)]]);
        assert_eq!(aligned_corners(1, 5), [[(0, 1.0), (1, 0.0)]]);
        let between = aligned_corners(4, 3)[1];
        assert!((between[0].1 - 1.0 / 3.0).abs() < 1e-6 && between[1].0 == 1);
    }

    #[test]
    fn cubic_weights_sum_to_one_and_equal_grids_are_exact() {
        for weights in cubic_centres(7, 4) {
            let sum: f32 = weights.iter().map(|(_, weight)| weight).sum();
            assert!((sum - 1.0).abs() < 1e-6);
        }
        for (i, weights) in cubic_centres(4, 4).iter().enumerate() {
            assert_eq!(weights[1], (i, 1.0));
        }
    }
}
