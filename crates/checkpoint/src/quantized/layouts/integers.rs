//! Layers stored as integers with scales for groups of columns. An element is `(code - zero) * scale`. The
//! differences of code and zero point are small integers again: with scales that F16 represents exactly they
//! are blocks of Q4_0, Q5_0 or Q8_0, exactly. Layers that do not fit are held as F32. Does not know where
//! codes are stored.

use half::f16;
use throng_kernels::quant::Format;

use super::super::DecodeError;
use super::super::layer::Layer;

/// Number of elements of a block of the formats that hold integers.
const BLOCK: usize = 32;

/// The integers of a layer and their scales.
pub(super) struct Integers {
    shape: [usize; 2],
    /// Code less zero point, row after row.
    differences: Vec<i16>,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    /// The group of each column.
    groups: Vec<usize>,
    n_groups: usize,
}

/// The smallest format of blocks that represents all integers of `bits` bits; with nine, F32.
pub(super) fn usual_format(bits: usize) -> Format {
    match bits {
        0..=4 => Format::Q4_0,
        5 => Format::Q5_0,
        6..=8 => Format::Q8_0,
        _ => Format::F32,
    }
}

/// Number of 32-bit words of `n` codes of `bits` bits.
pub(super) fn n_words(n: usize, bits: usize) -> usize {
    n / 32 * bits + (n % 32 * bits).div_ceil(32)
}

/// Code number `i` of a run of words.
pub(super) fn code_at(word: impl Fn(usize) -> u32, bits: usize, i: usize) -> u32 {
    let (at, shift) = (i * bits / 32, i * bits % 32);
    let mut code = word(at) >> shift;
    if shift + bits > 32 {
        code |= word(at + 1) << (32 - shift);
    }
    code & ((1 << bits) - 1)
}

/// The group of each column: that of its position, or one of its own choice.
pub(super) fn groups_of(
    layer: &Layer<'_>,
    end: &str,
    group: usize,
    n_groups: usize,
) -> Result<Vec<usize>, DecodeError> {
    match layer.find(end) {
        None => Ok(in_order(layer.shape[1], group)),
        Some(_) => chosen_groups(layer, end, n_groups),
    }
}

pub(super) fn in_order(cols: usize, group: usize) -> Vec<usize> {
    (0..cols).map(|col| col / group).collect()
}

fn chosen_groups(layer: &Layer<'_>, end: &str, n_groups: usize) -> Result<Vec<usize>, DecodeError> {
    let groups = layer.integers(end, &[layer.shape[1]])?;
    match groups.iter().find(|&&group| group as usize >= n_groups) {
        None => Ok(groups.into_iter().map(|group| group as usize).collect()),
        Some(group) => Err(DecodeError::Tensor {
            name: format!("{}.{end}", layer.name),
            expected: format!("groups below {n_groups}"),
            found: group.to_string(),
        }),
    }
}

/// Transposes `[groups, rows]` to `[rows, groups]`.
pub(super) fn by_row(scales: &[f32], n_groups: usize, rows: usize) -> Vec<f32> {
    (0..rows).flat_map(|row| (0..n_groups).map(move |group| scales[group * rows + row])).collect()
}

impl Integers {
    pub(super) fn new(
        shape: [usize; 2],
        difference: impl Fn(usize, usize) -> i16,
        scales: Vec<f32>,
        groups: Vec<usize>,
        n_groups: usize,
    ) -> Self {
        let [rows, cols] = shape;
        let differences = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
        let differences = differences.map(|(row, col)| difference(row, col)).collect();
        Self { shape, differences, scales, groups, n_groups }
    }

    /// Encodes in the smallest format that has all numbers exactly.
    pub(super) fn encode(&self) -> (Format, Vec<u8>) {
        let (least, most) =
            self.differences.iter().fold((0, 0), |(least, most), &d| (least.min(d), most.max(d)));
        let formats = [
            (Format::Q4_0, -8, 7),
            (Format::Q5_0, -16, 15),
            (Format::Q8_0, i16::from(i8::MIN), i16::from(i8::MAX)),
        ];
        let fitting = formats.iter().find(|(_, low, high)| least >= *low && most <= *high);
        match fitting.filter(|_| self.has_blocks() && self.scales.iter().all(is_f16)) {
            Some(&(format, ..)) => (format, self.blocks(format)),
            None => (Format::F32, self.floats()),
        }
    }

    /// Whether all columns of a block have one scale.
    fn has_blocks(&self) -> bool {
        let blocks = self.groups.chunks(BLOCK);
        self.shape[1].is_multiple_of(BLOCK)
            && blocks.clone().all(|block| block.iter().all(|g| *g == block[0]))
    }

    fn rows(&self) -> impl Iterator<Item = (&[i16], &[f32])> {
        self.differences.chunks(self.shape[1]).zip(self.scales.chunks(self.n_groups))
    }

    fn blocks(&self, format: Format) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.differences.len() / BLOCK * format.block_bytes());
        for (differences, scales) in self.rows() {
            for (block, groups) in differences.chunks(BLOCK).zip(self.groups.chunks(BLOCK)) {
                bytes.extend(f16::from_f32(scales[groups[0]]).to_le_bytes());
                let code = |i: usize| match format {
                    Format::Q4_0 => (block[i] + 8) as u32,
                    _ => (block[i] + 16) as u32,
                };
                if format == Format::Q8_0 {
                    bytes.extend(block.iter().map(|&d| d as i8 as u8));
                    continue;
                }
                if format == Format::Q5_0 {
                    let fifth = (0..BLOCK).fold(0, |bits, i| bits | (code(i) >> 4 & 1) << i);
                    bytes.extend(fifth.to_le_bytes());
                }
                bytes.extend((0..BLOCK / 2).map(|i| (code(i) & 15 | (code(i + BLOCK / 2) & 15) << 4) as u8));
            }
        }
        bytes
    }

    fn floats(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.differences.len() * size_of::<f32>());
        for (differences, scales) in self.rows() {
            let numbers = differences.iter().zip(&self.groups);
            bytes.extend(numbers.flat_map(|(&d, &group)| (f32::from(d) * scales[group]).to_le_bytes()));
        }
        bytes
    }
}

fn is_f16(scale: &f32) -> bool {
    f16::from_f32(*scale).to_f32() == *scale
}
