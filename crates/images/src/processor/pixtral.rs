//! Images that are only shrunk, with a token after each row: Pixtral, Mistral Small 3.1 and later, Ministral
//! 3.

use super::settings::{CLIP, Settings};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pixtral {
    patch: u32,
    /// Patches of a merged square's side.
    merge: u32,
    longest_edge: u32,
    filter: Filter,
    values: Normalization,
}

impl Pixtral {
    pub fn new(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        let patch = settings.model_number("/vision_config/patch_size", Some(16))?;
        let default_merge = if settings.model_type() == "mistral3" { 2 } else { 1 };
        let merge = settings.model_number("/spatial_merge_size", Some(default_merge))?;
        let longest_edge = settings.size("size", "longest_edge").unwrap_or(1024);
        if patch * merge > 1 << 10 || longest_edge > 1 << 13 {
            return Err(ProcessorError::Setting("size"));
        }
        Ok(Self {
            patch,
            merge,
            longest_edge,
            filter: settings.filter(Filter::Bicubic)?,
            values: settings.normalization(CLIP)?,
        })
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let sides = [image.height(), image.width()];
        let ratio = sides.map(|side| f64::from(side) / f64::from(self.longest_edge));
        let ratio = ratio[0].max(ratio[1]).max(1.0);
        let unit = self.patch * self.merge;
        let units = sides.map(|side| ((f64::from(side) / ratio).floor() as u32).max(1).div_ceil(unit));
        let [height, width] = units.map(|side| side * unit);
        let image = resize(image, width, height, self.filter);
        let mut pixels = Vec::new();
        self.values.append_planes(&image, &mut pixels);
        let mut pieces = Vec::with_capacity(units[0] as usize * 2);
        for row in 1..=units[0] {
            let end = if row == units[0] { "[IMG_END]" } else { "[IMG_BREAK]" };
            pieces.extend([Piece::Tokens(units[1]), Piece::Text(end.into())]);
        }
        ProcessedImage {
            pixels,
            shape: vec![3, height, width],
            grid: [1, height / self.patch, width / self.patch],
            pieces,
            rotary_grid: None,
        }
    }
}
