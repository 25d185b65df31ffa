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

use std::cell::RefCell;
use std::ops::Range;

use super::bfloats::{ROW_BYTES, Round};
use super::bytes::{Quantize, RECORD};
use crate::memory::AlignedBytes;
use crate::quant::{BLOCK, Format};
use crate::rows::{InverseRms, Scale, WORTH_FORKING};
use crate::simd::Isa;
use crate::threads::ThreadPool;

/// Tokens that lie interleaved, block by block.
pub(crate) const GROUP: usize = 16;
/// Bytes of a group's float block: [16][32] f32.
pub(crate) const FLOAT_RECORD: usize = GROUP * BLOCK * 4;

/// Blocks of a group that one item of work takes.
const PART: usize = 16;

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
        self.take(x, cols, None, forms, pool);
    }

    /// The same of normed rows, bit by bit what [`crate::rows::rms_norm`] gives, without a pass of its own over them.
    ///
    /// # Panics
    /// When `x` is not whole rows of the norm's width, and when there is no memory for them.
    pub fn set_normed(&mut self, x: &[f32], norm: RowNorm<'_>, forms: Forms, pool: &ThreadPool) {
        self.take(x, norm.gain.len(), Some(norm), forms, pool);
    }

    fn take(&mut self, x: &[f32], cols: usize, norm: Option<RowNorm<'_>>, forms: Forms, pool: &ThreadPool) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "rows of {cols} in {}", x.len());
        self.reserve(x.len() / cols, cols, forms, pool.isa());
        let (n_groups, n_blocks) = (self.n_rows.div_ceil(GROUP), self.n_blocks());
        let n_parts = match norm {
            _ if self.n_rows * cols < WORTH_FORKING => 1,
            None => n_blocks.div_ceil(PART),
            // Each part looks at its whole rows first.
            Some(_) => n_blocks.div_ceil(PART).min(pool.n_threads().div_ceil(n_groups)),
        };
        let part = |item: usize| {
            let (g, part) = (item / n_parts, item % n_parts);
            let blocks = part * n_blocks / n_parts..(part + 1) * n_blocks / n_parts;
            let rows = Rows { x: &x[g * GROUP * cols..x.len().min((g + 1) * GROUP * cols)], cols, blocks };
            // SAFETY: each part of a group's blocks is one item's, and the rows are borrowed uniquely.
            let mut records = unsafe { self.records_to_put(g, rows.blocks.clone()) };
            match norm {
                None => records.put(&rows, pool.isa()),
                Some(norm) => norm.each_part(&rows, pool.isa(), |rows| {
                    records.put(rows, pool.isa());
                    records.skip(rows.blocks.len());
                }),
            }
        };
        if n_parts == 1 && n_groups == 1 {
            pool.run_here(|| part(0));
        } else {
            pool.for_each(n_groups * n_parts, part);
        }
    }

    /// Makes room for so many rows in these forms; what is in it is unspecified.
    ///
    /// # Panics
    /// When there is no memory for them.
    pub(super) fn reserve(&mut self, n_rows: usize, cols: usize, forms: Forms, isa: Isa) {
        (self.n_rows, self.cols) = (n_rows, cols);
        let n_records = n_rows.div_ceil(GROUP) * self.n_blocks();
        let has_tiles = isa.has_tiles();
        for (form, is_kept) in [
            (Form::Bytes, forms.ints && !has_tiles),
            (Form::Residuals, forms.ints && forms.residuals && !has_tiles),
            (Form::BFloats, forms.ints && has_tiles),
            (Form::SplitBFloats, forms.short_floats && has_tiles),
            (Form::Floats, forms.floats || forms.short_floats && !has_tiles),
        ] {
            let n_bytes = if is_kept { n_records * self.record(form) } else { 0 };
            let buffer = &mut self.buffers[form as usize];
            buffer.n_bytes = n_bytes;
            AlignedBytes::at_least(&mut buffer.bytes, buffer.n_bytes);
        }
    }

    /// Where some blocks of group `g` are to be put.
    ///
    /// # Safety
    /// No one else may have these blocks meanwhile, and whoever lets several threads put some must have borrowed the rows
    /// uniquely.
    pub(super) unsafe fn records_to_put(&self, g: usize, blocks: Range<usize>) -> Records<'_> {
        let first = g * self.n_blocks() + blocks.start;
        let records = |form: Form| {
            let buffer = &self.buffers[form as usize];
            let bytes = buffer.bytes.as_ref().filter(|_| buffer.n_bytes > 0);
            let record = self.record(form);
            // SAFETY: blocks are one caller's, by his word.
            bytes.map_or(&mut [][..], |bytes| unsafe { bytes.part(first * record, blocks.len() * record) })
        };
        Records {
            n_tokens: self.n_tokens(),
            bytes: records(Form::Bytes),
            residuals: records(Form::Residuals),
            bfloats: records(Form::BFloats),
            split: records(Form::SplitBFloats),
            floats: records(Form::Floats),
        }
    }

    /// Where group `g`'s records begin; `None` when the rows were not kept in this form.
    pub(crate) fn records(&self, g: usize, form: Form) -> Option<&[u8]> {
        let n_bytes = self.n_blocks() * self.record(form);
        let buffer = &self.buffers[form as usize];
        let bytes = buffer.bytes.as_ref().filter(|_| buffer.n_bytes > 0)?;
        Some(&bytes.as_slice()[g * n_bytes..][..n_bytes])
    }

    /// Bytes of a record.
    pub(crate) fn record(&self, form: Form) -> usize {
        form.record(self.n_tokens())
    }

    /// Tokens that records have room for: a group that is alone is not filled up.
    fn n_tokens(&self) -> usize {
        self.n_rows.min(GROUP)
    }

    /// Blocks of a row.
    fn n_blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }
}

/// A norm of whole rows (arXiv:1910.07467): `x / sqrt(mean(x²) + eps) * gain`.
#[derive(Debug, Clone, Copy)]
pub struct RowNorm<'a> {
    /// As long as a row.
    pub gain: &'a [f32],
    /// Keeps the root away from zero.
    pub eps: f32,
}

thread_local! {
    /// Normed columns of a group of rows, on their way to records.
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl RowNorm<'_> {
    /// Calls `take` with one part after the other of the rows' blocks, normed, as rows of their own.
    fn each_part(&self, rows: &Rows<'_>, isa: Isa, mut take: impl FnMut(&Rows<'_>)) {
        let mut inverses = [0.0; GROUP];
        let whole = || rows.x.chunks_exact(rows.cols);
        for (inverse, x) in inverses.iter_mut().zip(whole()) {
            // SAFETY: the pool's lane is available.
            *inverse = unsafe { isa.run(InverseRms { x, eps: self.eps }) };
        }
        NORMED.with_borrow_mut(|room| {
            for first in rows.blocks.clone().step_by(PART) {
                let n_blocks = PART.min(rows.blocks.end - first);
                let columns = first * BLOCK..rows.cols.min((first + n_blocks) * BLOCK);
                let cols = columns.len();
                room.resize(room.len().max(GROUP * cols), 0.0);
                for ((x, out), inverse) in whole().zip(room.chunks_exact_mut(cols)).zip(inverses) {
                    let (x, gain) = (&x[columns.clone()], &self.gain[columns.clone()]);
                    // SAFETY: the pool's lane is available.
                    unsafe { isa.run(Scale { x, inverse, gain, out }) };
                }
                take(&Rows { x: &room[..whole().len() * cols], cols, blocks: 0..n_blocks });
            }
        });
    }
}

/// Some blocks of a group in all forms: a record a block, or none.
pub(super) struct Records<'a> {
    /// Tokens that they have room for.
    n_tokens: usize,
    bytes: &'a mut [u8],
    residuals: &'a mut [u8],
    bfloats: &'a mut [u8],
    split: &'a mut [u8],
    floats: &'a mut [u8],
}

impl Records<'_> {
    /// Writes the first of them.
    pub(super) fn put(&mut self, rows: &Rows<'_>, isa: Isa) {
        // SAFETY: the pool's lane is available.
        unsafe { isa.run(Quantize { rows, out: self.bytes, residuals: self.residuals }) };
        // SAFETY: the same, and it has tiles where there are such records.
        unsafe { isa.run(Round::<1> { rows, n_tokens: self.n_tokens, out: self.bfloats }) };
        // SAFETY: the same.
        unsafe { isa.run(Round::<2> { rows, n_tokens: self.n_tokens, out: self.split }) };
        interleave(rows, self.floats);
    }

    /// Goes on behind so many blocks.
    fn skip(&mut self, n_blocks: usize) {
        for (records, form) in [
            (&mut self.bytes, Form::Bytes),
            (&mut self.residuals, Form::Residuals),
            (&mut self.bfloats, Form::BFloats),
            (&mut self.split, Form::SplitBFloats),
            (&mut self.floats, Form::Floats),
        ] {
            let n_bytes = records.len().min(n_blocks * form.record(self.n_tokens));
            *records = &mut std::mem::take(records)[n_bytes..];
        }
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
    /// Bytes of a group's block. Those that tiles read have room for `n_tokens`, so that a single token's lie side by side:
    /// with gaps they would share a few sets of the first cache. The others always have room for sixteen.
    pub(crate) const fn record(self, n_tokens: usize) -> usize {
        match self {
            Self::Bytes | Self::Residuals => RECORD,
            Self::BFloats => n_tokens * ROW_BYTES,
            Self::SplitBFloats => n_tokens * 2 * ROW_BYTES,
            Self::Floats => FLOAT_RECORD,
        }
    }
}

/// Some blocks of up to sixteen rows.
pub(super) struct Rows<'a> {
    x: &'a [f32],
    cols: usize,
    blocks: Range<usize>,
}

impl<'a> Rows<'a> {
    /// Rows of `cols`, whole.
    pub(super) fn whole(x: &'a [f32], cols: usize) -> Self {
        Self { x, cols, blocks: 0..cols.div_ceil(BLOCK) }
    }

    /// How many there are.
    pub(super) fn n(&self) -> usize {
        self.x.len() / self.cols
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Block `b` of a row, counted from the first of these blocks; the last of a row may be short.
    #[inline(always)]
    pub(super) fn block(&self, row: usize, b: usize) -> &[f32] {
        let first = (self.blocks.start + b) * BLOCK;
        &self.x[row * self.cols..][first..self.cols.min(first + BLOCK)]
    }

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
