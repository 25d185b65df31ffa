//! Resizing with the arithmetic of torchvision's `resize` on 8-bit images with antialiasing: two passes,
//! horizontal first, weights of 16 bits, and 8-bit pixels between the passes (PyTorch's
//! `_upsample_bicubic2d_aa` and its siblings; the filters are those of Pillow).

use crate::rgb_image::RgbImage;

/// Interpolation filter, with the values of Pillow's `Resampling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Takes the nearest pixel.
    Nearest,
    /// Lanczos filter of three lobes.
    Lanczos,
    /// Linear interpolation.
    Bilinear,
    /// Cubic filter with a = -0.5.
    Bicubic,
}

impl Filter {
    /// The filter of a configuration's `resample`; `None` for the filters that no model uses.
    pub fn from_resample(resample: u64) -> Option<Self> {
        match resample {
            0 => Some(Self::Nearest),
            1 => Some(Self::Lanczos),
            2 => Some(Self::Bilinear),
            3 => Some(Self::Bicubic),
            _ => None,
        }
    }

    /// Half of the filter's width in pixels of an image that is not shrunk.
    fn radius(self) -> f64 {
        match self {
            Self::Nearest => 0.5,
            Self::Lanczos => 3.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Nearest => f64::from(u8::from(x < 0.5)),
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic => {
                const A: f64 = -0.5;
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) }
}

/// Resizes an image to `width` by `height` pixels, both at least 1.
pub fn resize(image: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    let (width, height) = (width.max(1), height.max(1));
    if filter == Filter::Nearest {
        return nearest(image, width, height);
    }
    let narrowed = match width == image.width() {
        true => None,
        false => Some(horizontal(image, &Taps::new(image.width(), width, filter))),
    };
    let image = narrowed.as_ref().unwrap_or(image);
    match height == image.height() {
        true => image.clone(),
        false => vertical(image, &Taps::new(image.height(), height, filter)),
    }
}

/// Source pixels and weights of each output pixel along one side.
struct Taps {
    /// First source pixel and number of source pixels of each output pixel.
    spans: Vec<(usize, usize)>,
    /// `stride` weights for each output pixel.
    weights: Vec<i32>,
    stride: usize,
    /// Bits after the binary point of the weights.
    precision: u32,
}

impl Taps {
    fn new(n_in: u32, n_out: u32, filter: Filter) -> Self {
        let scale = f64::from(n_in) / f64::from(n_out);
        // A shrinking filter covers all source pixels between two output pixels.
        let stretch = scale.max(1.0);
        let support = filter.radius() * stretch;
        let stride = support.ceil() as usize * 2 + 1;
        let mut spans = Vec::with_capacity(n_out as usize);
        let mut exact = vec![0.0; n_out as usize * stride];
        for (out, weights) in exact.chunks_exact_mut(stride).enumerate() {
            let center = scale * (out as f64 + 0.5);
            let first = ((center - support + 0.5) as i64).max(0);
            let until = ((center + support + 0.5) as i64).min(i64::from(n_in));
            let n = usize::try_from(until - first).unwrap_or(0).min(stride);
            let mut sum = 0.0;
            for (at, weight) in weights[..n].iter_mut().enumerate() {
                *weight = filter.weight((at as f64 + first as f64 - center + 0.5) / stretch);
                sum += *weight;
            }
            if sum != 0.0 {
                weights[..n].iter_mut().for_each(|weight| *weight /= sum);
            }
            spans.push((first as usize, n));
        }
        let largest = exact.iter().copied().fold(0.0, f64::max);
        let precision = precision(largest);
        let one = f64::from(1 << precision);
        let weights = exact.iter().map(|weight| (weight * one + 0.5f64.copysign(*weight)) as i32).collect();
        Self { spans, weights, stride, precision }
    }

    fn weights(&self, out: usize) -> &[i32] {
        &self.weights[out * self.stride..][..self.spans[out].1]
    }

    /// The value that rounds a sum.
    fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }
}

/// Number of bits behind the binary point with which the largest weight still fits 16 bits; at most 22.
fn precision(largest: f64) -> u32 {
    const MAX_BITS: u32 = 22;
    let fits = |bits: &u32| ((0.5 + largest * f64::from(1 << (bits + 1))) as i64) < 1 << 15;
    (0..MAX_BITS).find(|bits| !fits(bits)).unwrap_or(MAX_BITS).max(1)
}

fn horizontal(image: &RgbImage, taps: &Taps) -> RgbImage {
    let n_out = taps.spans.len();
    let mut out = Vec::with_capacity(n_out * image.height() as usize * 3);
    for y in 0..image.height() {
        let row = image.row(y);
        for (x, &(first, n)) in taps.spans.iter().enumerate() {
            let mut sums = [taps.half(); 3];
            let source = row[first * 3..(first + n) * 3].chunks_exact(3);
            for (pixel, weight) in source.zip(taps.weights(x)) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*value) * weight;
                }
            }
            out.extend(sums.map(|sum| (sum >> taps.precision).clamp(0, 255) as u8));
        }
    }
    RgbImage::new(n_out as u32, image.height(), out).expect("a row for each row")
}

fn vertical(image: &RgbImage, taps: &Taps) -> RgbImage {
    let mut out = Vec::with_capacity(taps.spans.len() * image.width() as usize * 3);
    let mut sums = vec![0; image.width() as usize * 3];
    for (y, &(first, n)) in taps.spans.iter().enumerate() {
        sums.fill(taps.half());
        for (source, weight) in (first..first + n).zip(taps.weights(y)) {
            for (sum, value) in sums.iter_mut().zip(image.row(source as u32)) {
                *sum += i32::from(*value) * weight;
            }
        }
        out.extend(sums.iter().map(|sum| (sum >> taps.precision).clamp(0, 255) as u8));
    }
    RgbImage::new(image.width(), taps.spans.len() as u32, out).expect("a row for each output row")
}

fn nearest(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    let source = |out: u32, n_in: u32, n_out: u32| {
        let at = (f64::from(out) + 0.5) * f64::from(n_in) / f64::from(n_out);
        (at as u32).min(n_in - 1)
    };
    let columns: Vec<usize> = (0..width).map(|x| source(x, image.width(), width) as usize * 3).collect();
    let rows = (0..height).map(|y| image.row(source(y, image.height(), height)));
    let pixels = rows.flat_map(|row| columns.iter().flat_map(move |at| row[*at..at + 3].iter().copied()));
    RgbImage::new(width, height, pixels.collect()).expect("a pixel for each pixel")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: [Filter; 4] = [Filter::Nearest, Filter::Lanczos, Filter::Bilinear, Filter::Bicubic];

    #[test]
    fn one_colour_stays() {
        let plain = RgbImage::new(7, 5, [12, 200, 255].repeat(35)).unwrap();
        for filter in FILTERS {
            for (width, height) in [(1, 1), (3, 20), (40, 2), (7, 5), (500, 1)] {
                let resized = resize(&plain, width, height, filter);
                assert_eq!((resized.width(), resized.height()), (width, height));
                let is_close =
                    |pixel: &[u8]| pixel.iter().zip([12, 200, 255]).all(|(is, was)| is.abs_diff(was) <= 1);
                assert!(resized.pixels().chunks(3).all(is_close), "{filter:?} {width} {height}");
            }
        }
    }

    #[test]
    fn halving_averages_pairs() {
        let pixels = [0, 0, 0, 100, 50, 20, 10, 10, 10, 20, 20, 20].to_vec();
        let halved = resize(&RgbImage::new(4, 1, pixels).unwrap(), 2, 1, Filter::Nearest);
        assert_eq!(halved.pixels(), [100, 50, 20, 20, 20, 20]);
    }
}
