//! The words of each layout. Does not know buffers.

use std::ops::Range;

use half::{bf16, f16};
use throng_kernels::quant::{Format, dequantize_row};

use super::{Part, padded};
use crate::kernel::WeightLayout;

/// Rows in the layout of the device.
pub(super) struct Packed {
    pub(super) layout: WeightLayout,
    pub(super) words: Vec<u32>,
    pub(super) scales_at: usize,
}

/// Packs rows of a part.
pub(super) fn pack(part: &Part<'_>, rows: Range<usize>, cols: usize) -> Packed {
    let format = part.tensors[0].format;
    let bytes = Rows { part, rows, cols, format };
    match format {
        Format::F32 => bytes.floats(WeightLayout::F32, 4),
        Format::F16 => bytes.floats(WeightLayout::F16, 2),
        Format::BF16 => bytes.floats(WeightLayout::BF16, 2),
        Format::Q8_0 => bytes.blocks(WeightLayout::Q8_0, 32, 2..34, 0..2),
        Format::Q4_0 => bytes.blocks(WeightLayout::Q4_0, 32, 2..18, 0..2),
        Format::Q4_1 => bytes.blocks(WeightLayout::Q4_1, 32, 4..20, 0..4),
        Format::Q5_0 => bytes.blocks(WeightLayout::Q5_0, 32, 2..22, 0..2),
        Format::Q5_1 => bytes.blocks(WeightLayout::Q5_1, 32, 4..24, 0..4),
        Format::MXFP4 => bytes.blocks(WeightLayout::MXFP4, 32, 1..17, 0..1),
        Format::Q4_K => bytes.blocks(WeightLayout::Q4_K, 256, 0..144, 0..0),
        Format::Q5_K => bytes.blocks(WeightLayout::Q5_K, 256, 0..176, 0..0),
        Format::Q6_K => bytes.blocks(WeightLayout::Q6_K, 256, 0..208, 208..210),
        _ => bytes.widened(),
    }
}

/// Some rows of a part.
struct Rows<'a> {
    part: &'a Part<'a>,
    rows: Range<usize>,
    cols: usize,
    format: Format,
}

impl Rows<'_> {
    fn row_bytes(&self) -> usize {
        self.format.bytes_of(self.cols).expect("rows are whole blocks")
    }

    /// Calls `each` with the bytes of every row. Omitted rows are zeros.
    fn each(&self, mut each: impl FnMut(&[u8])) {
        let row_bytes = self.row_bytes();
        let zeros = vec![0; row_bytes];
        let mut first = 0;
        for tensor in &self.part.tensors {
            let n = tensor.shape.iter().product::<usize>() / self.cols;
            let (start, end) = (self.rows.start.max(first), self.rows.end.min(first + n));
            for row in start..end.max(start) {
                let at = (row - first) * row_bytes;
                each(tensor.data.get(at..at + row_bytes).unwrap_or(&zeros));
            }
            first += n;
        }
    }

    /// Floats of `n_bytes` each, with zeros after the end of each row.
    fn floats(&self, layout: WeightLayout, n_bytes: usize) -> Packed {
        let row_words = padded(self.cols) * n_bytes / 4;
        let mut words = Vec::with_capacity(row_words * self.rows.len());
        self.each(|row| {
            let end = words.len() + row_words;
            let (whole, rest) = row.as_chunks::<4>();
            words.extend(whole.iter().map(|word| u32::from_le_bytes(*word)));
            if let [a, b] = rest {
                words.push(u32::from(u16::from_le_bytes([*a, *b])));
            }
            words.resize(end, 0);
        });
        Packed { layout, scales_at: words.len(), words }
    }

    /// Blocks of `n` elements: the bytes of a range, word after word, then those of another range.
    fn blocks(&self, layout: WeightLayout, n: usize, codes: Range<usize>, scales: Range<usize>) -> Packed {
        let n_blocks = self.rows.len() * self.cols / n;
        let block_bytes = self.format.block_bytes();
        let scales_at = n_blocks * (codes.len() / 4);
        let mut words = Vec::with_capacity(scales_at + (n_blocks * scales.len()).div_ceil(4));
        let mut apart = Vec::with_capacity(n_blocks * scales.len());
        self.each(|row| {
            for block in row.chunks_exact(block_bytes) {
                let (whole, _) = block[codes.clone()].as_chunks::<4>();
                words.extend(whole.iter().map(|word| u32::from_le_bytes(*word)));
                apart.extend_from_slice(&block[scales.clone()]);
            }
        });
        apart.resize(apart.len().next_multiple_of(4), 0);
        words.extend(apart.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
        Packed { layout, words, scales_at }
    }

    /// Numbers in the narrowest floats that represent all of them exactly.
    fn widened(&self) -> Packed {
        let mut numbers = Vec::with_capacity(self.rows.len() * padded(self.cols));
        self.each(|row| {
            let start = numbers.len();
            numbers.resize(start + padded(self.cols), 0.0_f32);
            dequantize_row(self.format, row, &mut numbers[start..start + self.cols]);
        });
        let fits =
            |round: fn(f32) -> f32| numbers.iter().all(|&number| round(number).to_bits() == number.to_bits());
        let pairs = |bits: fn(f32) -> u16| -> Vec<u32> {
            let pair = |pair: &[f32; 2]| u32::from(bits(pair[0])) | u32::from(bits(pair[1])) << 16;
            numbers.as_chunks::<2>().0.iter().map(pair).collect()
        };
        let (layout, words) = if fits(|number| f16::from_f32(number).to_f32()) {
            (WeightLayout::F16, pairs(|number| f16::from_f32(number).to_bits()))
        } else if fits(|number| bf16::from_f32(number).to_f32()) {
            (WeightLayout::BF16, pairs(|number| bf16::from_f32(number).to_bits()))
        } else {
            (WeightLayout::F32, numbers.iter().map(|number| number.to_bits()).collect())
        };
        Packed { layout, scales_at: words.len(), words }
    }
}
