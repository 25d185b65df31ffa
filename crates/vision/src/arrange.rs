//! Rows of a picture in another arrangement: joined, averaged, put together of tiles. Does not know weights
//! and devices.

use crate::config::{Arrangement, Newlines};
use crate::patches::TileShape;

/// Rows of patches, or values computed from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Values of the rows, one row after the other.
    pub values: Vec<f32>,
    /// Elements of a row.
    pub width: usize,
    /// Positions of the rows: tile after tile, row by row in each.
    pub shape: TileShape,
}

impl Arrangement {
    /// Number of rows that are joined to one row.
    pub fn n_joined(&self) -> usize {
        match self {
            Self::Join(n) | Self::JoinChannels(n) => *n,
            Self::Shuffle { side } | Self::ShuffleChannels { side } => side * side,
            Self::Average { .. } | Self::Newlines(_) | Self::Standardize { .. } => 1,
        }
    }

    /// Arranges rows. `size` is height and width of the picture in pixels, if the content has it.
    pub fn apply(&self, rows: Rows, stored: &[f32], size: [usize; 2]) -> Rows {
        match self {
            Self::Join(n) => {
                let side = (*n as f64).sqrt() as usize;
                let shape = shrunk(rows.shape, side.max(1));
                Rows { values: rows.values, width: rows.width * n, shape }
            }
            Self::Average { side, factor } => average(&rows, *side, *factor),
            Self::JoinChannels(n) => {
                let width = rows.width;
                let mut joined = Self::Join(*n).apply(rows, stored, size);
                for row in joined.values.chunks_exact_mut(n * width) {
                    let channels = |channel: usize| (0..*n).map(move |patch| (patch, channel));
                    let values: Vec<f32> = (0..width)
                        .flat_map(channels)
                        .map(|(patch, channel)| row[patch * width + channel])
                        .collect();
                    row.copy_from_slice(&values);
                }
                joined
            }
            Self::Shuffle { side } => join(&rows, *side, |patches, out| {
                patches.iter().for_each(|patch| out.extend_from_slice(patch))
            }),
            Self::ShuffleChannels { side } => join(&rows, *side, |patches, out| {
                for channel in 0..rows.width {
                    out.extend(patches.iter().map(|patch| patch[channel]));
                }
            }),
            Self::Newlines(newlines) => put_together(&rows, newlines, stored, size),
            Self::Standardize { .. } => standardized(rows, stored),
        }
    }
}

fn shrunk(shape: TileShape, side: usize) -> TileShape {
    TileShape { n_rows: shape.n_rows / side, n_cols: shape.n_cols / side, ..shape }
}

/// Joins blocks of `side × side` patches: `join` is called with each block's patches row by row.
fn join(rows: &Rows, side: usize, join: impl Fn(&[&[f32]], &mut Vec<f32>)) -> Rows {
    let shape = shrunk(rows.shape, side);
    let mut values = Vec::with_capacity(rows.values.len());
    for tile in 0..shape.n_tiles {
        for (row, col) in places(shape) {
            let patches: Vec<&[f32]> = (0..side * side)
                .map(|i| {
                    let (y, x) = (row * side + i / side, col * side + i % side);
                    let idx = tile * rows.shape.of_tile() + y * rows.shape.n_cols + x;
                    &rows.values[idx * rows.width..][..rows.width]
                })
                .collect();
            join(&patches, &mut values);
        }
    }
    Rows { values, width: rows.width * side * side, shape }
}

/// Averages blocks of patches.
fn average(rows: &Rows, side: usize, factor: f32) -> Rows {
    let share = factor / (side * side) as f32;
    let joined = join(rows, side, |patches, out| {
        for channel in 0..rows.width {
            out.push(patches.iter().map(|patch| patch[channel]).sum::<f32>() * share);
        }
    });
    Rows { width: rows.width, ..joined }
}

/// Subtracts stored means, which are first, and multiplies with the stored factors after them.
fn standardized(mut rows: Rows, stored: &[f32]) -> Rows {
    let (means, factors) = stored.split_at(rows.width);
    for row in rows.values.chunks_exact_mut(rows.width) {
        for ((value, mean), factor) in row.iter_mut().zip(means).zip(factors) {
            *value = (*value - mean) * factor;
        }
    }
    rows
}

fn places(shape: TileShape) -> impl Iterator<Item = (usize, usize)> {
    (0..shape.n_rows).flat_map(move |row| (0..shape.n_cols).map(move |col| (row, col)))
}

/// The whole picture, then its tiles as one grid without padding, each row of which ends with a stored row.
fn put_together(rows: &Rows, newlines: &Newlines, newline: &[f32], size: [usize; 2]) -> Rows {
    let (width, of_tile) = (rows.width, rows.shape.of_tile() * rows.width);
    let mut values = rows.values[..of_tile.min(rows.values.len())].to_vec();
    if rows.shape.n_tiles < 2 {
        values.extend_from_slice(newline);
    } else if let Some(grid) = Grid::of_tiles(rows, newlines.best_size(size), newlines.tile) {
        let mut grid = grid.without_padding(size);
        if let Some(max_tiles) = newlines.max_tiles {
            let most = max_tiles * rows.shape.n_rows * rows.shape.n_rows;
            let ratio = ((grid.n_rows * grid.n_cols) as f64 / most as f64).sqrt();
            if ratio > 1.1 {
                grid =
                    grid.shrunk((grid.n_rows as f64 / ratio) as usize, (grid.n_cols as f64 / ratio) as usize);
            }
        }
        for row in grid.values.chunks_exact(grid.n_cols * width) {
            values.extend_from_slice(row);
            values.extend_from_slice(newline);
        }
    }
    let n = values.len() / width;
    Rows { values, width, shape: TileShape { n_tiles: 1, n_rows: 1, n_cols: n } }
}

impl Newlines {
    /// The permitted size that holds the most of a picture of `size`; of several, the smallest.
    pub fn best_size(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        let mut best = ([self.tile, self.tile], 0, usize::MAX);
        for &[rows, columns] in &self.sizes {
            let scale = (columns as f64 / width as f64).min(rows as f64 / height as f64);
            let scaled = (width as f64 * scale) as usize * (height as f64 * scale) as usize;
            let effective = scaled.min(width * height);
            let wasted = rows * columns - effective.min(rows * columns);
            if effective > best.1 || (effective == best.1 && wasted < best.2) {
                best = ([rows, columns], effective, wasted);
            }
        }
        best.0
    }
}

/// Rows in a grid.
struct Grid {
    values: Vec<f32>,
    n_rows: usize,
    n_cols: usize,
    width: usize,
}

impl Grid {
    /// The tiles after the first, side by side; `None` if they do not form a picture of this size.
    fn of_tiles(rows: &Rows, [height, width]: [usize; 2], tile: usize) -> Option<Self> {
        let (down, across) = (height / tile, width / tile);
        let TileShape { n_tiles, n_rows, n_cols } = rows.shape;
        if down * across + 1 != n_tiles {
            return None;
        }
        let mut values = Vec::with_capacity(rows.values.len());
        for row in 0..down * n_rows {
            for tile_col in 0..across {
                let tile_idx = 1 + row / n_rows * across + tile_col;
                let first = (tile_idx * n_rows + row % n_rows) * n_cols * rows.width;
                values.extend_from_slice(&rows.values[first..][..n_cols * rows.width]);
            }
        }
        Some(Self { values, n_rows: down * n_rows, n_cols: across * n_cols, width: rows.width })
    }

    /// The part that is not padding of a picture of this size.
    fn without_padding(self, [height, width]: [usize; 2]) -> Self {
        let (n_rows, n_cols) = (self.n_rows, self.n_cols);
        let kept = |side: usize, scale: f64| {
            let exact = side as f64 * scale;
            ((exact * 1e7).round() / 1e7) as usize
        };
        if width as f64 / height as f64 > n_cols as f64 / n_rows as f64 {
            let kept = kept(height, n_cols as f64 / width as f64).min(n_rows);
            let padding = (n_rows - kept) / 2;
            return self.part(padding..n_rows - padding, 0..n_cols);
        }
        let kept = kept(width, n_rows as f64 / height as f64).min(n_cols);
        let padding = (n_cols - kept) / 2;
        self.part(0..n_rows, padding..n_cols - padding)
    }

    fn part(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) -> Self {
        let (n_rows, n_cols) = (rows.len(), cols.len());
        let line =
            |row: usize| &self.values[(row * self.n_cols + cols.start) * self.width..][..n_cols * self.width];
        let values = rows.flat_map(line).copied().collect();
        Self { values, n_rows, n_cols, width: self.width }
    }

    /// The grid with fewer rows and columns, by bilinear interpolation between the centres of cells.
    fn shrunk(&self, n_rows: usize, n_cols: usize) -> Self {
        let (n_rows, n_cols) = (n_rows.max(1), n_cols.max(1));
        let between = |n: usize, from: usize| -> Vec<(usize, usize, f32)> {
            let at = |i: usize| ((i as f64 + 0.5) * from as f64 / n as f64 - 0.5).max(0.0);
            let entry = |at: f64| {
                let first = (at as usize).min(from - 1);
                (first, (first + 1).min(from - 1), (at - first as f64) as f32)
            };
            (0..n).map(|i| entry(at(i))).collect()
        };
        let (down, across) = (between(n_rows, self.n_rows), between(n_cols, self.n_cols));
        let mut values = Vec::with_capacity(n_rows * n_cols * self.width);
        for &(top, bottom, of_bottom) in &down {
            for &(left, right, of_right) in &across {
                let at = |row: usize, col: usize| &self.values[(row * self.n_cols + col) * self.width..];
                let corners = [at(top, left), at(top, right), at(bottom, left), at(bottom, right)];
                values.extend((0..self.width).map(|i| {
                    let [a, b, c, d] = corners.map(|corner| corner[i]);
                    let (upper, lower) = (a + (b - a) * of_right, c + (d - c) * of_right);
                    upper + (lower - upper) * of_bottom
                }));
            }
        }
        Self { values, n_rows, n_cols, width: self.width }
    }
}
