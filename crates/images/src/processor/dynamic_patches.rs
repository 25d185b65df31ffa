//! Images of any shape within a number of pixels, in patches of which neighbours are merged: Qwen 2.5 and
//! later, GLM 4.1 and later.

use serde_json::Value;

use super::settings::{CLIP, Settings};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::{ImageError, ProcessorError};
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

/// Maximum ratio of the longest to the shortest side of an image.
const MAX_RATIO: f64 = 200.0;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct DynamicPatches {
    /// Side of a patch in pixels.
    patch: u32,
    /// Side of a merged square in patches.
    merge: u32,
    /// Number of equal frames of a still image in a patch.
    n_times: u32,
    /// Bounds of the number of pixels; for GLM, of the pixels of all frames.
    min_pixels: f64,
    max_pixels: f64,
    counts_frames: bool,
    filter: Filter,
    values: Normalization,
}

impl DynamicPatches {
    pub fn qwen(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        Self::new(settings, [14, 2, 2], [56 * 56, 28 * 28 * 1280], false)
    }

    pub fn glm(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        Self::new(settings, [14, 2, 2], [112 * 112, 28 * 28 * 15_000], true)
    }

    fn new(
        settings: &Settings<'_>,
        [patch, n_times, merge]: [u32; 3],
        [min, max]: [u64; 2],
        counts_frames: bool,
    ) -> Result<Self, ProcessorError> {
        let pixels = |plain: &str, edge: &str, default: u64| {
            let size = settings.get("size");
            let given = settings.get(plain).or_else(|| size?.get(plain)).or_else(|| size?.get(edge));
            given.map_or(Some(default), Value::as_u64).filter(|pixels| (1..=1 << 28).contains(pixels))
        };
        let min_pixels =
            pixels("min_pixels", "shortest_edge", min).ok_or(ProcessorError::Setting("min_pixels"))?;
        let max_pixels =
            pixels("max_pixels", "longest_edge", max).ok_or(ProcessorError::Setting("max_pixels"))?;
        let patch = settings.number("patch_size", Some(patch))?;
        let merge = settings.number("merge_size", Some(merge))?;
        let unit = u64::from(patch) * u64::from(merge);
        if unit > 1 << 10 || max_pixels < unit * unit || min_pixels > max_pixels {
            return Err(ProcessorError::Setting("max_pixels"));
        }
        let n_times = settings.number("temporal_patch_size", Some(n_times))?;
        if n_times > 8 {
            return Err(ProcessorError::Setting("temporal_patch_size"));
        }
        Ok(Self {
            patch,
            merge,
            n_times,
            min_pixels: min_pixels as f64,
            max_pixels: max_pixels as f64,
            counts_frames,
            filter: settings.filter(Filter::Bicubic)?,
            values: settings.normalization(CLIP)?,
        })
    }

    pub fn process(&self, image: &RgbImage) -> Result<ProcessedImage, ImageError> {
        let [height, width] = self.sides(image)?;
        let image = resize(image, width, height, self.filter);
        let [rows, columns] = [height / self.patch, width / self.patch];
        let n_patch_values = 3 * self.n_times * self.patch * self.patch;
        let mut pixels = Vec::with_capacity((rows * columns * n_patch_values) as usize);
        for block_row in (0..rows).step_by(self.merge as usize) {
            for block_column in (0..columns).step_by(self.merge as usize) {
                for row in block_row..block_row + self.merge {
                    for column in block_column..block_column + self.merge {
                        let corner = [row * self.patch, column * self.patch];
                        self.values.append_patch(&image, corner, self.patch, self.n_times, &mut pixels);
                    }
                }
            }
        }
        let merged = [rows / self.merge, columns / self.merge];
        Ok(ProcessedImage {
            pixels,
            shape: vec![rows * columns, n_patch_values],
            grid: [1, rows, columns],
            pieces: vec![Piece::Tokens(merged[0] * merged[1])],
            rotary_grid: Some(merged),
        })
    }

    /// Height and width to resize to: multiples of a merged square's side whose area is within the bounds.
    fn sides(&self, image: &RgbImage) -> Result<[u32; 2], ImageError> {
        let refused = |reason| ImageError::Shape { width: image.width(), height: image.height(), reason };
        let unit = f64::from(self.patch * self.merge);
        let mut sides = [image.height(), image.width()].map(f64::from);
        let n_frames = if self.counts_frames { f64::from(self.n_times) } else { 1.0 };
        let shortest = sides[0].min(sides[1]);
        if self.counts_frames && shortest < unit {
            sides = sides.map(|side| (side * (unit / shortest)).trunc());
        }
        if sides[0].max(sides[1]) / sides[0].min(sides[1]) > MAX_RATIO {
            return Err(refused("one side is more than 200 times as long as the other"));
        }
        let area = n_frames * sides[0] * sides[1];
        let rounded = sides.map(|side| (side / unit).round_ties_even() * unit);
        let rounded_area = n_frames * rounded[0] * rounded[1];
        let fitted = if rounded_area > self.max_pixels {
            let shrink = (area / self.max_pixels).sqrt();
            sides.map(|side| unit.max((side / shrink / unit).floor() * unit))
        } else if rounded_area < self.min_pixels {
            let grow = (self.min_pixels / area).sqrt();
            sides.map(|side| (side * grow / unit).ceil() * unit)
        } else {
            rounded
        };
        // A long image of one unit's height keeps its length; the bound is that of any image.
        if fitted.iter().any(|side| *side < unit)
            || n_frames * fitted[0] * fitted[1] > self.max_pixels.max(unit * unit * MAX_RATIO) * 2.0
        {
            return Err(refused("it is too long and thin"));
        }
        Ok(fitted.map(|side| side as u32))
    }
}
