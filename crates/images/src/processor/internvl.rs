//! Images in tiles whose grid has the nearest shape, and a small copy of the whole image: InternVL 3.

use super::settings::{IMAGENET, Settings};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Internvl {
    /// Height and width of a tile.
    tile: [u32; 2],
    /// Possible columns and rows, by number of tiles.
    grids: Vec<[u32; 2]>,
    patch: u32,
    n_tile_tokens: u32,
    filter: Filter,
    values: Normalization,
}

impl Internvl {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let [min, max] =
            [settings.number("min_patches", Some(1))?, settings.number("max_patches", Some(12))?];
        if min > max || max > 64 {
            return Err(ProcessorError::Setting("max_patches"));
        }
        let mut grids: Vec<[u32; 2]> =
            (1..=max).flat_map(|columns| (1..=max).map(move |rows| [columns, rows])).collect();
        grids.retain(|[columns, rows]| (min..=max).contains(&(columns * rows)));
        grids.sort_by_key(|[columns, rows]| columns * rows);
        let tile = settings.sides("size", Some([448; 2]))?;
        let patch = settings.model_number("/vision_config/patch_size", Some(14))?;
        let ratio = settings.of_model("/downsample_ratio").map_or(Some(0.5), |ratio| ratio.as_f64());
        let ratio = ratio.filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
        let ratio = ratio.ok_or(ProcessorError::Setting("downsample_ratio"))?;
        let [rows, columns] = tile.map(|side| (f64::from(side / patch) * ratio) as u32);
        Ok(Self {
            tile,
            grids,
            patch,
            n_tile_tokens: rows * columns,
            filter: settings.filter(Filter::Bicubic)?,
            values: settings.normalization(IMAGENET)?,
        })
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let [columns, rows] = self.grid(image);
        let [height, width] = self.tile;
        let resized = resize(image, columns * width, rows * height, self.filter);
        let mut pixels = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let corner = [i64::from(column * width), i64::from(row * height)];
                self.values.append_planes(&resized.window(corner[0], corner[1], width, height), &mut pixels);
            }
        }
        let mut n_tiles = rows * columns;
        if n_tiles > 1 {
            self.values.append_planes(&resize(image, width, height, self.filter), &mut pixels);
            n_tiles += 1;
        }
        ProcessedImage {
            pixels,
            shape: vec![n_tiles, 3, height, width],
            grid: [n_tiles, height / self.patch, width / self.patch],
            pieces: vec![
                Piece::Text("<img>".into()),
                Piece::Tokens(n_tiles * self.n_tile_tokens),
                Piece::Text("</img>".into()),
            ],
            rotary_grid: None,
        }
    }

    /// Columns and rows of tiles: the nearest ratio of sides; of equal ones the first, or a later one if the
    /// image has more than half of its pixels.
    fn grid(&self, image: &RgbImage) -> [u32; 2] {
        let ratio = f64::from(image.width()) / f64::from(image.height());
        let area = f64::from(image.width()) * f64::from(image.height());
        let tile_area = f64::from(self.tile[0]) * f64::from(self.tile[1]);
        let (mut best, mut nearest) = ([1, 1], f64::INFINITY);
        for &[columns, rows] in &self.grids {
            let distance = (ratio - f64::from(columns) / f64::from(rows)).abs();
            let fills = || area > 0.5 * tile_area * f64::from(columns * rows);
            if distance < nearest || (distance == nearest && fills()) {
                (best, nearest) = ([columns, rows], distance);
            }
        }
        best
    }
}
