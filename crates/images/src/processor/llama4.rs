//! Images padded to a grid of tiles, and a small copy of the whole: Llama 4. Values have the precision of
//! bfloat16.

use super::settings::Settings;
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Llama4 {
    /// Side of a tile in pixels.
    tile: u32,
    /// Possible rows and columns, in transformers' order.
    grids: Vec<[u32; 2]>,
    /// Whether the image fills the largest grid that it can.
    fills_largest: bool,
    patch: u32,
    n_tile_tokens: u32,
    filter: Filter,
    values: Normalization,
}

impl Llama4 {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let max_tiles = settings.number("max_patches", Some(16))?;
        let [tile, width] = settings.sides("size", Some([336; 2]))?;
        if max_tiles > 64 || tile != width {
            return Err(ProcessorError::Setting("size"));
        }
        let patch = settings.model_number("/vision_config/patch_size", Some(14))?;
        let ratio = settings.of_model("/vision_config/pixel_shuffle_ratio").and_then(|ratio| ratio.as_f64());
        let n_side_tokens = (f64::from(tile / patch) * ratio.unwrap_or(0.5)) as u32;
        Ok(Self {
            tile,
            grids: grids(max_tiles),
            fills_largest: settings.flag("resize_to_max_canvas", false)?,
            patch,
            n_tile_tokens: n_side_tokens * n_side_tokens,
            filter: settings.filter(Filter::Bilinear)?,
            values: Normalization::in_bf16(1.0 / 255.0, [0.5; 3], [0.5; 3]),
        })
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let [rows, columns] = self.grid(image);
        let canvas = [rows * self.tile, columns * self.tile];
        let sides = [image.height(), image.width()];
        let room = [0, 1].map(|side| match self.fills_largest {
            true => canvas[side],
            false => sides[side].max(self.tile).min(canvas[side]),
        });
        let [height, width] = fitted(sides, room);
        let resized = resize(image, width, height, self.filter);
        let mut pixels = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let corner = [i64::from(column * self.tile), i64::from(row * self.tile)];
                let tile = resized.window(corner[0], corner[1], self.tile, self.tile);
                self.values.append_planes(&tile, &mut pixels);
            }
        }
        let mut n_tiles = rows * columns;
        if n_tiles > 1 {
            self.values.append_planes(&resize(image, self.tile, self.tile, self.filter), &mut pixels);
            n_tiles += 1;
        }
        let n_patches = self.tile / self.patch;
        ProcessedImage {
            pixels,
            shape: vec![n_tiles, 3, self.tile, self.tile],
            grid: [n_tiles, n_patches, n_patches],
            pieces: self.pieces([rows, columns]),
            rotary_grid: None,
        }
    }

    fn pieces(&self, [rows, columns]: [u32; 2]) -> Vec<Piece> {
        let tokens = || Piece::Tokens(self.n_tile_tokens);
        let text = |text: &'static str| Piece::Text(text.into());
        let mut pieces = vec![text("<|image_start|>")];
        if rows * columns > 1 {
            for _ in 0..rows {
                for column in 0..columns {
                    let is_last = column + 1 == columns;
                    let end = if is_last { "<|tile_y_separator|>" } else { "<|tile_x_separator|>" };
                    pieces.extend([tokens(), text(end)]);
                }
            }
        }
        pieces.extend([text("<|image|>"), tokens(), text("<|image_end|>")]);
        pieces
    }

    /// Rows and columns of tiles: the least enlargement; where none is one, the least reduction; of equal
    /// ones the fewest tiles. Ratios are float32, as in transformers.
    fn grid(&self, image: &RgbImage) -> [u32; 2] {
        let scale = |[rows, columns]: &[u32; 2]| {
            let [height, width] = [rows, columns].map(|tiles| (tiles * self.tile) as f32);
            (height / image.height() as f32).min(width / image.width() as f32)
        };
        let enlarging = self.grids.iter().map(scale).filter(|scale| *scale >= 1.0);
        let chosen = match self.fills_largest {
            true => enlarging.reduce(f32::max),
            false => enlarging.reduce(f32::min),
        };
        let reducing = || self.grids.iter().map(scale).fold(0.0, f32::max);
        let chosen = chosen.unwrap_or_else(reducing);
        let grids = self.grids.iter().filter(|grid| scale(grid) == chosen);
        grids.min_by_key(|[rows, columns]| rows * columns).copied().unwrap_or([1, 1])
    }
}

/// Rows and columns of all grids of at most `max_tiles` tiles, grouped by ratio. Ratios are in the order of
/// their first grid among those of the largest number of tiles.
fn grids(max_tiles: u32) -> Vec<[u32; 2]> {
    let all = (1..=max_tiles).rev().flat_map(|n_tiles| {
        (1..=n_tiles).filter(move |rows| n_tiles % rows == 0).map(move |rows| [rows, n_tiles / rows])
    });
    let mut ratios: Vec<Vec<[u32; 2]>> = Vec::new();
    for grid in all {
        let is_alike = |other: &[u32; 2]| grid[0] * other[1] == grid[1] * other[0];
        match ratios.iter_mut().find(|alike| is_alike(&alike[0])) {
            Some(alike) => alike.push(grid),
            None => ratios.push(vec![grid]),
        }
    }
    ratios.concat()
}

/// Height and width of the largest image of the shape `[height, width]` within `room`.
fn fitted([height, width]: [u32; 2], room: [u32; 2]) -> [u32; 2] {
    let scales = [f64::from(room[0]) / f64::from(height), f64::from(room[1]) / f64::from(width)];
    let scaled = |side: u32, scale: f64, room: u32| ((f64::from(side) * scale).floor() as u32).clamp(1, room);
    match scales[1] < scales[0] {
        true => [scaled(height, scales[1], room[0]), room[1]],
        false => [room[0], scaled(width, scales[0], room[1])],
    }
}
