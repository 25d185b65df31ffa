//! A small copy of the whole, and tiles of the best of some grids with the padding cut off: LLaVA-OneVision.

use serde_json::Value;

use super::settings::{CLIP, Settings, bounded};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Onevision {
    /// Pixels of a tile's side.
    tile: u32,
    /// Possible heights and widths of all tiles together.
    canvases: Vec<[u32; 2]>,
    /// Tiles whose features are kept at most.
    max_tiles: u32,
    patch: u32,
    filter: Filter,
    values: Normalization,
}

impl Onevision {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let [tile, width] = settings.sides("size", Some([384; 2]))?;
        let patch = settings.model_number("/vision_config/patch_size", Some(14))?;
        if tile != width || tile < patch {
            return Err(ProcessorError::Setting("size"));
        }
        let given = settings.get("image_grid_pinpoints").or(settings.of_model("/image_grid_pinpoints"));
        let canvases = given.map_or(Some(default_canvases(tile)), |given| canvases(given, tile));
        let ratio =
            settings.of_model("/vision_aspect_ratio").and_then(Value::as_str).unwrap_or("anyres_max_9");
        let max_tiles = ratio.strip_prefix("anyres_max_").and_then(|n| n.parse().ok());
        Ok(Self {
            tile,
            canvases: canvases.ok_or(ProcessorError::Setting("image_grid_pinpoints"))?,
            max_tiles: max_tiles.ok_or(ProcessorError::Setting("vision_aspect_ratio"))?,
            patch,
            filter: settings.filter(Filter::Bicubic)?,
            values: settings.normalization(CLIP)?,
        })
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let canvas = self.canvas(image);
        let mut pixels = Vec::new();
        self.values.append_planes(&resize(image, self.tile, self.tile, self.filter), &mut pixels);
        let [height, width] = fitted([image.height(), image.width()], canvas);
        let resized = resize(image, width, height, self.filter);
        let [top, left] = [(canvas[0] - height) / 2, (canvas[1] - width) / 2];
        let [rows, columns] = canvas.map(|side| side / self.tile);
        for row in 0..rows {
            for column in 0..columns {
                let corner = [(column, left), (row, top)]
                    .map(|(at, padding)| i64::from(at * self.tile) - i64::from(padding));
                let tile = resized.window(corner[0], corner[1], self.tile, self.tile);
                self.values.append_planes(&tile, &mut pixels);
            }
        }
        let n_tiles = rows * columns + 1;
        let n_patches = self.tile / self.patch;
        let [kept_rows, kept_columns] = self.kept([image.height(), image.width()], [rows, columns]);
        let n_tokens = n_patches * n_patches + kept_rows * (kept_columns + 1);
        ProcessedImage {
            pixels,
            shape: vec![n_tiles, 3, self.tile, self.tile],
            // The encoder cuts the padding off again, which depends on the image's own size.
            grid: [n_tiles, image.height(), image.width()],
            pieces: vec![Piece::Tokens(n_tokens)],
            rotary_grid: None,
        }
    }

    /// Height and width of the tiles together: the most pixels of the image, and then the least padding.
    fn canvas(&self, image: &RgbImage) -> [u32; 2] {
        let area = |height: u32, width: u32| u64::from(height) * u64::from(width);
        let [height, width] = [image.height(), image.width()];
        let key = |canvas: &[u32; 2]| {
            let scale =
                (f64::from(canvas[1]) / f64::from(width)).min(f64::from(canvas[0]) / f64::from(height));
            let scaled = [height, width].map(|side| (f64::from(side) * scale) as u32);
            let used = area(scaled[0], scaled[1]).min(area(height, width));
            (used, std::cmp::Reverse(area(canvas[0], canvas[1]) - used))
        };
        // The first of equal ones, where `max_by_key` takes the last.
        self.canvases.iter().rev().max_by_key(|canvas| key(canvas)).copied().unwrap_or([self.tile; 2])
    }

    /// Rows and columns of features that are kept of the tiles: without padding, and within the number of
    /// tiles.
    fn kept(&self, [height, width]: [u32; 2], tiles: [u32; 2]) -> [u32; 2] {
        let n_patches = self.tile / self.patch;
        let [mut rows, mut columns] = tiles.map(|tiles| tiles * n_patches);
        let [height, width] = [f64::from(height), f64::from(width)];
        let [all_rows, all_columns] = [f64::from(rows), f64::from(columns)];
        // Seven decimals, so that an exact product does not lose one.
        let exact = |value: f64| ((value * 1e7).round() / 1e7) as u32;
        if width / height > all_columns / all_rows {
            rows -= rows.saturating_sub(exact(height * (all_columns / width))) / 2 * 2;
        } else {
            columns -= columns.saturating_sub(exact(width * (all_rows / height))) / 2 * 2;
        }
        let most = f64::from(self.max_tiles) * f64::from(n_patches * n_patches);
        let ratio = (f64::from(rows) * f64::from(columns) / most).sqrt();
        if ratio > 1.1 {
            [rows, columns] = [rows, columns].map(|side| (f64::from(side) / ratio).floor() as u32);
        }
        [rows, columns]
    }
}

/// Heights and widths from 1 to 6 tiles each.
fn default_canvases(tile: u32) -> Vec<[u32; 2]> {
    (1..=6).flat_map(|rows| (1..=6).map(move |columns| [rows * tile, columns * tile])).collect()
}

/// Pairs of height and width, each of whole tiles.
fn canvases(given: &Value, tile: u32) -> Option<Vec<[u32; 2]>> {
    const MAX_CANVASES: usize = 256;
    const MAX_TILES: u32 = 64;
    let pairs = given.as_array().filter(|pairs| !pairs.is_empty() && pairs.len() <= MAX_CANVASES)?;
    let pair = |pair: &Value| {
        let sides = [pair.get(0).and_then(bounded)?, pair.get(1).and_then(bounded)?];
        let is_whole = sides.iter().all(|side| side % tile == 0);
        (is_whole && (sides[0] / tile) * (sides[1] / tile) <= MAX_TILES).then_some(sides)
    };
    pairs.iter().map(pair).collect()
}

/// Height and width of the largest image of the shape `[height, width]` within `canvas`, rounded up.
fn fitted([height, width]: [u32; 2], canvas: [u32; 2]) -> [u32; 2] {
    let scales = [f64::from(canvas[0]) / f64::from(height), f64::from(canvas[1]) / f64::from(width)];
    let scaled = |side: u32, scale: f64, room: u32| ((f64::from(side) * scale).ceil() as u32).clamp(1, room);
    match scales[1] < scales[0] {
        true => [scaled(height, scales[1], canvas[0]), canvas[1]],
        false => [canvas[0], scaled(width, scales[0], canvas[1])],
    }
}
