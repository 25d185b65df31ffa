//! Pixels to floating-point values, and the orders in which encoders take them.

use half::bf16;

use crate::rgb_image::RgbImage;

/// The value of each level of each channel. The arithmetic is that of transformers in float32: the scale is
/// folded into mean and deviation.
#[derive(Clone, PartialEq)]
pub(crate) struct Normalization {
    levels: [Vec<f32>; 3],
}

impl Normalization {
    /// `(level · factor - mean) / std`.
    pub fn new(factor: f64, mean: [f32; 3], std: [f32; 3]) -> Self {
        let scale = (1.0 / factor) as f32;
        Self::of(|level, channel| (level - mean[channel] * scale) / (std[channel] * scale))
    }

    /// `level · factor`.
    pub fn scaled(factor: f64) -> Self {
        Self::of(|level, _| level * factor as f32)
    }

    /// `(level · factor - mean) / std`, each operation rounded to bfloat16.
    pub fn in_bf16(factor: f64, mean: [f32; 3], std: [f32; 3]) -> Self {
        let round = |value: f32| bf16::from_f32(value).to_f32();
        Self::of(|level, channel| {
            let scaled = round(level * factor as f32);
            round(round(scaled - round(mean[channel])) / round(std[channel]))
        })
    }

    fn of(value: impl Fn(f32, usize) -> f32) -> Self {
        let value = &value;
        Self {
            levels: [0, 1, 2].map(|channel| (0u8..=255).map(|level| value(level.into(), channel)).collect()),
        }
    }

    fn value(&self, level: u8, channel: usize) -> f32 {
        self.levels[channel][usize::from(level)]
    }

    /// Appends the values of an image: channel, row, column.
    pub fn append_planes(&self, image: &RgbImage, values: &mut Vec<f32>) {
        values.reserve(image.pixels().len());
        for channel in 0..3 {
            values.extend(
                image.pixels().iter().skip(channel).step_by(3).map(|level| self.value(*level, channel)),
            );
        }
    }

    /// Appends the values of a square of `side` pixels: channel, `n_times` equal frames, row, column.
    pub fn append_patch(
        &self,
        image: &RgbImage,
        [top, left]: [u32; 2],
        side: u32,
        n_times: u32,
        values: &mut Vec<f32>,
    ) {
        for channel in 0..3 {
            for _ in 0..n_times {
                for y in top..top + side {
                    let row = &image.row(y)[left as usize * 3..(left + side) as usize * 3];
                    values
                        .extend(row.iter().skip(channel).step_by(3).map(|level| self.value(*level, channel)));
                }
            }
        }
    }

    /// Appends the values of a square of `side` pixels: row, column, channel.
    pub fn append_pixels(&self, image: &RgbImage, [top, left]: [u32; 2], side: u32, values: &mut Vec<f32>) {
        for y in top..top + side {
            let row = &image.row(y)[left as usize * 3..(left + side) as usize * 3];
            values.extend(row.iter().enumerate().map(|(at, level)| self.value(*level, at % 3)));
        }
    }
}

impl std::fmt::Debug for Normalization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends = self.levels.each_ref().map(|levels| [levels[0], levels[255]]);
        write!(f, "Normalization({ends:?})")
    }
}
