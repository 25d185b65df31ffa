//! Activations in f32 as the packing kernels read them: blocks of the rows of a group. Does not know the
//! packed forms.

use std::ops::Range;

use crate::layout::BLOCK;

/// Number of tokens of a group, which are interleaved block by block.
pub(crate) const GROUP: usize = 16;

/// Some column blocks of up to sixteen rows.
pub(super) struct Rows<'a> {
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
    pub(super) blocks: Range<usize>,
}

impl<'a> Rows<'a> {
    /// All blocks of rows of `cols` columns.
    pub(super) fn whole(x: &'a [f32], cols: usize) -> Self {
        Self { x, cols, blocks: 0..cols.div_ceil(BLOCK) }
    }

    /// Number of rows.
    pub(super) fn n(&self) -> usize {
        self.x.len() / self.cols
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Block `b` of a row, counted from the first of these blocks; the last one of a row may be short.
    #[inline(always)]
    pub(super) fn block(&self, row: usize, b: usize) -> &[f32] {
        let first = (self.blocks.start + b) * BLOCK;
        &self.x[row * self.cols..][first..self.cols.min(first + BLOCK)]
    }

    /// Calls `take(t, b, x)` for each row `t` and each block `b`, counted from the first of these blocks; the
    /// last block of a row may be short.
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

/// A block padded with zeros to 32.
#[inline(always)]
pub(super) fn whole<'a>(x: &'a [f32], room: &'a mut [f32; BLOCK]) -> &'a [f32] {
    if x.len() == BLOCK {
        return x;
    }
    room[..x.len()].copy_from_slice(x);
    room
}
