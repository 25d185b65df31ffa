//! A weight matrix packed into panels. Multiplication is in `matmul`.

use std::sync::atomic::{AtomicU32, Ordering};

use throng_os::memory::{AlignedBytes, Pages};

use super::pair_scale::PairScale;
use super::{Format, e4m3};
use crate::disjoint::Disjoint;
use crate::formats::{BlockCodes, Elements};
use crate::layout::{BLOCK, CodeLayout, PANEL, PanelLayout, ScaleKind};
use crate::threads::ThreadPool;

/// A matrix `[rows, cols]` repacked losslessly from its stored format into panels of sixteen rows: its
/// elements are those of [`super::dequantize_row`], in about as many bytes as in the file.
#[derive(Debug)]
pub struct PackedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    layout: PanelLayout,
    bytes: AlignedBytes,
    /// Scale for ISAs with AMX tiles.
    pair_scale: PairScale,
}

/// Version of the packed layout: cached packed weights of another version are discarded.
pub const PACKING_VERSION: u32 = 2;

/// Reason why a matrix could not be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackError {
    /// The bytes are not those of `rows × cols` elements of the format, or rows are not whole blocks.
    Shape,
    /// This many bytes could not be allocated.
    OutOfMemory(usize),
}

impl PackedMatrix {
    /// Packs `rows` stored rows of `cols` elements, on all threads of the pool.
    ///
    /// # Errors
    /// When the bytes do not fit the shape, or memory is short.
    pub fn pack(
        format: Format,
        rows: usize,
        cols: usize,
        stored: &[u8],
        pool: &ThreadPool,
    ) -> Result<Self, PackError> {
        let row_bytes = format.bytes_of(cols).filter(|_| rows > 0 && cols > 0).ok_or(PackError::Shape)?;
        if row_bytes.checked_mul(rows) != Some(stored.len()) {
            return Err(PackError::Shape);
        }
        Self::fill(format, rows, cols, pool, |layout, p, panel| {
            let stored = &stored[p * PANEL * row_bytes..];
            let stored = &stored[..stored.len().min(PANEL * row_bytes)];
            let floats = match format.elements() {
                Elements::Floats(floats) => floats,
                Elements::Codes(codes, split) => {
                    let n_split = format.block_elements() / BLOCK;
                    let block = |row: &[u8], b: usize| {
                        let stored = &row[b / n_split * format.block_bytes()..][..format.block_bytes()];
                        split(stored, b % n_split)
                    };
                    return pack_codes(codes, layout, stored.chunks_exact(row_bytes), block, panel);
                }
            };
            match (floats.scale(), floats.bytes()) {
                (Some(kind), _) => e4m3::pack(kind, layout, stored, row_bytes, panel),
                (None, 2) => pack_floats::<2>(stored, row_bytes, panel),
                (None, _) => pack_floats::<4>(stored, row_bytes, panel),
            }
        })
    }

    /// A matrix from the bytes of [`Self::as_bytes`], copied on all threads of the pool: weights live on huge
    /// pages, which a mapped file does not have. Arbitrary bytes give a valid matrix of arbitrary numbers.
    ///
    /// # Errors
    /// When there are more or fewer bytes than the shape takes, or memory is short.
    pub fn from_packed(
        format: Format,
        rows: usize,
        cols: usize,
        packed: &[u8],
        pool: &ThreadPool,
    ) -> Result<Self, PackError> {
        format.bytes_of(cols).filter(|_| rows > 0 && cols > 0).ok_or(PackError::Shape)?;
        let layout = panel_layout(format, cols).ok_or(PackError::Shape)?;
        let n_bytes = layout.bytes.checked_mul(rows.div_ceil(PANEL)).ok_or(PackError::Shape)?;
        if n_bytes != packed.len() {
            return Err(PackError::Shape);
        }
        Self::fill(format, rows, cols, pool, |layout, p, panel| {
            panel.copy_from_slice(&packed[p * layout.bytes..][..layout.bytes]);
        })
    }

    /// A matrix whose panels are written by `fill(panel_idx, bytes)` on all threads of the pool.
    fn fill(
        format: Format,
        rows: usize,
        cols: usize,
        pool: &ThreadPool,
        fill: impl Fn(&PanelLayout, usize, &mut [u8]) + Sync,
    ) -> Result<Self, PackError> {
        let layout = panel_layout(format, cols).ok_or(PackError::Shape)?;
        let n_panels = rows.div_ceil(PANEL);
        let n_bytes = layout.bytes.checked_mul(n_panels).ok_or(PackError::Shape)?;
        let mut bytes =
            AlignedBytes::zeroed(n_bytes, Pages::Shared).ok_or(PackError::OutOfMemory(n_bytes))?;
        let codes = format.codes();
        let largest = [const { AtomicU32::new(0) }; 2];
        let panels = Disjoint::new(bytes.as_mut_slice());
        pool.for_each(n_panels, |p| {
            // SAFETY: each panel belongs to one item.
            let panel = unsafe { panels.part(p * layout.bytes, layout.bytes) };
            fill(&layout, p, panel);
            if let Some(codes) = codes {
                let of_panel = layout.largest_scales(codes.scales, panel);
                std::iter::zip(&largest, of_panel).for_each(|(all, of_panel)| {
                    all.fetch_max(of_panel, Ordering::Relaxed);
                });
            }
        });
        let largest = largest.map(|bits| f32::from_bits(bits.into_inner()));
        let of_codes = |codes: CodeLayout| PairScale::of(codes.largest_weight(largest));
        let pair_scale = codes.map_or(PairScale::NONE, of_codes);
        Ok(Self { format, rows, cols, layout, bytes, pair_scale })
    }

    /// The packed bytes, [`Self::n_bytes`] in all, as [`Self::from_packed`] takes them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes.as_slice()[..self.n_bytes()]
    }

    /// Number of output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Original format of the matrix, whose elements it still has.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes it takes in memory, which one pass over it reads.
    pub fn n_bytes(&self) -> usize {
        self.layout.bytes * self.n_panels()
    }

    pub(crate) fn n_panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(crate) fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    pub(crate) fn pair_scale(&self) -> PairScale {
        self.pair_scale
    }

    pub(crate) fn panel(&self, idx: usize) -> &[u8] {
        &self.bytes.as_slice()[idx * self.layout.bytes..][..self.layout.bytes]
    }

    /// Writes the elements of one row to `out`: the same bits as [`super::dequantize_row`] of the stored row.
    ///
    /// # Panics
    /// When the row does not exist or `out` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows && out.len() == self.cols,
            "row {row} of {}, {} columns",
            self.rows,
            out.len()
        );
        let (panel, r) = (self.panel(row / PANEL), row % PANEL);
        match self.format.elements() {
            Elements::Codes(codes, _) => {
                for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                    block_at(codes, &self.layout, panel, r, b).decode(codes, out);
                }
            }
            Elements::Floats(floats) => match floats.scale() {
                Some(kind) => e4m3::dequantize_panel_row(kind, &self.layout, panel, r, out),
                None => {
                    for (k, out) in out.iter_mut().enumerate() {
                        let at = (k * PANEL + r) * floats.bytes();
                        let stored = &panel[at..at + floats.bytes()];
                        super::dequantize_row(self.format, stored, std::slice::from_mut(out));
                    }
                }
            },
        }
    }
}

/// `None` when a size overflows.
fn panel_layout(format: Format, cols: usize) -> Option<PanelLayout> {
    match format.elements() {
        Elements::Codes(codes, _) => PanelLayout::of_codes(codes, cols),
        Elements::Floats(floats) => PanelLayout::of_floats(floats, cols),
    }
}

/// Transposes: element `k` of row `r` goes to `[k][r]`, one block of columns at a time, so that the
/// destination stays in L1 until all rows are done.
fn pack_floats<const SIZE: usize>(stored: &[u8], row_bytes: usize, panel: &mut [u8]) {
    for (b, out) in panel.as_chunks_mut::<SIZE>().0.chunks_mut(PANEL * BLOCK).enumerate() {
        for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
            let row = row.as_chunks::<SIZE>().0;
            let row = &row[(b * BLOCK).min(row.len())..row.len().min((b + 1) * BLOCK)];
            for (element, out) in row.iter().zip(out.iter_mut().skip(r).step_by(PANEL)) {
                *out = *element;
            }
        }
    }
}

/// Packs the codes of four adjacent columns into one word, as in a panel's vectors.
fn words(codes: &[u8; BLOCK]) -> [u32; 8] {
    std::array::from_fn(|j| {
        u32::from_le_bytes([codes[4 * j], codes[4 * j + 1], codes[4 * j + 2], codes[4 * j + 3]])
    })
}

/// Offset of a row's word in vector `v`.
fn word_at(v: usize, r: usize) -> usize {
    v * 64 + r * 4
}

/// Packs stored rows, whose block of an index is split by `block`.
fn pack_codes<'a>(
    codes: CodeLayout,
    layout: &PanelLayout,
    rows: impl Iterator<Item = &'a [u8]> + Clone,
    block: impl Fn(&[u8], usize) -> BlockCodes,
    panel: &mut [u8],
) {
    for b in 0..layout.n_blocks {
        // Missing rows of the last panel stay zero.
        let mut vectors = [[0; PANEL]; 8];
        let mut scales = [[[0; 2]; PANEL]; 2];
        let mut superscales = scales;
        for (r, row) in rows.clone().enumerate() {
            let block = block(row, b);
            std::iter::zip(&mut vectors, words(&block.codes)).for_each(|(vector, word)| vector[r] = word);
            for i in 0..2 {
                (scales[i][r], superscales[i][r]) = (block.scales[i], block.superscales[i]);
            }
        }
        put_planes(codes.bits, &vectors, &mut panel[layout.codes_at + b * layout.code_bytes..]);
        put_scales(codes.scales, layout, panel, b, &scales, &superscales);
    }
}

/// Writes a block's bit planes in the order that `unpack` reads.
fn put_planes(bits: usize, c: &[[u32; PANEL]; 8], out: &mut [u8]) {
    let lines = &mut out.as_chunks_mut::<64>().0.iter_mut();
    if bits == 8 {
        return c.iter().for_each(|vector| put_line(lines, |r| vector[r]));
    }
    let mut shift = 0;
    if bits & 4 != 0 {
        (0..4).for_each(|j| put_line(lines, |r| c[j][r] & 0x0F0F_0F0F | (c[j + 4][r] & 0x0F0F_0F0F) << 4));
        shift = 4;
    }
    if bits & 2 != 0 {
        for c in [&c[..4], &c[4..]] {
            let field = |i: usize, r: usize| (c[i][r] >> shift & 0x0303_0303) << (2 * i);
            put_line(lines, |r| field(0, r) | field(1, r) | field(2, r) | field(3, r));
        }
        shift += 2;
    }
    if bits & 1 != 0 {
        put_line(lines, |r| (0..8).fold(0, |word, j| word | (c[j][r] >> shift & 0x0101_0101) << j));
    }
}

/// Writes each row's word to the next cache line.
fn put_line(lines: &mut std::slice::IterMut<'_, [u8; 64]>, word: impl Fn(usize) -> u32) {
    let line = lines.next().expect("a panel has room for its planes");
    for (r, out) in line.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *out = word(r).to_le_bytes();
    }
}

fn put_scales(
    kind: ScaleKind,
    layout: &PanelLayout,
    panel: &mut [u8],
    b: usize,
    scales: &[[[u8; 2]; PANEL]; 2],
    superscales: &[[[u8; 2]; PANEL]; 2],
) {
    let out = &mut panel[layout.scales_at + b * kind.block_bytes()..][..kind.block_bytes()];
    match kind {
        ScaleKind::F16 | ScaleKind::F16Min => {
            for (out, scales) in out.chunks_exact_mut(2 * PANEL).zip(scales) {
                out.copy_from_slice(scales.as_flattened());
            }
        }
        ScaleKind::Super
        | ScaleKind::SuperMin
        | ScaleKind::SuperHalves
        | ScaleKind::SuperHalvesMin
        | ScaleKind::SuperEighths
        | ScaleKind::SuperHalvesEighths
        | ScaleKind::E4m3Halves
        | ScaleKind::Exponent => {
            for (out, scales) in out.chunks_exact_mut(PANEL).zip(scales) {
                std::iter::zip(out, scales).for_each(|(out, scale)| *out = scale[0]);
            }
        }
    }
    if b.is_multiple_of(kind.blocks_per_super()) {
        let out = &mut panel[kind.super_at(b)..][..kind.super_bytes()];
        if kind == ScaleKind::E4m3Halves {
            for (r, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *out = superscales.map(|halves| halves[r]).as_flattened().try_into().expect("four bytes");
            }
            return;
        }
        for (out, d) in out.chunks_exact_mut(2 * PANEL).zip(superscales) {
            out.copy_from_slice(d.as_flattened());
        }
    }
}

/// The code of column `i` of a block in row `r`, reassembled from its bit planes.
fn code_at(bits: usize, block: &[u8], r: usize, i: usize) -> u8 {
    let (j, c) = (i / 4, i % 4);
    let byte = |v: usize| block[word_at(v, r) + c];
    if bits == 8 {
        return byte(j);
    }
    let (mut code, mut v, mut shift) = (0, 0, 0);
    if bits & 4 != 0 {
        code = byte(j % 4) >> (4 * (j / 4)) & 15;
        (v, shift) = (4, 4);
    }
    if bits & 2 != 0 {
        code |= (byte(v + j / 4) >> (2 * (j % 4)) & 3) << shift;
        (v, shift) = (v + 2, shift + 2);
    }
    if bits & 1 != 0 {
        code |= (byte(v) >> j & 1) << shift;
    }
    code
}

/// Codes and scales of block `b` in row `r`.
fn block_at(codes: CodeLayout, layout: &PanelLayout, panel: &[u8], r: usize, b: usize) -> BlockCodes {
    let kind = codes.scales;
    let stored = &panel[layout.codes_at + b * layout.code_bytes..][..layout.code_bytes];
    // The stored bytes of the row's scales, which vectors of sixteen hold.
    let of_row = |section: &[u8], bytes: usize| {
        let mut values = [0; 4];
        for (out, vector) in values.chunks_mut(bytes).zip(section.chunks_exact(bytes * PANEL)) {
            out.copy_from_slice(&vector[r * bytes..][..bytes]);
        }
        values
    };
    let scales = &panel[layout.scales_at + b * kind.block_bytes()..][..kind.block_bytes()];
    let scales = match kind {
        ScaleKind::F16 | ScaleKind::F16Min => of_row(scales, 2),
        _ => {
            let [first, second, ..] = of_row(scales, 1);
            [first, 0, second, 0]
        }
    };
    let superscales = &panel[kind.super_at(b)..][..kind.super_bytes()];
    let superscales = of_row(superscales, if kind == ScaleKind::E4m3Halves { 4 } else { 2 });
    let pairs = |[a, b, c, d]: [u8; 4]| [[a, b], [c, d]];
    BlockCodes {
        codes: std::array::from_fn(|i| code_at(codes.bits, stored, r, i)),
        scales: pairs(scales),
        superscales: pairs(superscales),
    }
}
