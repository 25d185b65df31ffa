//! Images in tiles that are named by row and column, and a small copy of the whole: SmolVLM, Idefics 3.

use super::settings::{HALVES, Settings};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

/// Maximum length of the longest side of a resized image.
const MAX_EDGE: u32 = 4096;

const AROUND: &str = "<fake_token_around_image>";

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Smolvlm {
    longest_edge: u32,
    /// Pixels of a tile's side.
    tile: u32,
    splits: bool,
    patch: u32,
    n_tile_tokens: u32,
    filter: Filter,
    values: Normalization,
}

impl Smolvlm {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let tile = settings.size("max_image_size", "longest_edge").unwrap_or(364);
        let longest_edge = settings.size("size", "longest_edge").unwrap_or(4 * 364);
        if !(8..=MAX_EDGE).contains(&tile) {
            return Err(ProcessorError::Setting("max_image_size"));
        }
        let patch = settings.model_number("/vision_config/patch_size", Some(14))?;
        let scale = settings.model_number("/scale_factor", Some(2))?;
        let n_side_tokens = tile / patch / scale;
        Ok(Self {
            longest_edge,
            tile,
            splits: settings.flag("do_image_splitting", true)?,
            patch,
            n_tile_tokens: n_side_tokens * n_side_tokens,
            filter: settings.filter(Filter::Lanczos)?,
            values: settings.normalization(HALVES)?,
        })
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let [height, width] = self.scaled_sides(image);
        let image = resize(image, width, height, self.filter);
        let [rows, columns] = if self.splits { self.tiles(width, height) } else { [1, 1] };
        let image = resize(&image, columns * self.tile, rows * self.tile, self.filter);
        let mut pixels = Vec::new();
        let mut pieces = Vec::new();
        let is_split = rows * columns > 1;
        if is_split {
            for row in 0..rows {
                for column in 0..columns {
                    let corner = [column, row].map(|at| i64::from(at * self.tile));
                    let tile = image.window(corner[0], corner[1], self.tile, self.tile);
                    self.values.append_planes(&tile, &mut pixels);
                    let name = format!("{AROUND}<row_{}_col_{}>", row + 1, column + 1);
                    pieces.extend([Piece::Text(name.into()), Piece::Tokens(self.n_tile_tokens)]);
                }
                pieces.push(Piece::Text("\n".into()));
            }
            pieces.push(Piece::Text("\n".into()));
        }
        self.values.append_planes(&resize(&image, self.tile, self.tile, self.filter), &mut pixels);
        pieces.extend([
            Piece::Text(format!("{AROUND}<global-img>").into()),
            Piece::Tokens(self.n_tile_tokens),
            Piece::Text(AROUND.into()),
        ]);
        let n_tiles = if is_split { rows * columns + 1 } else { 1 };
        let n_patches = self.tile / self.patch;
        ProcessedImage {
            pixels,
            shape: vec![n_tiles, 3, self.tile, self.tile],
            grid: [n_tiles, n_patches, n_patches],
            pieces,
            rotary_grid: None,
        }
    }

    /// Height and width with the longest edge of the configuration, the other side even.
    fn scaled_sides(&self, image: &RgbImage) -> [u32; 2] {
        let ratio = f64::from(image.width()) / f64::from(image.height());
        let scaled = |longest: u32| match ratio >= 1.0 {
            true => [(f64::from(longest) / ratio) as u32, longest],
            false => [longest, (f64::from(longest) * ratio) as u32],
        };
        let [height, width] = scaled(self.longest_edge).map(|side| side + side % 2);
        let [height, width] = match ratio >= 1.0 {
            true => [height, self.longest_edge],
            false => [self.longest_edge, width],
        };
        let [height, width] = if height.max(width) > MAX_EDGE { scaled(MAX_EDGE) } else { [height, width] };
        [height.max(1), width.max(1)]
    }

    /// Rows and columns of tiles.
    fn tiles(&self, width: u32, height: u32) -> [u32; 2] {
        let ratio = f64::from(width) / f64::from(height);
        if width >= height {
            let columns = width.div_ceil(self.tile);
            let height = (f64::from(columns * self.tile) / ratio) as u32;
            [height.div_ceil(self.tile).max(1), columns]
        } else {
            let rows = height.div_ceil(self.tile);
            let width = (f64::from(rows * self.tile) * ratio) as u32;
            [rows, width.div_ceil(self.tile).max(1)]
        }
    }
}
