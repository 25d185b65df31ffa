//! Layers stored as integers with scales for groups of columns, and zero points: AWQ, GPTQ, and the packed
//! and plain integers of compressed-tensors. An element is `(code - zero) * scale`. The differences of code
//! and zero point are small integers again: with scales that F16 has exactly they are blocks of Q4_0, Q5_0 or
//! Q8_0, exactly. What does not fit is held as F32.

use half::f16;
use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::{DecodeError, Layer};

/// Elements of a block of the formats that hold integers.
const BLOCK: usize = 32;
/// Which of eight neighbouring rows stands at each place of a word of AWQ.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The integers of a layer and their scales.
struct Integers {
    shape: [usize; 2],
    /// Code less zero point, row after row.
    differences: Vec<i16>,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    /// The group of each column.
    groups: Vec<usize>,
    n_groups: usize,
}

/// AWQ (arXiv:2306.00978): words of eight rows at a column, `[in, out / 8]`.
pub(super) fn awq(layer: &Layer<'_>, group: Option<usize>) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let group = group.unwrap_or(cols).max(1);
    let (n_groups, n_words) = (cols.div_ceil(group), rows.div_ceil(8));
    let words = layer.integers("qweight", &[cols, n_words])?;
    let zeros = layer.integers("qzeros", &[n_groups, n_words])?;
    let scales = layer.floats("scales", &[n_groups, rows])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let place: [usize; 8] = std::array::from_fn(|row| AWQ_ORDER.iter().position(|&r| r == row).unwrap_or(0));
    let at = |words: &[u32], i: usize, row: usize| words[i * n_words + row / 8] >> (4 * place[row % 8]) & 15;
    let difference = |row, col: usize| at(&words, col, row) as i16 - at(&zeros, col / group, row) as i16;
    let scales = by_row(&scales, n_groups, rows);
    Ok(Integers::new(layer.shape, difference, scales, in_order(cols, group), n_groups).encode())
}

/// AWQ for matrices times vectors: words of eight neighbouring columns of a row, `[out, in / 8]`; zero points
/// and scales of a row's groups are padded to whole loads of its kernel.
pub(super) fn awq_gemv(layer: &Layer<'_>, group: Option<usize>) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let group = group.unwrap_or(cols).max(1);
    let (n_groups, n_words) = (cols.div_ceil(group), cols.div_ceil(8));
    let zero_words = n_groups.div_ceil(8).next_multiple_of((128 / group).clamp(1, 4));
    let words = layer.integers("qweight", &[rows, n_words])?;
    let zeros = layer.integers("qzeros", &[rows, zero_words])?;
    let padded = layer.floats("scales", &[rows, 8 * zero_words])?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let at = |words: &[u32], n: usize, row: usize, i: usize| words[row * n + i / 8] >> (4 * (i % 8)) & 15;
    let difference = |row: usize, col: usize| {
        at(&words, n_words, row, col) as i16 - at(&zeros, zero_words, row, col / group) as i16
    };
    let scales = padded.chunks(8 * zero_words).flat_map(|row| &row[..n_groups]).copied().collect();
    Ok(Integers::new(layer.shape, difference, scales, in_order(cols, group), n_groups).encode())
}

/// GPTQ (arXiv:2210.17323): the codes of a row one after the other in words, `[in * bits / 32, out]`; with
/// act-order, each column has a group of its own choice. A code of three bits may lie in two words.
pub(super) fn gptq(
    layer: &Layer<'_>,
    bits: usize,
    group: Option<usize>,
    zeros_are_less_one: bool,
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    // Other widths leave it open how many columns there are.
    if bits == 3 && !cols.is_multiple_of(32) {
        return Err(DecodeError::Tensor {
            name: format!("{}.qweight", layer.name),
            expected: "a multiple of 32 columns".to_owned(),
            found: format!("{cols}"),
        });
    }
    let group = group.unwrap_or(cols).max(1);
    let n_groups = cols.div_ceil(group);
    let words = layer.integers("qweight", &[n_words(cols, bits), rows])?;
    let n_zero_words = n_words(rows, bits);
    let zeros = layer.integers("qzeros", &[n_groups, n_zero_words])?;
    let scales = layer.floats("scales", &[n_groups, rows])?;
    let groups = groups_of(layer, "g_idx", group, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let code = |row: usize, col: usize| code_at(|word| words[word * rows + row], bits, col);
    let zero = |row: usize, group: usize| {
        let stored = code_at(|word| zeros[group * n_zero_words + word], bits, row);
        // A zero point of 2^bits is stored as the largest code.
        stored + u32::from(zeros_are_less_one)
    };
    let difference = |row: usize, col: usize| code(row, col) as i16 - zero(row, groups[col]) as i16;
    let scales = by_row(&scales, n_groups, rows);
    Ok(Integers::new(layer.shape, difference, scales, groups.clone(), n_groups).encode())
}

/// Packed integers of compressed-tensors: a row's codes one after the other in words of 32 bits, `[out, in *
/// bits / 32]`, with an offset of half their range. A code may lie in two words.
pub(super) fn packed(
    layer: &Layer<'_>,
    bits: usize,
    group: Option<usize>,
    is_symmetric: bool,
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let group = group.unwrap_or(cols).max(1);
    let (n_groups, n_words) = (cols.div_ceil(group), n_words(cols, bits));
    let words = layer.integers("weight_packed", &[rows, n_words])?;
    check_shape(layer)?;
    let scale = layer.find("weight_scale").map(|scale| scale.shape);
    // One scale for all rows.
    let is_one = scale == Some(&[1][..]) && n_groups == 1 && is_symmetric;
    let scales = match is_one {
        true => vec![layer.floats("weight_scale", &[1])?[0]; rows],
        false => layer.floats("weight_scale", &[rows, n_groups])?,
    };
    let zeros = match is_symmetric {
        true => None,
        false => Some(layer.integers("weight_zero_point", &[self::n_words(rows, bits), n_groups])?),
    };
    let groups = groups_of(layer, "weight_g_idx", group, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let code = |row: usize, col: usize| code_at(|word| words[row * n_words + word], bits, col);
    let zero = |row: usize, group: usize| match &zeros {
        None => 1 << (bits - 1),
        Some(zeros) => code_at(|word| zeros[word * n_groups + group], bits, row),
    };
    let difference = |row: usize, col: usize| code(row, col) as i16 - zero(row, groups[col]) as i16;
    Ok(Integers::new(layer.shape, difference, scales, groups.clone(), n_groups).encode())
}

/// A byte for each integer, with a scale for each group, for each row, or one for all.
pub(super) fn int8(
    layer: &Layer<'_>,
    group: Option<usize>,
    is_symmetric: bool,
) -> Result<(Format, Vec<u8>), DecodeError> {
    let [rows, cols] = layer.shape;
    let codes = layer.tensor("weight", &[Dtype::I8], &layer.shape)?;
    let width = group.unwrap_or(cols).max(1);
    let n_groups = cols.div_ceil(width);
    let shape: &[usize] = match layer.find("weight_scale").map(|scale| scale.shape) {
        _ if group.is_some() => &[rows, n_groups],
        Some([]) => &[],
        Some([1]) if rows != 1 => &[1],
        Some([_]) => &[rows],
        _ => &[rows, 1],
    };
    let scales = layer.floats("weight_scale", shape)?;
    let zeros = match is_symmetric {
        true => None,
        false => Some(layer.tensor("weight_zero_point", &[Dtype::I8], shape)?.data),
    };
    let groups = groups_of(layer, "weight_g_idx", width, n_groups)?;
    if let Some(nothing) = layer.checked() {
        return Ok(nothing);
    }
    let zero = |i: usize| zeros.map_or(0, |zeros| i16::from(zeros[i % zeros.len()] as i8));
    let difference = |row: usize, col: usize| {
        i16::from(codes.data[row * cols + col] as i8) - zero(row * n_groups + groups[col])
    };
    let by_group = (0..rows * n_groups).map(|i| scales[i % scales.len()]).collect();
    Ok(Integers::new(layer.shape, difference, by_group, groups.clone(), n_groups).encode())
}

/// The shape that is stored beside packed codes, whose last word need not be full.
fn check_shape(layer: &Layer<'_>) -> Result<(), DecodeError> {
    let Some(stored) = layer.find("weight_shape") else { return Ok(()) };
    let dims: Vec<u64> = match stored.dtype {
        Dtype::I64 => stored.data.as_chunks().0.iter().map(|n| u64::from_le_bytes(*n)).collect(),
        Dtype::I32 => stored.data.as_chunks().0.iter().map(|n| u64::from(u32::from_le_bytes(*n))).collect(),
        _ => Vec::new(),
    };
    if dims == layer.shape.map(|n| n as u64) {
        return Ok(());
    }
    Err(DecodeError::Tensor {
        name: format!("{}.weight_shape", layer.name),
        expected: format!("{:?}", layer.shape),
        found: format!("{} {dims:?}", stored.dtype),
    })
}

/// Words of 32 bits that so many codes take.
fn n_words(n: usize, bits: usize) -> usize {
    n / 32 * bits + (n % 32 * bits).div_ceil(32)
}

/// Code number `i` of a run of words.
fn code_at(word: impl Fn(usize) -> u32, bits: usize, i: usize) -> u32 {
    let (at, shift) = (i * bits / 32, i * bits % 32);
    let mut code = word(at) >> shift;
    if shift + bits > 32 {
        code |= word(at + 1) << (32 - shift);
    }
    code & ((1 << bits) - 1)
}

/// The group of each column: that of its place, or one of its own choice.
fn groups_of(layer: &Layer<'_>, end: &str, group: usize, n_groups: usize) -> Result<Vec<usize>, DecodeError> {
    match layer.find(end) {
        None => Ok(in_order(layer.shape[1], group)),
        Some(_) => chosen_groups(layer, end, n_groups),
    }
}

fn in_order(cols: usize, group: usize) -> Vec<usize> {
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

/// From `[groups, rows]` to `[rows, groups]`.
fn by_row(scales: &[f32], n_groups: usize, rows: usize) -> Vec<f32> {
    (0..rows).flat_map(|row| (0..n_groups).map(move |group| scales[group * rows + row])).collect()
}

impl Integers {
    fn new(
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

    /// In the smallest format that has all numbers exactly.
    fn encode(&self) -> (Format, Vec<u8>) {
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
