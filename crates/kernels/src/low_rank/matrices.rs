//! The low-rank matrices of one adapter for one linear layer, in the layout that the kernel reads from front
//! to back. Does not compute.

use std::ops::Range;

use crate::quant::Format;

/// Number of elements of a vector.
pub(super) const VECTOR: usize = 16;
/// Number of rows of `A` that are stored together.
pub(super) const RANKS: usize = 4;

/// One pair of matrices: it changes some columns of the layer's output.
#[derive(Debug, Clone, Copy)]
pub struct LowRankPart<'a> {
    /// The first of these columns.
    pub first_col: usize,
    /// `[rank, cols]`, where `cols` are the columns of the layer's input.
    pub a: &'a [f32],
    /// `[n, rank]`, a row for each of the `n` columns of the output.
    pub b: &'a [f32],
    /// Number of rows of `A`, at least one.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
}

/// All pairs of one adapter for one linear layer.
#[derive(Debug)]
pub struct LowRank {
    cols: usize,
    parts: Vec<Part>,
    numbers: Numbers,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) first_col: usize,
    pub(super) n_cols: usize,
    pub(super) rank: usize,
    pub(super) scale: f32,
    /// Places of its matrices among the numbers.
    pub(super) a: Range<usize>,
    pub(super) b: Range<usize>,
}

/// `a`: `[rank / 4, cols / 16, 4, 16]`, then `b`: `[n_cols / 16, rank, 16]`, padded with zeros, of all parts:
/// one run of memory, so that the next data can be prefetched across matrices.
#[derive(Debug)]
pub(super) enum Numbers {
    F32(Vec<f32>),
    /// The bits of bfloat16.
    BF16(Vec<u16>),
}

impl LowRank {
    /// Packs pairs for an input of `cols` columns, in increasing columns of the output; numbers are kept in
    /// `format`, F32 or BF16 (rounded to nearest even). `None` when memory does not suffice.
    ///
    /// # Panics
    /// When the lengths do not fit, parts overlap or are out of order, or the format is another one.
    pub fn pack(cols: usize, parts: &[LowRankPart<'_>], format: Format) -> Option<Self> {
        let (mut end, mut n) = (0, 0);
        let mut packed = Vec::with_capacity(parts.len());
        for &LowRankPart { first_col, a, b, rank, scale } in parts {
            assert!(cols > 0 && rank > 0 && a.len() == rank * cols, "A of rank {rank} over {cols} columns");
            assert!(b.len().is_multiple_of(rank), "B of rank {rank}");
            assert!(first_col >= end, "parts overlap or are out of order");
            let n_cols = b.len() / rank;
            end = first_col + n_cols;
            let a = n..n + rank.next_multiple_of(RANKS) * cols.next_multiple_of(VECTOR);
            let b = a.end..a.end + n_cols.next_multiple_of(VECTOR) * rank;
            n = b.end;
            packed.push(Part { first_col, n_cols, rank, scale, a, b });
        }
        let numbers = match format {
            Format::F32 => Numbers::F32(pack(parts, &packed, n, cols, |x| x)?),
            Format::BF16 => Numbers::BF16(pack(parts, &packed, n, cols, bf16)?),
            _ => panic!("adapters are held in F32 or BF16, not in {}", format.name()),
        };
        Some(Self { cols, parts: packed, numbers })
    }

    /// Bytes that one pair takes: `rank` rows over `cols` columns of the input and `n_cols` of the output.
    pub fn bytes_of(rank: usize, cols: usize, n_cols: usize, format: Format) -> usize {
        let n_a = rank.next_multiple_of(RANKS).saturating_mul(cols.next_multiple_of(VECTOR));
        let n_b = n_cols.next_multiple_of(VECTOR).saturating_mul(rank);
        n_a.saturating_add(n_b).saturating_mul(if format == Format::F32 { 4 } else { 2 })
    }

    /// Number of columns of the layer's input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The column of the output after the last changed one.
    pub fn end_col(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first_col + part.n_cols)
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }
}

/// Packs the `n` numbers of all parts; `packed` gives their positions.
fn pack<N: Copy + Default>(
    parts: &[LowRankPart<'_>],
    packed: &[Part],
    n: usize,
    cols: usize,
    number: impl Fn(f32) -> N + Copy,
) -> Option<Vec<N>> {
    let mut numbers = zeros(n)?;
    for (part, at) in parts.iter().zip(packed) {
        pack_a(part.a, cols, number, &mut numbers[at.a.clone()]);
        pack_b(part.b, part.rank, number, &mut numbers[at.b.clone()]);
    }
    Some(numbers)
}

fn pack_a<N>(a: &[f32], cols: usize, number: impl Fn(f32) -> N, packed: &mut [N]) {
    let n_vectors = cols.div_ceil(VECTOR);
    for (r, row) in a.chunks_exact(cols).enumerate() {
        let panel = r / RANKS * n_vectors;
        for (c, &x) in row.iter().enumerate() {
            packed[((panel + c / VECTOR) * RANKS + r % RANKS) * VECTOR + c % VECTOR] = number(x);
        }
    }
}

fn pack_b<N>(b: &[f32], rank: usize, number: impl Fn(f32) -> N, packed: &mut [N]) {
    for (o, row) in b.chunks_exact(rank).enumerate() {
        for (r, &x) in row.iter().enumerate() {
            packed[(o / VECTOR * rank + r) * VECTOR + o % VECTOR] = number(x);
        }
    }
}

fn zeros<N: Copy + Default>(n: usize) -> Option<Vec<N>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(n).ok()?;
    zeros.resize(n, N::default());
    Some(zeros)
}

/// The bits of the nearest bfloat16, ties to even; a NaN stays one.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
