//! Rows whose elements are codes of short floats with scales, and the format that represents exactly their
//! numbers: a format of such codes, else BF16, else F32. Does not know where codes and scales are stored.

use std::borrow::Cow;

use throng_kernels::quant::{Format, e4m3_number};

use super::codes::{E2M1_BITS, e2m1, e8m0};
use crate::nvfp4;

/// Rows of `cols` columns: their indices, their codes, row after row and the first column in the lowest bits,
/// and the scale of each row and column.
pub(super) struct CodedRows<'a, R, S> {
    pub(super) rows: R,
    pub(super) cols: usize,
    pub(super) codes: Cow<'a, [u8]>,
    pub(super) scale: S,
}

impl<R: Iterator<Item = usize> + Clone, S> CodedRows<'_, R, S> {
    /// The row and the first column of each group of `n` columns, row after row.
    fn groups(&self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let cols = self.cols;
        self.rows.clone().flat_map(move |row| (0..cols).step_by(n.max(1)).map(move |col| (row, col)))
    }
}

impl<R: Iterator<Item = usize> + Clone, S: Fn(usize, usize) -> f32> CodedRows<'_, R, S> {
    /// Codes of E4M3, of which `wide` neighbouring columns have the same scale.
    pub(super) fn e4m3(&self, wide: usize) -> (Format, Vec<u8>) {
        if let Some(format) = self.e4m3_format(wide) {
            return (format, self.e4m3_blocks(format));
        }
        let table: [f32; 256] = std::array::from_fn(|code| e4m3_number(code as u8));
        let number = |((row, col), code): (_, &u8)| table[usize::from(*code)] * (self.scale)(row, col);
        shortest(self.groups(1).zip(&*self.codes).map(number))
    }

    /// The format that holds the codes and scales unchanged; `None` if its numbers would differ.
    fn e4m3_format(&self, wide: usize) -> Option<Format> {
        let all = |is: fn(f32) -> bool| self.groups(wide).all(|(row, col)| is((self.scale)(row, col)));
        // The formats have no NaN.
        if self.codes.iter().any(|code| code & 0x7f == 0x7f) {
            return None;
        }
        if has_whole_blocks(Format::MXFP8, self.cols, wide) && all(is_exponent) {
            Some(Format::MXFP8)
        } else if has_whole_blocks(Format::FP8, self.cols, wide) && all(is_ordinary) {
            Some(Format::FP8)
        } else {
            None
        }
    }

    fn e4m3_blocks(&self, format: Format) -> Vec<u8> {
        let n = format.block_elements();
        let mut blocks = Vec::with_capacity(self.codes.len() / n * format.block_bytes());
        for ((row, first), codes) in self.groups(n).zip(self.codes.chunks_exact(n)) {
            let scale = (self.scale)(row, first);
            match format {
                Format::MXFP8 => blocks.push((scale.to_bits() >> 23) as u8),
                _ => blocks.extend(scale.to_le_bytes()),
            }
            blocks.extend(codes);
        }
        blocks
    }
}

impl<R: Iterator<Item = usize> + Clone, S: Fn(usize, usize) -> u8> CodedRows<'_, R, S> {
    /// Codes of NVFP4, whose scales (E4M3) are multiplied with a factor.
    pub(super) fn nvfp4(&self, factor: f32) -> (Format, Vec<u8>) {
        let format = Format::NVFP4_SCALED;
        // The format has neither NaN nor signs of scales.
        let is_plain = |(row, col)| (self.scale)(row, col) < 0x7f;
        let is_exact = has_whole_blocks(format, self.cols, self.cols) && is_ordinary(factor);
        if is_exact && self.groups(nvfp4::GROUP).all(is_plain) {
            let n = format.block_elements();
            let mut blocks = Vec::with_capacity(self.codes.len() * 2 / n * format.block_bytes());
            for ((row, first), codes) in self.groups(n).zip(self.codes.chunks_exact(n / 2)) {
                let scales = std::array::from_fn(|group| (self.scale)(row, first + group * nvfp4::GROUP));
                blocks.extend(nvfp4::scaled_block(factor, scales, |i| four_bits(codes, i)));
            }
            return (format, blocks);
        }
        let number = |(i, (row, col))| {
            e2m1(four_bits(&self.codes, i)) * (e4m3_number((self.scale)(row, col)) * factor)
        };
        shortest(self.groups(1).enumerate().map(number))
    }
}

/// Code number `i` in the lowest bits.
fn four_bits(codes: &[u8], i: usize) -> u8 {
    codes[i / 2] >> (E2M1_BITS * (i % 2))
}

/// Whether a scale is a power of two with which MXFP8 has the product of every code.
fn is_exponent(scale: f32) -> bool {
    // The smallest one is not a normal number.
    let is_power = scale.to_bits() & 0x807f_ffff == 0 && scale > 0.0 || scale == e8m0(0);
    is_power && scale < 2.0_f32.powi(120)
}

/// Whether the product of a scale and any code is a normal number or zero, so that it is rounded once.
fn is_ordinary(scale: f32) -> bool {
    scale == 0.0 || (2.0_f32.powi(-110)..=2.0_f32.powi(110)).contains(&scale.abs())
}

/// The numbers as BF16 if that represents all of them exactly, else as F32.
fn shortest(numbers: impl Iterator<Item = f32>) -> (Format, Vec<u8>) {
    let numbers: Vec<f32> = numbers.collect();
    if numbers.iter().all(|x| x.to_bits() & 0xffff == 0) {
        let bytes = numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes());
        return (Format::BF16, bytes.collect());
    }
    (Format::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Whether rows of `cols` columns are whole blocks of the format with one scale each, if each `wide` columns
/// have a scale.
pub(super) fn has_whole_blocks(format: Format, cols: usize, wide: usize) -> bool {
    cols.is_multiple_of(format.block_elements())
        && (wide.is_multiple_of(format.block_elements()) || wide >= cols)
}
