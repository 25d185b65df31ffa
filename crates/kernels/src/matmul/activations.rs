//! The left side of a product: rows of activations in the form that the tiles read. Refuses to know weights.
//!
//! Quantized rows have one scale and one zero point for 32 elements, `x ≈ scale (code + zero)`, so that the codes
//! span the block's own range: for a bell-shaped block an eighth less error than one scale from the largest magnitude
//! (ggml's Q8_0), for a block with an outlier nearly half. They are rounded once a call, whatever the number of matrices
//! they meet. A NaN or infinity makes its whole block's scale NaN, and so every output of that row: it is never
//! silently rounded to a number.
//!
//! Lanes with tiles take bfloat16 instead, eight significant bits for every element by itself, and sixteen where they meet
//! short floats: see [`super::bfloats`].

use std::ops::Range;

use super::bfloats::{BFLOAT_RECORD, Round, SPLIT_RECORD, Split};
use crate::memory::{AlignedBytes, Disjoint};
use crate::quant::{BLOCK, Format};
use crate::rows::WORTH_FORKING;
use crate::simd::{Lane, Task};
use crate::threads::ThreadPool;

/// Tokens that lie interleaved, block by block.
pub(crate) const GROUP: usize = 16;
/// Bytes of a group's quantized block: 16 × 32 codes, then the arrays below, sixteen values each.
pub(crate) const RECORD: usize = 960;
/// f32 scales.
pub(crate) const SCALE_AT: usize = 512;
/// Pairs of i16, the zero point and `-Σ codes`: what the weights' sum and their codes' offset are multiplied by.
pub(crate) const PAIR_AT: usize = 576;
/// f32 `Σ x` of the rounded elements: what a weight block's min is multiplied by.
pub(crate) const SUM_AT: usize = 640;
/// The pairs of the two half blocks.
pub(crate) const HALF_PAIR_AT: usize = 704;
/// The sums of the two half blocks.
pub(crate) const HALF_SUM_AT: usize = 832;
/// Bytes from one array of a half block to the other's.
pub(crate) const HALF_STEP: usize = 64;
/// Bytes of a group's float block: [16][32] f32.
pub(crate) const FLOAT_RECORD: usize = GROUP * BLOCK * 4;

/// Blocks of a group that one item of work takes.
const PART: usize = 16;

/// Below this magnitude (2^-100) a block counts as zeros: its scale's inverse would leave the floats' range.
const SMALLEST: f32 = 7.888_609e-31;

/// Rows of activations, ready for products with any number of matrices. Keeps its memory between uses.
#[derive(Debug, Default)]
pub struct Activations {
    n_rows: usize,
    cols: usize,
    /// One for each [`Form`].
    buffers: [Buffer; 5],
}

/// The records of one form.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Option<AlignedBytes>,
    /// How many of them the rows take; none when they are not kept in this form.
    n_bytes: usize,
}

/// The forms that activations are kept in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// Rounded, for quantized matrices.
    pub ints: bool,
    /// What quantizing left over, quantized again: products of quantized matrices then differ from exact ones by
    /// about 1e-5, at twice the arithmetic and the same pass over the weights. Lanes with tiles go without.
    pub residuals: bool,
    /// For matrices of floats of 16 bits.
    pub short_floats: bool,
    /// As they are, for matrices of floats of 32 bits.
    pub floats: bool,
}

impl Forms {
    /// What a matrix of this format needs.
    pub fn of(format: Format) -> Self {
        match format {
            Format::F32 => Self { floats: true, ..Self::default() },
            Format::F16 | Format::BF16 => Self { short_floats: true, ..Self::default() },
            _ => Self { ints: true, ..Self::default() },
        }
    }

    /// What either needs.
    pub fn and(self, other: Self) -> Self {
        Self {
            ints: self.ints || other.ints,
            residuals: self.residuals || other.residuals,
            short_floats: self.short_floats || other.short_floats,
            floats: self.floats || other.floats,
        }
    }
}

impl Activations {
    /// Rows it holds.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Takes the rows of `x`, `[n, cols]`, in the given forms.
    ///
    /// # Panics
    /// When `x` is not whole rows, and when there is no memory for them.
    pub fn set(&mut self, x: &[f32], cols: usize, forms: Forms, pool: &ThreadPool) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "rows of {cols} in {}", x.len());
        (self.n_rows, self.cols) = (x.len() / cols, cols);
        let n_groups = self.n_rows.div_ceil(GROUP);
        let n_blocks = cols.div_ceil(BLOCK);
        let has_tiles = pool.isa().has_tiles();
        for (form, is_kept) in [
            (Form::Bytes, forms.ints && !has_tiles),
            (Form::Residuals, forms.ints && forms.residuals && !has_tiles),
            (Form::BFloats, forms.ints && has_tiles),
            (Form::SplitBFloats, forms.short_floats && has_tiles),
            (Form::Floats, forms.floats || forms.short_floats && !has_tiles),
        ] {
            let n_records = if is_kept { n_groups * n_blocks } else { 0 };
            let buffer = &mut self.buffers[form as usize];
            buffer.n_bytes = n_records * form.record();
        }
        let n_bytes = self.buffers.each_ref().map(|buffer| buffer.n_bytes);
        let rooms = self.buffers.each_mut().map(Buffer::room);
        let n_parts = if self.n_rows * cols < WORTH_FORKING { 1 } else { n_blocks.div_ceil(PART) };
        let part = |item: usize| {
            let (g, part) = (item / n_parts, item % n_parts);
            let blocks = part * n_blocks / n_parts..(part + 1) * n_blocks / n_parts;
            let rows = Rows { x: &x[g * GROUP * cols..x.len().min((g + 1) * GROUP * cols)], cols, blocks };
            let at = g * n_blocks + rows.blocks.start;
            let n = rows.blocks.len();
            let records = |form: Form| {
                let (first, n) = if n_bytes[form as usize] > 0 { (at, n) } else { (0, 0) };
                // SAFETY: each part of a group's blocks is one item's.
                unsafe { rooms[form as usize].part(first * form.record(), n * form.record()) }
            };
            let (out, residuals) = (records(Form::Bytes), records(Form::Residuals));
            // SAFETY: the pool's lane is available.
            unsafe { pool.isa().run(Quantize { rows: &rows, out, residuals }) };
            // SAFETY: the same, and it has tiles where there are such records.
            unsafe { pool.isa().run(Round { rows: &rows, out: records(Form::BFloats) }) };
            // SAFETY: the same.
            unsafe { pool.isa().run(Split { rows: &rows, out: records(Form::SplitBFloats) }) };
            interleave(&rows, records(Form::Floats));
        };
        if n_parts == 1 && n_groups == 1 {
            pool.run_here(|| part(0));
        } else {
            pool.for_each(n_groups * n_parts, part);
        }
    }

    /// Where group `g`'s records begin; `None` when the rows were not kept in this form.
    pub(crate) fn records(&self, g: usize, form: Form) -> Option<&[u8]> {
        let n_bytes = self.cols.div_ceil(BLOCK) * form.record();
        let buffer = &self.buffers[form as usize];
        let bytes = buffer.bytes.as_ref().filter(|_| buffer.n_bytes > 0)?;
        Some(&bytes.as_slice()[g * n_bytes..][..n_bytes])
    }
}

/// One of the forms that records have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Quantized, for the dots of bytes.
    Bytes,
    /// What [`Form::Bytes`] leaves over, quantized again.
    Residuals,
    /// bfloat16, for the dots of tiles.
    BFloats,
    /// The same in two parts.
    SplitBFloats,
    /// As they are.
    Floats,
}

impl Form {
    /// Bytes of a group's block.
    pub(crate) const fn record(self) -> usize {
        match self {
            Self::Bytes | Self::Residuals => RECORD,
            Self::BFloats => BFLOAT_RECORD,
            Self::SplitBFloats => SPLIT_RECORD,
            Self::Floats => FLOAT_RECORD,
        }
    }
}

impl Buffer {
    /// Grows to at least `n_bytes`.
    fn room(&mut self) -> Disjoint<'_, u8> {
        Disjoint::new(AlignedBytes::at_least(&mut self.bytes, self.n_bytes))
    }
}

/// Some blocks of up to sixteen rows.
pub(super) struct Rows<'a> {
    x: &'a [f32],
    cols: usize,
    blocks: Range<usize>,
}

impl Rows<'_> {
    /// Calls `take(t, b, x)` for each row `t` and each block `b`, counted from the first of these blocks; the last
    /// block of a row may be short.
    #[inline(always)]
    pub(super) fn each_block(&self, mut take: impl FnMut(usize, usize, &[f32])) {
        for (t, row) in self.x.chunks_exact(self.cols).enumerate() {
            let columns = self.blocks.start * BLOCK..self.cols.min(self.blocks.end * BLOCK);
            for (b, x) in row[columns].chunks(BLOCK).enumerate() {
                take(t, b, x);
            }
        }
    }
}

/// A block of 32, with zeros behind what is there.
#[inline(always)]
pub(super) fn whole<'a>(x: &'a [f32], room: &'a mut [f32; BLOCK]) -> &'a [f32] {
    if x.len() == BLOCK {
        return x;
    }
    room[..x.len()].copy_from_slice(x);
    room
}

/// Rows to a group's float records.
fn interleave(rows: &Rows<'_>, out: &mut [u8]) {
    if out.is_empty() {
        return;
    }
    rows.each_block(|t, b, x| {
        let out = &mut out[b * FLOAT_RECORD + t * BLOCK * 4..][..BLOCK * 4];
        out[..x.len() * 4].copy_from_slice(bytemuck::cast_slice(x));
        out[x.len() * 4..].fill(0);
    });
}

/// Rows to a group's quantized records; rows that are not there stay what they were.
struct Quantize<'a> {
    rows: &'a Rows<'a>,
    out: &'a mut [u8],
    /// As `out`, or empty.
    residuals: &'a mut [u8],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        if self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let record = &mut self.out[b * RECORD..][..RECORD];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded);
            // SAFETY: `x` has 32 elements and the record its size; the features are the caller's word.
            unsafe { quantize_block::<L>(x.as_ptr(), t, record.as_mut_ptr()) };
            if !self.residuals.is_empty() {
                let rest = rest(x, t, record);
                let record = &mut self.residuals[b * RECORD..][..RECORD];
                // SAFETY: as above.
                unsafe { quantize_block::<L>(rest.as_ptr(), t, record.as_mut_ptr()) };
            }
        });
    }
}

/// What the record of row `t` leaves over of `x`.
#[inline(always)]
fn rest(x: &[f32], t: usize, record: &[u8]) -> [f32; BLOCK] {
    let word = |at: usize| {
        let at = at + 4 * t;
        [record[at], record[at + 1], record[at + 2], record[at + 3]]
    };
    let scale = f32::from_le_bytes(word(SCALE_AT));
    let zero = i32::from(u32::from_le_bytes(word(PAIR_AT)) as i16);
    std::array::from_fn(|i| x[i] - scale * (i32::from(record[t * BLOCK + i] as i8) + zero) as f32)
}

#[inline(always)]
pub(crate) unsafe fn quantize_block<L: Lane>(x: *const f32, t: usize, record: *mut u8) {
    /// Adding it rounds to the nearest integer (even in a tie), which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: 32 floats at `x`, a record at `record`, `t` below sixteen.
    unsafe {
        let (a, b) = (L::load(x), L::load(x.add(16)));
        let (scale, zero) = scale_and_zero::<L>(a, b);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut sums = [0i32; 2];
        for (half, v) in [a, b].into_iter().enumerate() {
            let rounded = L::add(L::mul(v, L::splat(inverse)), L::splat(ROUND));
            let mut codes = L::isub(L::bits(rounded), L::isplat(ROUND.to_bits() as i32 + zero));
            if inverse == 0.0 {
                codes = L::isplat(0);
            }
            L::istore_i8(record.add(t * BLOCK + half * 16).cast(), codes);
            sums[half] = L::isum(codes);
        }
        let put = |at: usize, word: u32| record.add(at).cast::<u32>().add(t).write_unaligned(word);
        let pair = |sum: i32| zero as u32 & 0xFFFF | (-sum as u32) << 16;
        let total = |sum: i32, n: i32| (scale * (sum + n * zero) as f32).to_bits();
        put(SCALE_AT, scale.to_bits());
        put(PAIR_AT, pair(sums[0] + sums[1]));
        put(SUM_AT, total(sums[0] + sums[1], 32));
        for (half, sum) in sums.into_iter().enumerate() {
            put(HALF_PAIR_AT + half * HALF_STEP, pair(sum));
            put(HALF_SUM_AT + half * HALF_STEP, total(sum, 16));
        }
    }
}

/// The scale and zero point of a block: codes `round(x / scale) - zero` lie in -127..=127 and zero in ±4096.
#[inline(always)]
unsafe fn scale_and_zero<L: Lane>(a: L::F, b: L::F) -> (f32, i32) {
    // SAFETY: no memory is touched.
    unsafe {
        let magnitude = |v| L::iand(L::bits(v), L::isplat(i32::MAX));
        // As integers the magnitudes sort like the numbers, with NaN above infinity.
        let magnitude = f32::from_bits(L::ilargest(L::imax(magnitude(a), magnitude(b))) as u32);
        if magnitude < SMALLEST {
            return (0.0, 0);
        }
        if !magnitude.is_finite() {
            return (f32::NAN, 0);
        }
        let (low, high) = (L::smallest(L::min(a, b)), L::largest(L::max(a, b)));
        // 253 steps leave half a step at either end for the rounding of the zero point. A narrow range far from zero
        // keeps a relative precision of 1/8192, which bounds the zero point.
        let step = high / 253.0 - low / 253.0;
        let least = magnitude / 4096.0;
        let scale = if step > least { step } else { least };
        let center = (high * 0.5 + low * 0.5) / scale;
        (scale, center.round_ties_even() as i32)
    }
}
