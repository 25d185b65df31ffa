//! A weight matrix packed into panels. Multiplication is in `matmul`.

use std::sync::atomic::{AtomicU32, Ordering};

use super::block_codes::block_codes;
use super::pair_scale::PairScale;
use super::{Format, e4m3, f16_at, f32_at};
use crate::layout::{
    BLOCK, CodeLayout, E4m3Scale, PANEL, PanelLayout, ScaleKind, float_bytes, power_of_two, unsigned_e4m3,
};
use crate::memory::{AlignedBytes, Disjoint, Pages};
use crate::threads::ThreadPool;

/// A matrix `[rows, cols]` repacked losslessly from its stored format into panels of sixteen rows: its elements are those of
/// [`super::dequantize_row`], in about as many bytes as in the file.
#[derive(Debug)]
pub struct PackedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    layout: PanelLayout,
    bytes: AlignedBytes,
    /// For ISAs with AMX tiles.
    pair_scale: PairScale,
}

/// Version of the packed layout: cached packed weights of another version are discarded.
pub const PACKING_VERSION: u32 = 2;

/// Why a matrix could not be packed.
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
            match (CodeLayout::of(format), float_bytes(format)) {
                (Some(codes), _) => pack_codes(format, codes, layout, stored, row_bytes, panel),
                (None, 1) => e4m3::pack(format, layout, stored, row_bytes, panel),
                (None, 2) => pack_floats::<2>(stored, row_bytes, panel),
                (None, _) => pack_floats::<4>(stored, row_bytes, panel),
            }
        })
    }

    /// A matrix from the bytes of [`Self::as_bytes`], copied on all threads of the pool: weights live on huge pages, which a mapped
    /// file does not have. Arbitrary bytes give a valid matrix of arbitrary numbers.
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
        let layout = PanelLayout::of(format, cols).ok_or(PackError::Shape)?;
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
        let layout = PanelLayout::of(format, cols).ok_or(PackError::Shape)?;
        let n_panels = rows.div_ceil(PANEL);
        let n_bytes = layout.bytes.checked_mul(n_panels).ok_or(PackError::Shape)?;
        let mut bytes =
            AlignedBytes::zeroed(n_bytes, Pages::Shared).ok_or(PackError::OutOfMemory(n_bytes))?;
        let codes = CodeLayout::of(format);
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

    /// The packed bytes, [`Self::n_bytes`] of them, as [`Self::from_packed`] takes them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes.as_slice()[..self.n_bytes()]
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The format the matrix came in, whose elements it still has.
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

    /// Writes the elements of one row to `out`: the bits that [`super::dequantize_row`] gives of the stored row.
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
        match (CodeLayout::of(self.format), E4m3Scale::of(self.format)) {
            (None, Some(kind)) => e4m3::dequantize_panel_row(kind, &self.layout, panel, r, out),
            (None, None) => {
                let size = self.format.block_bytes();
                for (k, out) in out.iter_mut().enumerate() {
                    let at = (k * PANEL + r) * size;
                    super::dequantize_row(self.format, &panel[at..at + size], std::slice::from_mut(out));
                }
            }
            (Some(codes), _) => {
                for (b, out) in out.chunks_mut(BLOCK).enumerate() {
                    dequantize_block(codes, &self.layout, panel, r, b, out);
                }
            }
        }
    }
}

/// Transposes: element `k` of row `r` goes to `[k][r]`, one block of columns at a time, so that the destination stays in L1 until all rows
/// are done.
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

fn pack_codes(
    format: Format,
    codes: CodeLayout,
    layout: &PanelLayout,
    stored: &[u8],
    row_bytes: usize,
    panel: &mut [u8],
) {
    for b in 0..layout.n_blocks {
        // Missing rows of the last panel stay zero.
        let mut vectors = [[0; PANEL]; 8];
        let mut scales = [[[0; 2]; PANEL]; 2];
        let mut superscales = scales;
        for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
            let block = block_codes(format, row, b);
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

fn dequantize_block(
    codes: CodeLayout,
    layout: &PanelLayout,
    panel: &[u8],
    r: usize,
    b: usize,
    out: &mut [f32],
) {
    let block = &panel[layout.codes_at + b * layout.code_bytes..][..layout.code_bytes];
    let at = layout.scales_at + b * codes.scales.block_bytes();
    let half = |i: usize| f16_at(panel, at + (i * PANEL + r) * 2);
    let byte = |i: usize| panel[at + i * PANEL + r];
    let super_at = codes.scales.super_at(b);
    let d = |i: usize| f16_at(panel, super_at + (i * PANEL + r) * 2);
    for (i, out) in out.iter_mut().enumerate() {
        let code = code_at(codes.bits, block, r, i);
        let signed = codes.value(code);
        *out = match codes.scales {
            ScaleKind::F16 => half(0) * signed,
            ScaleKind::Exponent => power_of_two(byte(0)) * signed,
            ScaleKind::F16Min => half(0) * signed + half(1),
            ScaleKind::Super => d(0) * f32::from(byte(0) as i8) * signed,
            ScaleKind::SuperHalves => d(0) * f32::from(byte(i / 16) as i8) * signed,
            ScaleKind::E4m3Halves => unsigned_e4m3(byte(i / 16)) * f32_at(panel, super_at + 4 * r) * signed,
            kind @ ScaleKind::SuperEighths => d(0) * f32::from(byte(0) as i8) * kind.unit() * signed,
            kind @ ScaleKind::SuperHalvesEighths => {
                d(0) * f32::from(byte(i / 16) as i8) * kind.unit() * signed
            }
            ScaleKind::SuperMin => d(0) * f32::from(byte(0)) * signed - d(1) * f32::from(byte(1)),
            ScaleKind::SuperHalvesMin => {
                let s = byte(i / 16);
                d(0) * f32::from(s & 15) * signed - d(1) * f32::from(s >> 4)
            }
        };
    }
}
