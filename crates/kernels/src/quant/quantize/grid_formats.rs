//! Quantizes blocks of the formats of grids, ternary numbers and NVFP4 plainly: one scale a (half) block from its largest magnitude, and
//! the nearest point of all. For test data.

use super::{E2M1_VALUES, extreme, inverse, nearest, put_f16};
use crate::layout::{CodeLayout, unsigned_e4m3};
use crate::quant::Format;
use crate::quant::grids::Grid;

/// Writes the stored block of `x` to `out`.
pub(super) fn block(format: Format, x: &[f32], out: &mut [u8]) {
    out.fill(0);
    match format {
        Format::NVFP4 => nvfp4(x, 1.0, out),
        Format::NVFP4_SCALED => nvfp4_scaled(x, out),
        Format::TQ1_0 | Format::TQ2_0 => ternary(format, x, out),
        _ => grid(format, x, out),
    }
}

/// The factor makes the largest scale that of the largest magnitude.
fn nvfp4_scaled(x: &[f32], out: &mut [u8]) {
    let factor = extreme(x).abs() / (6.0 * 448.0);
    out[..4].copy_from_slice(&factor.to_le_bytes());
    nvfp4(x, factor, &mut out[4..]);
}

fn nvfp4(x: &[f32], factor: f32, out: &mut [u8]) {
    let scale_of = |code: u8| unsigned_e4m3(code) * 256.0 * factor;
    for (half, x) in x.chunks_exact(16).enumerate() {
        // The largest number is 6; the next scale that is not smaller.
        let wanted = extreme(x).abs() / 6.0;
        let scale = (0..0x7F).find(|&scale| scale_of(scale) >= wanted).unwrap_or(0x7E);
        out[half] = scale;
        let code = |i: usize| nearest(&E2M1_VALUES, x[i] * inverse(scale_of(scale) * 0.5));
        for (j, out) in out[4 + 8 * half..][..8].iter_mut().enumerate() {
            *out = code(j) | code(j + 8) << 4;
        }
    }
}

fn ternary(format: Format, x: &[f32], out: &mut [u8]) {
    let d = extreme(x).abs();
    put_f16(out, format.block_bytes() - 2, d);
    let code = |i: usize| (x[i] * inverse(d)).round() as i32 + 1;
    if format == Format::TQ2_0 {
        return (0..256).for_each(|i| out[i / 128 * 32 + i % 32] |= (code(i) << (i % 128 / 32 * 2)) as u8);
    }
    let digits = |first: usize, step: usize, n: usize| {
        let value = (0..5).fold(0, |value, digit| {
            3 * value + if digit < n { code(first + digit * step) as u32 } else { 0 }
        });
        // A fraction of 256, rounded up.
        (value * 256).div_ceil(243) as u8
    };
    for (i, out) in out[..52].iter_mut().enumerate() {
        *out = match i {
            0..32 => digits(i, 32, 5),
            32..48 => digits(160 + i - 32, 16, 5),
            _ => digits(240 + i - 48, 4, 4),
        };
    }
}

/// How the scales of a format are stored.
struct Scales {
    /// Weights that share one.
    n: usize,
    /// The largest stored number `s` of `1 + 2 s`.
    most: u8,
    /// What the largest magnitude of the code book is for.
    largest: f32,
}

fn grid(format: Format, x: &[f32], out: &mut [u8]) {
    let layout = CodeLayout::of(format).expect("a format of codes");
    let of_format = match format {
        Format::IQ3_XXS => Scales { n: 32, most: 15, largest: 124.0 },
        Format::IQ3_S => Scales { n: 32, most: 15, largest: 15.0 },
        Format::IQ2_XXS => Scales { n: 32, most: 15, largest: 43.0 },
        Format::IQ2_XS | Format::IQ2_S => Scales { n: 16, most: 15, largest: 43.0 },
        // Half of the largest magnitude is a better step than all of it.
        Format::IQ1_S => Scales { n: 32, most: 7, largest: 18.0 },
        _ => Scales { n: 16, most: 7, largest: 18.0 },
    };
    let unit = layout.scales.unit();
    let wanted: Vec<f32> =
        x.chunks(of_format.n).map(|x| extreme(x).abs() / of_format.largest / unit).collect();
    let d = extreme(&wanted) / f32::from(1 + 2 * of_format.most);
    let d = half::f16::from_f32(d);
    let most = f32::from(of_format.most);
    let scale = |i: usize| ((wanted[i] * inverse(d.to_f32()) - 1.0) / 2.0).round().clamp(0.0, most) as u8;
    let scales: Vec<u8> = (0..wanted.len()).map(scale).collect();
    put_scales(format, d.to_le_bytes(), &scales, out);
    let plain = Points::of(layout, format, false);
    let shifted = matches!(format, Format::IQ1_S | Format::IQ1_M).then(|| Points::of(layout, format, true));
    let mut down_before = None;
    for (group, x) in x.chunks_exact(8).enumerate() {
        let step = d.to_f32() * unit * f32::from(1 + 2 * scales[8 * group / of_format.n]);
        let x: [f32; 8] = std::array::from_fn(|i| x[i] * inverse(step));
        if let Some(shifted) = &shifted {
            // One shift for 32 weights of IQ1_S.
            let shifts = match (format, group % 4, down_before) {
                (Format::IQ1_S, 1.., Some(down)) => vec![down],
                _ => vec![false, true],
            };
            let nearest =
                shifts.into_iter().map(|down| (down, if down { shifted } else { &plain }.nearest(&x)));
            let best = nearest.min_by(|a, b| a.1.1.total_cmp(&b.1.1)).expect("a shift");
            down_before = Some(best.0);
            put_shifted(format, group, best.1.0, best.0, out);
        } else {
            put_signed(&plain, format, group, x, out);
        }
    }
}

/// The points of a grid in units of the code book; what four coordinates leave of eight is zero.
struct Points(Vec<[f32; 8]>);

impl Points {
    /// Those of a format: of the upper half of its code book, where that is shifted.
    fn of(layout: CodeLayout, format: Format, upper: bool) -> Self {
        let grid = Grid::of(format).expect("a format with a grid");
        let value = |code: u8| layout.value(code | u8::from(upper) << grid.bits);
        let point = |point: usize| {
            let mut values = [0.0; 8];
            for (i, out) in values[..grid.n_coordinates()].iter_mut().enumerate() {
                *out = value(grid.coordinate(point, i));
            }
            values
        };
        Self((0..grid.n_points()).map(point).collect())
    }

    /// The point that is nearest to `x`, and what is lost.
    fn nearest(&self, x: &[f32]) -> (usize, f32) {
        let mut padded = [0.0; 8];
        padded[..x.len()].copy_from_slice(x);
        let lost = |point: &[f32; 8]| -> f32 {
            std::iter::zip(&padded, point).map(|(x, value)| (x - value).powi(2)).sum()
        };
        let points = self.0.iter().map(lost).enumerate();
        points.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a grid has points")
    }
}

fn put_scales(format: Format, d: [u8; 2], scales: &[u8], out: &mut [u8]) {
    out[..2].copy_from_slice(&d);
    for (i, &scale) in scales.iter().enumerate() {
        let (at, shift) = match format {
            Format::IQ2_XXS => (2 + 8 * i + 7, 4),
            Format::IQ3_XXS => (66 + 4 * i + 3, 4),
            Format::IQ2_XS => (66 + i / 2, i % 2 * 4),
            Format::IQ2_S => (74 + i / 2, i % 2 * 4),
            Format::IQ3_S => (106 + i / 2, i % 2 * 4),
            Format::IQ1_S => (34 + 2 * i + 1, 4),
            _ => continue,
        };
        out[at] |= scale << shift;
    }
    if format == Format::IQ1_M {
        out[..2].fill(0);
        let d = u16::from_le_bytes(d);
        for (i, scales) in scales.chunks_exact(4).enumerate() {
            let of_scales = scales.iter().rev().fold(0, |word, scale| word << 3 | u16::from(*scale));
            let word = of_scales | (d >> (4 * i) & 15) << 12;
            out[48 + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
    }
}

fn put_shifted(format: Format, group: usize, point: usize, down: bool, out: &mut [u8]) {
    let (low, high) = (point as u8, (point >> 8) as u16);
    if format == Format::IQ1_S {
        out[2 + group] = low;
        let bits = (high << (3 * (group % 4)) | u16::from(down) << 15).to_le_bytes();
        std::iter::zip(&mut out[34 + group / 4 * 2..], bits).for_each(|(out, bits)| *out |= bits);
    } else {
        out[group] = low;
        out[32 + group / 2] |= (high as u8 | u8::from(down) << 3) << (group % 2 * 4);
    }
}

/// Eight weights: the signs and the points of their magnitudes.
fn put_signed(points: &Points, format: Format, group: usize, mut x: [f32; 8], out: &mut [u8]) {
    let has_seven_signs = matches!(format, Format::IQ2_XXS | Format::IQ2_XS | Format::IQ3_XXS);
    let n_negative = x.iter().filter(|x| x.is_sign_negative()).count();
    if has_seven_signs && n_negative % 2 == 1 {
        // The one that matters least gets the other sign.
        let least = (0..8).min_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).expect("eight");
        x[least] = -x[least];
    }
    let signs = x.iter().rev().fold(0u8, |signs, x| signs << 1 | u8::from(x.is_sign_negative()));
    x.iter_mut().for_each(|x| *x = x.abs());
    let n = Grid::of(format).expect("a format with a grid").n_coordinates();
    for (i, x) in x.chunks_exact(n).enumerate() {
        let (point, _) = points.nearest(x);
        let idx = group * (8 / n) + i;
        let (low, high) = (point as u8, (point >> 8) as u8);
        match format {
            Format::IQ2_XXS => out[2 + group / 4 * 8 + group % 4] = low,
            Format::IQ2_XS => {
                out[2 + 2 * group..][..2].copy_from_slice(&[low, high | (signs & 127) << 1]);
            }
            Format::IQ2_S => {
                out[2 + group] = low;
                out[66 + group / 4] |= high << (group % 4 * 2);
            }
            Format::IQ3_XXS => out[2 + idx] = low,
            _ => {
                out[2 + idx] = low;
                out[66 + idx / 8] |= high << (idx % 8);
            }
        }
    }
    match format {
        Format::IQ2_XXS | Format::IQ3_XXS => {
            let at = if format == Format::IQ2_XXS { 6 + group / 4 * 8 } else { 66 + group / 4 * 4 };
            let bits = (u32::from(signs & 127) << (group % 4 * 7)).to_le_bytes();
            std::iter::zip(&mut out[at..], bits).for_each(|(out, bits)| *out |= bits);
        }
        Format::IQ2_S => out[34 + group] = signs,
        Format::IQ3_S => out[74 + group] = signs,
        _ => {}
    }
}
