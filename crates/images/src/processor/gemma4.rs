//! Images of any shape within a number of tokens, each the average of a square of patches: Gemma 4.

use super::settings::Settings;
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::{ImageError, ProcessorError};
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

/// The numbers of tokens that the model was trained with.
const TOKENS: [u32; 5] = [70, 140, 280, 560, 1120];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gemma4 {
    patch: u32,
    /// Side of an averaged square in patches.
    pool: u32,
    max_tokens: u32,
    filter: Filter,
    values: Normalization,
}

impl Gemma4 {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let max_tokens = settings.number("max_soft_tokens", Some(280))?;
        if !TOKENS.contains(&max_tokens) {
            return Err(ProcessorError::Setting("max_soft_tokens"));
        }
        let [patch, pool] =
            [settings.number("patch_size", Some(16))?, settings.number("pooling_kernel_size", Some(3))?];
        if patch > 256 || pool > 16 {
            return Err(ProcessorError::Setting("patch_size"));
        }
        let values = match settings.get("do_normalize").and_then(|value| value.as_bool()).unwrap_or(false) {
            true => settings.normalization([[0.0; 3], [1.0; 3]])?,
            false => {
                let factor = settings.get("rescale_factor").and_then(|value| value.as_f64());
                Normalization::scaled(factor.unwrap_or(1.0 / 255.0))
            }
        };
        Ok(Self { patch, pool, max_tokens, filter: settings.filter(Filter::Bicubic)?, values })
    }

    pub fn process(&self, image: &RgbImage) -> Result<ProcessedImage, ImageError> {
        let [height, width] = self.sides(image)?;
        let image = resize(image, width, height, self.filter);
        let [rows, columns] = [height / self.patch, width / self.patch];
        let n_patch_values = 3 * self.patch * self.patch;
        let mut pixels = Vec::with_capacity((rows * columns * n_patch_values) as usize);
        for row in 0..rows {
            for column in 0..columns {
                let corner = [row * self.patch, column * self.patch];
                self.values.append_pixels(&image, corner, self.patch, &mut pixels);
            }
        }
        let n_tokens = rows * columns / (self.pool * self.pool);
        Ok(ProcessedImage {
            pixels,
            shape: vec![rows * columns, n_patch_values],
            grid: [1, rows, columns],
            pieces: vec![
                Piece::Text("<|image>".into()),
                Piece::Tokens(n_tokens),
                Piece::Text("<image|>".into()),
            ],
            rotary_grid: None,
        })
    }

    /// Height and width to resize to: the largest of the image's shape within the tokens.
    fn sides(&self, image: &RgbImage) -> Result<[u32; 2], ImageError> {
        let unit = self.patch * self.pool;
        let max_pixels = f64::from(self.max_tokens) * f64::from(unit) * f64::from(unit);
        let [height, width] = [image.height(), image.width()];
        let factor = (max_pixels / (f64::from(height) * f64::from(width))).sqrt();
        let fitted = [height, width].map(|side| (factor * f64::from(side) / f64::from(unit)).floor() as u32);
        let longest = |long: u32, short: u32| (long / short).min(self.max_tokens);
        let fitted = match fitted {
            [0, 0] => [0, 0],
            [0, _] => [1, longest(width, height)],
            [_, 0] => [longest(height, width), 1],
            fitted => fitted,
        };
        if fitted[0] == 0 || fitted[0] * fitted[1] > self.max_tokens {
            let reason = "it is too long and thin";
            return Err(ImageError::Shape { width, height, reason });
        }
        Ok(fitted.map(|side| side * unit))
    }
}
