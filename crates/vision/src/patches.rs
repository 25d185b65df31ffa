//! Pixel values as rows of patches, with the place of each. Does not know weights.

use throng_core::prompt_media::MediaContent;

use crate::config::{PatchInput, Positions, VisionConfig};

/// Maximum number of patches of one content: bounds the memory of an encoder.
pub const MAX_PATCHES: usize = 16_384;

/// The patches of a picture, tile after tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// Values, one row for each patch.
    pub rows: Vec<f32>,
    /// Row and column of each patch in its tile.
    pub places: Vec<[u32; 2]>,
    /// Arrangement of the patches.
    pub shape: TileShape,
}

/// Shape of tiles of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileShape {
    /// Number of tiles.
    pub n_tiles: usize,
    /// Number of rows of patches of a tile.
    pub n_rows: usize,
    /// Number of columns of patches of a tile.
    pub n_cols: usize,
}

impl TileShape {
    /// Number of patches of a tile.
    pub fn of_tile(&self) -> usize {
        self.n_rows * self.n_cols
    }
}

/// Reads the pixel values of a content.
///
/// # Errors
/// The reason why the encoder does not read them.
pub fn patches_of(config: &VisionConfig, content: &MediaContent) -> Result<Patches, String> {
    let layout = content.layout();
    let shape: Vec<usize> = layout.shape.iter().map(|&side| side as usize).collect();
    let [time, rows, columns] = layout.grid.map(|side| side as usize);
    match config.patches {
        PatchInput::Rows { merge } => {
            let tile = TileShape { n_tiles: 1, n_rows: rows, n_cols: columns };
            let n = rows.checked_mul(columns).filter(|&n| n > 0 && n <= MAX_PATCHES);
            let n =
                n.ok_or_else(|| format!("a grid of {rows} × {columns} patches, of at most {MAX_PATCHES}"))?;
            if time != 1 || shape != [n, config.patch_values] {
                return Err(format!("pixel values of shape {shape:?} in a grid of {:?}", layout.grid));
            }
            if !rows.is_multiple_of(merge) || !columns.is_multiple_of(merge) {
                return Err(format!("a grid of {rows} × {columns} patches in blocks of {merge} × {merge}"));
            }
            let mut values = content.pixels().to_vec();
            if let Some((less, factor)) = config.pixel_scale {
                values.iter_mut().for_each(|value| *value = factor * (*value - less));
            }
            Ok(Patches { rows: values, places: places_in_blocks(rows, columns, merge), shape: tile })
        }
        PatchInput::Tiles => {
            let patches = tiles(config, content, &shape)?;
            let n_class = usize::from(config.class_token.is_some());
            let n_places = patches.shape.of_tile() + n_class;
            match config.positions {
                Positions::Table { n_rows } if n_rows != n_places => {
                    Err(format!("tiles of {n_places} places, of which there are {n_rows}"))
                }
                _ => Ok(patches),
            }
        }
    }
}

/// Row and column of each patch, block after block.
fn places_in_blocks(rows: usize, columns: usize, merge: usize) -> Vec<[u32; 2]> {
    let per_block = merge * merge;
    let blocks_per_row = columns / merge;
    let place = |i: usize| {
        let (block, inner) = (i / per_block, i % per_block);
        let row = block / blocks_per_row * merge + inner / merge;
        [row as u32, (block % blocks_per_row * merge + inner % merge) as u32]
    };
    (0..rows * columns).map(place).collect()
}

/// Patches of `[tiles, channels, height, width]`, or of one tile without the first: their values channel
/// after channel, row by row.
fn tiles(config: &VisionConfig, content: &MediaContent, shape: &[usize]) -> Result<Patches, String> {
    let size = config.patch_size;
    let refused = || format!("pixel values of shape {shape:?} in patches of {size} × {size}");
    let [n_tiles, channels, height, width] = match *shape {
        [channels, height, width] => [1, channels, height, width],
        [n_tiles, channels, height, width] => [n_tiles, channels, height, width],
        _ => return Err(refused()),
    };
    let (n_rows, n_cols) = (height / size, width / size);
    let tile = TileShape { n_tiles, n_rows, n_cols };
    let n = n_tiles.checked_mul(n_rows).and_then(|n| n.checked_mul(n_cols));
    let n = n.filter(|&n| n > 0 && n <= MAX_PATCHES).ok_or_else(refused)?;
    if channels.checked_mul(size * size) != Some(config.patch_values) {
        return Err(refused());
    }
    let pixels = content.pixels();
    let mut rows = Vec::with_capacity(n * channels * size * size);
    let mut places = Vec::with_capacity(n);
    for tile_idx in 0..n_tiles {
        for (row, col) in (0..n_rows).flat_map(|row| (0..n_cols).map(move |col| (row, col))) {
            places.push([row as u32, col as u32]);
            for channel in 0..channels {
                let plane = (tile_idx * channels + channel) * height;
                for y in row * size..(row + 1) * size {
                    rows.extend_from_slice(&pixels[(plane + y) * width + col * size..][..size]);
                }
            }
        }
    }
    Ok(Patches { rows, places, shape: tile })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_row_by_row() {
        let places = places_in_blocks(2, 4, 2);
        assert_eq!(places, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]);
        assert_eq!(places_in_blocks(2, 2, 1), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    }
}
