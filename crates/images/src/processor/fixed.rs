//! Images of one size: Gemma 3, which squeezes them, and LLaVA 1.5, which cuts the middle out.

use super::settings::{CLIP, HALVES, Settings};
use super::values::Normalization;
use super::{Piece, ProcessedImage};
use crate::error::ProcessorError;
use crate::resize::{Filter, resize};
use crate::rgb_image::RgbImage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fixed {
    /// Height and width.
    sides: [u32; 2],
    /// Pixels of the shorter side before the middle is cut out; `None`: the image is squeezed.
    shortest_edge: Option<u32>,
    patch: u32,
    n_tokens: u32,
    is_gemma: bool,
    filter: Filter,
    values: Normalization,
}

impl Fixed {
    pub fn gemma3(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        if settings.flag("do_pan_and_scan", false)? {
            return Err(ProcessorError::Setting("do_pan_and_scan"));
        }
        let n_tokens = settings.number("image_seq_length", Some(256))?;
        Ok(Self {
            sides: settings.sides("size", Some([224; 2]))?,
            shortest_edge: None,
            patch: settings.model_number("/vision_config/patch_size", Some(14))?,
            n_tokens: settings.model_number("/mm_tokens_per_image", Some(n_tokens))?,
            is_gemma: true,
            filter: settings.filter(Filter::Bilinear)?,
            values: settings.normalization(HALVES)?,
        })
    }

    pub fn llava(settings: &Settings<'_>) -> Result<Self, ProcessorError> {
        if !settings.flag("do_center_crop", true)? {
            return Err(ProcessorError::Setting("do_center_crop"));
        }
        let sides = settings.sides("crop_size", Some([224; 2]))?;
        let patch = settings.model_number("/vision_config/patch_size", Some(14))?;
        let strategy = settings.of_model("/vision_feature_select_strategy").and_then(|value| value.as_str());
        let has_class_token = strategy == Some("full");
        let shortest = settings.size("size", "shortest_edge");
        let shortest = shortest.or_else(|| settings.get("size").and_then(super::settings::bounded));
        Ok(Self {
            sides,
            shortest_edge: Some(shortest.ok_or(ProcessorError::Setting("size"))?),
            patch,
            n_tokens: (sides[0] / patch) * (sides[1] / patch) + u32::from(has_class_token),
            is_gemma: false,
            filter: settings.filter(Filter::Bicubic)?,
            values: settings.normalization(CLIP)?,
        })
    }

    pub fn marker(&self) -> Option<&'static str> {
        self.is_gemma.then_some("<start_of_image>")
    }

    pub fn process(&self, image: &RgbImage) -> ProcessedImage {
        let [height, width] = self.sides;
        let image = match self.shortest_edge {
            None => resize(image, width, height, self.filter),
            Some(shortest) => {
                let [short, long] = [image.width().min(image.height()), image.width().max(image.height())];
                // The bound keeps a line of one pixel from becoming an image of millions.
                let scaled = u64::from(shortest) * u64::from(long) / u64::from(short);
                let scaled = scaled.min(u64::from(shortest) * 1024) as u32;
                let is_wide = image.width() >= image.height();
                let [to_width, to_height] = if is_wide { [scaled, shortest] } else { [shortest, scaled] };
                let image = resize(image, to_width, to_height, self.filter);
                let middle = |side: u32, part: u32| (i64::from(side) - i64::from(part)).div_euclid(2);
                image.window(middle(to_width, width), middle(to_height, height), width, height)
            }
        };
        let mut pixels = Vec::new();
        self.values.append_planes(&image, &mut pixels);
        let tokens = Piece::Tokens(self.n_tokens);
        let pieces = match self.is_gemma {
            true => vec![
                Piece::Text("\n\n<start_of_image>".into()),
                tokens,
                Piece::Text("<end_of_image>\n\n".into()),
            ],
            false => vec![tokens],
        };
        ProcessedImage {
            pixels,
            shape: vec![3, height, width],
            grid: [1, height / self.patch, width / self.patch],
            pieces,
            rotary_grid: None,
        }
    }
}
