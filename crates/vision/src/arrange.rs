//! Rows of a picture in another arrangement: joined, averaged, put together of tiles. Does not know weights
//! and devices.

use crate::config::Arrangement;
use crate::patches::TileShape;

/// Rows of patches or of what became of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// One row after the other.
    pub values: Vec<f32>,
    /// Elements of a row.
    pub width: usize,
    /// Their places: tile after tile, row by row in each.
    pub shape: TileShape,
}

impl Arrangement {
    /// Number of rows that become one, one beside the other.
    pub fn n_joined(&self) -> usize {
        match self {
            Self::Join(n) => *n,
            Self::JoinChannels { side } | Self::Shuffle { side, .. } | Self::Unfold { side } => side * side,
            Self::Average { .. } | Self::Newlines { .. } => 1,
        }
    }

    /// Arranges rows. `size` is height and width of the picture in pixels, where the content says it.
    pub fn apply(&self, rows: Rows, stored: &[f32], size: [usize; 2]) -> Rows {
        match self {
            Self::Join(n) => {
                let side = (*n as f64).sqrt() as usize;
                let shape = shrunk(rows.shape, side.max(1));
                Rows { values: rows.values, width: rows.width * n, shape }
            }
            Self::Average { n } => average(&rows, *n),
            Self::JoinChannels { side } => join(&rows, *side, |patches, out| {
                for channel in 0..rows.width {
                    out.extend(patches.iter().map(|patch| patch[channel]));
                }
            }),
            Self::Shuffle { side, by_columns } => join(&rows, *side, |patches, out| {
                for i in 0..side * side {
                    let idx = if *by_columns { i % side * side + i / side } else { i };
                    out.extend_from_slice(patches[idx]);
                }
            }),
            Self::Unfold { .. } => rows,
            Self::Newlines { .. } => {
                let _ = (stored, size);
                rows
            }
        }
    }
}

fn shrunk(shape: TileShape, side: usize) -> TileShape {
    TileShape { n_rows: shape.n_rows / side, n_cols: shape.n_cols / side, ..shape }
}

/// Joins blocks of `side × side` patches: `join` gets those of a block row by row.
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

/// Averages blocks of patches, so that `n × n` remain of a tile.
fn average(rows: &Rows, n: usize) -> Rows {
    let side = rows.shape.n_rows / n.max(1);
    let share = 1.0 / (side * side) as f32;
    let joined = join(rows, side, |patches, out| {
        for channel in 0..rows.width {
            out.push(patches.iter().map(|patch| patch[channel]).sum::<f32>() * share);
        }
    });
    Rows { width: rows.width, ..joined }
}

fn places(shape: TileShape) -> impl Iterator<Item = (usize, usize)> {
    (0..shape.n_rows).flat_map(move |row| (0..shape.n_cols).map(move |col| (row, col)))
}
