//! Activations packed into the forms that the register and AMX tiles read. Does not know weights.
//!
//! int8 activations have one scale and one zero point for each 32 elements, `x ≈ scale (code + zero)`, so
//! that the codes cover the block's own range: for normally distributed blocks the error is an eighth lower
//! than with one scale from the largest magnitude (ggml's Q8_0), for a block with an outlier nearly half.
//! Activations are quantized once a call, whatever the number of matrices. A NaN or infinity makes its
//! block's scale NaN, and so every output of that token: it is never silently rounded to a number.
//!
//! AMX takes bf16 instead, and two bf16 parts for 16-bit float weights: see [`super::activations_bf16`].

use std::cell::RefCell;
use std::ops::Range;

use throng_os::memory::AlignedBytes;

use super::activation_rows::{GROUP, Rows};
use super::activations_bf16::Round;
use super::activations_int8::Quantize;
use crate::formats::Elements;
use crate::layout::{RECORD, ROW_BYTES};
use crate::quant::{BLOCK, Format};
use crate::rows::{InverseRms, Scale, WORTH_FORKING};
use crate::simd::Isa;
use crate::threads::ThreadPool;

/// Bytes of a group's f32 record: [16][32].
pub(crate) const FLOAT_RECORD: usize = GROUP * BLOCK * 4;

/// Number of blocks of a group in one work item.
const PART: usize = 16;

/// A matrix of activations, packed for products with any number of weight matrices. Keeps its allocations
/// between uses.
#[derive(Debug, Default)]
pub struct Activations {
    n_rows: usize,
    cols: usize,
    /// Buffers, one for each [`Form`].
    buffers: [Buffer; 6],
}

/// The records of one form.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Option<AlignedBytes>,
    /// Bytes in use; zero when the activations are not packed in this form.
    n_bytes: usize,
}

/// The forms to pack activations into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// Form for quantized matrices but MXFP4: int8, or bf16 with AMX.
    pub ints: bool,
    /// Whether forms for MXFP4 matrices are made: int8, or two bf16 parts with AMX. Models in MXFP4 are
    /// trained with such activations, and small errors choose other experts, while the weights are exact:
    /// with AMX the activations are then as fine as with [`Self::residuals`] elsewhere, at twice the
    /// arithmetic.
    pub mxfp4: bool,
    /// The int8 quantization residual, quantized again: products with quantized matrices then differ from
    /// exact ones by about 1e-5, at twice the arithmetic and the same memory traffic. Not used with AMX.
    pub residuals: bool,
    /// Form for F16, BF16 and MXFP8 matrices.
    pub short_floats: bool,
    /// Form for F32 and FP8 matrices: unchanged.
    pub floats: bool,
}

impl Forms {
    /// Forms that a matrix of this format needs.
    pub fn of(format: Format) -> Self {
        match format.elements() {
            Elements::Floats(floats) if floats.needs_f32() => Self { floats: true, ..Self::default() },
            Elements::Floats(_) => Self { short_floats: true, ..Self::default() },
            Elements::Codes(codes, _) if codes.is_exact_in_bf16() => Self { mxfp4: true, ..Self::default() },
            Elements::Codes(..) => Self { ints: true, ..Self::default() },
        }
    }

    /// The union of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            ints: self.ints || other.ints,
            mxfp4: self.mxfp4 || other.mxfp4,
            residuals: self.residuals || other.residuals,
            short_floats: self.short_floats || other.short_floats,
            floats: self.floats || other.floats,
        }
    }
}

impl Activations {
    /// Number of tokens.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Packs `x`, `[n, cols]`, into the given forms.
    ///
    /// # Panics
    /// When `x` is not whole rows, and when memory cannot be allocated.
    pub fn set(&mut self, x: &[f32], cols: usize, forms: Forms, pool: &ThreadPool) {
        self.take(x, cols, None, forms, pool);
    }

    /// Sets the activations from `x` after an RMS norm, with the bits of a preceding
    /// [`crate::rows::rms_norm`].
    ///
    /// # Panics
    /// When `x` is not whole rows of the norm's width, and when memory cannot be allocated.
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
            // Each part computes the norm over its whole rows first.
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

    /// Allocates for `n_rows` tokens in these forms; the contents are unspecified.
    ///
    /// # Panics
    /// When memory cannot be allocated.
    pub(super) fn reserve(&mut self, n_rows: usize, cols: usize, forms: Forms, isa: Isa) {
        (self.n_rows, self.cols) = (n_rows, cols);
        let n_records = n_rows.div_ceil(GROUP) * self.n_blocks();
        let (has_tiles, codes) = (isa.has_tiles(), forms.ints || forms.mxfp4);
        for (form, is_kept) in [
            (Form::Int8, codes && !has_tiles),
            (Form::Int8Residual, codes && forms.residuals && !has_tiles),
            (Form::Bf16, forms.ints && has_tiles),
            (Form::Bf16Split, forms.short_floats && has_tiles),
            (Form::Bf16PairsSplit, forms.mxfp4 && has_tiles),
            (Form::F32, forms.floats || forms.short_floats && !has_tiles),
        ] {
            let n_bytes = if is_kept { n_records * self.record(form) } else { 0 };
            let buffer = &mut self.buffers[form as usize];
            buffer.n_bytes = n_bytes;
            AlignedBytes::at_least(&mut buffer.bytes, buffer.n_bytes);
        }
    }

    /// Write access to some blocks of group `g`.
    ///
    /// # Safety
    /// No other thread may access these blocks meanwhile, and a caller that lets several threads write must
    /// hold the activations exclusively.
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
            bytes: records(Form::Int8),
            residuals: records(Form::Int8Residual),
            bfloats: records(Form::Bf16),
            split: records(Form::Bf16Split),
            pairs_split: records(Form::Bf16PairsSplit),
            floats: records(Form::F32),
        }
    }

    /// Group `g`'s records; `None` when the activations were not packed in this form.
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

    /// Tokens that a record has room for: 16, or the number of tokens if there is only one group.
    fn n_tokens(&self) -> usize {
        self.n_rows.min(GROUP)
    }

    /// Number of blocks of a row.
    fn n_blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }
}

/// A norm of whole rows (arXiv:1910.07467): `x / sqrt(mean(x²) + eps) * gain`.
#[derive(Debug, Clone, Copy)]
pub struct RowNorm<'a> {
    /// Gains, one per column.
    pub gain: &'a [f32],
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

thread_local! {
    /// Scratch for normed columns of a group.
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl RowNorm<'_> {
    /// Calls `take` with the normed rows, one part of their blocks after the other.
    fn each_part(&self, rows: &Rows<'_>, isa: Isa, mut take: impl FnMut(&Rows<'_>)) {
        let mut inverses = [0.0; GROUP];
        let whole = || rows.x.chunks_exact(rows.cols);
        for (inverse, x) in inverses.iter_mut().zip(whole()) {
            *inverse = isa.run_checked(InverseRms { x, eps: self.eps });
        }
        NORMED.with_borrow_mut(|room| {
            for first in rows.blocks.clone().step_by(PART) {
                let n_blocks = PART.min(rows.blocks.end - first);
                let columns = first * BLOCK..rows.cols.min((first + n_blocks) * BLOCK);
                let cols = columns.len();
                room.resize(room.len().max(GROUP * cols), 0.0);
                for ((x, out), inverse) in whole().zip(room.chunks_exact_mut(cols)).zip(inverses) {
                    let (x, gain) = (&x[columns.clone()], &self.gain[columns.clone()]);
                    isa.run_checked(Scale { x, inverse, gain, out });
                }
                take(&Rows { x: &room[..whole().len() * cols], cols, blocks: 0..n_blocks });
            }
        });
    }
}

/// Some blocks of a group in all forms; a form that is not packed is empty.
pub(super) struct Records<'a> {
    /// Number of tokens that a record has room for.
    n_tokens: usize,
    bytes: &'a mut [u8],
    residuals: &'a mut [u8],
    bfloats: &'a mut [u8],
    split: &'a mut [u8],
    pairs_split: &'a mut [u8],
    floats: &'a mut [u8],
}

impl Records<'_> {
    /// Packs `rows` into the first blocks.
    pub(super) fn put(&mut self, rows: &Rows<'_>, isa: Isa) {
        // SAFETY: a group has at most sixteen tokens, and its records have room for them.
        unsafe { isa.run(Quantize { rows, out: self.bytes, residuals: self.residuals }) };
        if isa.has_tiles() {
            // SAFETY: the same.
            unsafe { isa.run_amx(Round::<1, true> { rows, n_tokens: self.n_tokens, out: self.bfloats }) };
            // SAFETY: the same.
            unsafe { isa.run_amx(Round::<2, false> { rows, n_tokens: self.n_tokens, out: self.split }) };
            // SAFETY: the same.
            unsafe { isa.run_amx(Round::<2, true> { rows, n_tokens: self.n_tokens, out: self.pairs_split }) };
        }
        interleave(rows, self.floats);
    }

    /// Advances by `n_blocks`.
    fn skip(&mut self, n_blocks: usize) {
        for (records, form) in [
            (&mut self.bytes, Form::Int8),
            (&mut self.residuals, Form::Int8Residual),
            (&mut self.bfloats, Form::Bf16),
            (&mut self.split, Form::Bf16Split),
            (&mut self.pairs_split, Form::Bf16PairsSplit),
            (&mut self.floats, Form::F32),
        ] {
            let n_bytes = records.len().min(n_blocks * form.record(self.n_tokens));
            *records = &mut std::mem::take(records)[n_bytes..];
        }
    }
}

/// A form of packed activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// int8 codes with scale and zero point.
    Int8,
    /// The residual of [`Form::Int8`], in the same encoding.
    Int8Residual,
    /// Two bf16 parts, for AMX.
    Bf16,
    /// Two bf16 parts, for AMX with 16-bit float weights.
    Bf16Split,
    /// Two bf16 parts in the order of columns of [`Form::Bf16`], for AMX with MXFP4.
    Bf16PairsSplit,
    /// Elements in f32.
    F32,
}

impl Form {
    /// Bytes of a group's record for one block. AMX forms have room for `n_tokens` only, so that a single
    /// token's blocks are contiguous: with gaps they would map to a few L1 sets. The others always have room
    /// for sixteen.
    pub(crate) const fn record(self, n_tokens: usize) -> usize {
        match self {
            Self::Int8 | Self::Int8Residual => RECORD,
            Self::Bf16 => n_tokens * ROW_BYTES,
            Self::Bf16Split | Self::Bf16PairsSplit => n_tokens * 2 * ROW_BYTES,
            Self::F32 => FLOAT_RECORD,
        }
    }
}

/// Packs rows into a group's f32 records.
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
