//! A weight matrix in panels. Refuses to multiply: that is `matmul`'s.

use super::block_codes::block_codes;
use super::layout::{BLOCK, CodeLayout, PANEL, PanelLayout, SUPER, ScaleKind};
use super::{Format, IQ4_VALUES, f16_at};
use crate::memory::{AlignedBytes, Disjoint, Pages};
use crate::threads::ThreadPool;

/// A matrix `[rows, cols]` repacked from its stored format into panels of sixteen rows, losing nothing: its elements
/// are those that [`super::dequantize_row`] gives, in about as many bytes as the file's.
#[derive(Debug)]
pub struct PackedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    layout: PanelLayout,
    bytes: AlignedBytes,
}

/// Why a matrix could not be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackError {
    /// The bytes are not those of `rows × cols` elements of the format, or rows are not whole blocks.
    Shape,
    /// There is no room for this many bytes.
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
        let layout = PanelLayout::of(format, cols).ok_or(PackError::Shape)?;
        let n_panels = rows.div_ceil(PANEL);
        let n_bytes = layout.bytes.checked_mul(n_panels).ok_or(PackError::Shape)?;
        let mut bytes = AlignedBytes::zeroed(n_bytes, Pages::Huge).ok_or(PackError::OutOfMemory(n_bytes))?;
        let panels = Disjoint::new(bytes.as_mut_slice());
        pool.for_each(n_panels, |p| {
            // SAFETY: each panel is one item's.
            let panel = unsafe { panels.part(p * layout.bytes, layout.bytes) };
            let stored = &stored[p * PANEL * row_bytes..];
            let rows = stored[..stored.len().min(PANEL * row_bytes)].chunks_exact(row_bytes);
            for (r, row) in rows.enumerate() {
                match CodeLayout::of(format) {
                    None => pack_floats(format.block_bytes(), row, r, panel),
                    Some(codes) => pack_codes(format, codes, &layout, row, r, panel),
                }
            }
        });
        Ok(Self { format, rows, cols, layout, bytes })
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
        match CodeLayout::of(self.format) {
            None => {
                let size = self.format.block_bytes();
                for (k, out) in out.iter_mut().enumerate() {
                    let at = (k * PANEL + r) * size;
                    super::dequantize_row(self.format, &panel[at..at + size], std::slice::from_mut(out));
                }
            }
            Some(codes) => {
                for (b, out) in out.chunks_mut(BLOCK).enumerate() {
                    dequantize_block(codes, &self.layout, panel, r, b, out);
                }
            }
        }
    }
}

/// Element `k` of row `r` goes to `[k][r]`.
fn pack_floats(size: usize, row: &[u8], r: usize, panel: &mut [u8]) {
    for (k, element) in row.chunks_exact(size).enumerate() {
        panel[(k * PANEL + r) * size..][..size].copy_from_slice(element);
    }
}

/// Four codes of neighbouring columns in one word, as a vector has them for a row.
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
    row: &[u8],
    r: usize,
    panel: &mut [u8],
) {
    for b in 0..layout.n_blocks {
        let block = block_codes(format, row, b);
        let c = words(&block.codes);
        let out = &mut panel[layout.codes_at + b * layout.code_bytes..][..layout.code_bytes];
        let mut put = |v: usize, word: u32| out[word_at(v, r)..][..4].copy_from_slice(&word.to_le_bytes());
        // The planes, in the order and with the meaning that `unpack` reads.
        let mut v = 0;
        let mut shift = 0;
        if codes.bits == 8 {
            (0..8).for_each(|j| put(j, c[j]));
            shift = 8;
        }
        if codes.bits & 4 != 0 {
            (0..4).for_each(|j| put(j, c[j] & 0x0F0F_0F0F | (c[j + 4] & 0x0F0F_0F0F) << 4));
            (v, shift) = (4, 4);
        }
        if codes.bits & 2 != 0 {
            for half in 0..2 {
                let field = |i: usize| (c[4 * half + i] >> shift & 0x0303_0303) << (2 * i);
                put(v + half, field(0) | field(1) | field(2) | field(3));
            }
            (v, shift) = (v + 2, shift + 2);
        }
        if codes.bits & 1 != 0 {
            put(v, (0..8).fold(0, |word, j| word | (c[j] >> shift & 0x0101_0101) << j));
        }
        put_scales(codes.scales, layout, panel, r, b, &block.scales, &block.superscales);
    }
}

fn put_scales(
    kind: ScaleKind,
    layout: &PanelLayout,
    panel: &mut [u8],
    r: usize,
    b: usize,
    scales: &[[u8; 2]; 2],
    superscales: &[[u8; 2]; 2],
) {
    let at = layout.scales_at + b * kind.block_bytes();
    // Bytes of one scale, and how many of them a row has.
    let (size, n) = match kind {
        ScaleKind::F16 => (2, 1),
        ScaleKind::F16Min => (2, 2),
        ScaleKind::Super => (1, 1),
        ScaleKind::SuperMin | ScaleKind::SuperHalves | ScaleKind::SuperHalvesMin => (1, 2),
    };
    for (i, scale) in scales.iter().take(n).enumerate() {
        panel[at + (i * PANEL + r) * size..][..size].copy_from_slice(&scale[..size]);
    }
    if b.is_multiple_of(SUPER) {
        let at = b / SUPER * kind.super_bytes();
        for (i, d) in superscales.iter().take(kind.super_bytes() / 32).enumerate() {
            panel[at + (i * PANEL + r) * 2..][..2].copy_from_slice(d);
        }
    }
}

/// The code of column `i` of a block in row `r`, put together from its planes.
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
    let d = |i: usize| f16_at(panel, b / SUPER * codes.scales.super_bytes() + (i * PANEL + r) * 2);
    for (i, out) in out.iter_mut().enumerate() {
        let code = code_at(codes.bits, block, r, i);
        let signed = if codes.codebook {
            f32::from(IQ4_VALUES[usize::from(code)])
        } else {
            f32::from(i16::from(code) - i16::from(codes.zero))
        };
        *out = match codes.scales {
            ScaleKind::F16 => half(0) * signed,
            ScaleKind::F16Min => half(0) * signed + half(1),
            ScaleKind::Super => d(0) * f32::from(byte(0) as i8) * signed,
            ScaleKind::SuperHalves => d(0) * f32::from(byte(i / 16) as i8) * signed,
            ScaleKind::SuperMin => d(0) * f32::from(byte(0)) * signed - d(1) * f32::from(byte(1)),
            ScaleKind::SuperHalvesMin => {
                let s = byte(i / 16);
                d(0) * f32::from(s & 15) * signed - d(1) * f32::from(s >> 4)
            }
        };
    }
}
