//! The KV cache of one layer in blocks of sixteen tokens. Does not know the owners of blocks.
//!
//! A block holds a panel of keys and a panel of values for each KV head. Keys are stored [dimension][token],
//! like a weight panel of the matmul, so that one vector yields sixteen scores; values are stored
//! [token][dimension]. In bf16 (for AMX), dimensions `d` and `d + 16` of each 32 are interleaved in pairs for
//! keys, and neighbouring tokens for values.

use throng_os::memory::{AlignedBytes, Pages, SMALL_PAGE};

use super::KvDtype;
use crate::disjoint::Disjoint;
use crate::quant::BLOCK;
use crate::reference::AttentionShape;
use crate::simd::{AmxIsa, AmxKernel, CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Number of tokens of a block.
pub const BLOCK_TOKENS: usize = 16;
/// Bytes of 32 dimensions of a block of keys in [`KvDtype::BF16`].
pub(super) const KEY_STEP: usize = BLOCK * BLOCK_TOKENS * 2;
/// Bytes of sixteen dimensions of a block of values in it.
pub(super) const VALUE_STEP: usize = 16 * BLOCK_TOKENS * 2;

/// The shape of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of blocks of sixteen tokens.
    pub n_blocks: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Type in which elements are stored.
    pub dtype: KvDtype,
    /// Values are not stored: they are the elements of the keys from this index on.
    pub values_in_keys: Option<usize>,
}

impl KvShape {
    /// The cache of attention with such heads.
    pub fn of(shape: &AttentionShape, n_blocks: usize, dtype: KvDtype) -> Self {
        let &AttentionShape { n_kv_heads, head_dim, values_in_keys, .. } = shape;
        Self { n_blocks, n_kv_heads, head_dim, dtype, values_in_keys }
    }

    /// `head_dim` padded to whole vectors, as values are stored.
    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Number of panels of a block and a head: keys, and values where they are stored.
    fn n_panels(&self) -> usize {
        if self.values_in_keys.is_some() { 1 } else { 2 }
    }

    /// Number of elements of a value.
    pub(super) fn value_dim(&self) -> usize {
        self.head_dim - self.values_in_keys.unwrap_or(0)
    }

    /// Number of elements of a value, padded to whole vectors.
    pub(super) fn padded_value_dim(&self) -> usize {
        self.value_dim().next_multiple_of(16)
    }

    /// Bytes of a panel of keys; one of values has the same size.
    pub(super) fn panel_bytes(&self) -> usize {
        let elements = self.padded_dim() * BLOCK_TOKENS;
        match self.dtype {
            KvDtype::F32 => elements * 4,
            KvDtype::F16 | KvDtype::BF16 => elements * 2,
            KvDtype::Q8_0 => elements + elements / BLOCK * 2,
        }
    }

    /// Offset of the f16 scales in a Q8_0 panel: [head_dim / 32][16 tokens].
    pub(super) fn scales_at(&self) -> usize {
        self.head_dim * BLOCK_TOKENS
    }

    /// Bytes of one token's keys and values; `None` when `dtype` cannot hold such heads or it overflows.
    pub fn bytes_per_token(&self) -> Option<usize> {
        self.dtype.bytes_of(self.head_dim)?.checked_mul(self.n_kv_heads)?.checked_mul(self.n_panels())
    }

    fn n_bytes(&self) -> Option<usize> {
        self.panel_bytes()
            .checked_mul(self.n_panels())?
            .checked_mul(self.n_kv_heads)?
            .checked_mul(self.n_blocks)
    }
}

/// One layer's keys and values.
#[derive(Debug)]
pub struct KvLayer {
    shape: KvShape,
    bytes: AlignedBytes,
}

/// New keys and values in the rows of a projection: `n_kv_heads * head_dim` columns each.
#[derive(Debug, Clone, Copy)]
pub struct NewKv<'a> {
    /// Rows of `stride` columns, one a token.
    pub rows: &'a [f32],
    /// Number of columns of a row.
    pub stride: usize,
    /// The first column of the keys.
    pub key_col: usize,
    /// The first column of the values.
    pub value_col: usize,
}

impl KvLayer {
    /// An empty cache. `None` when it cannot be allocated, and when `head_dim` is not a multiple of 32 in a
    /// format that requires it.
    pub fn new(shape: KvShape) -> Option<Self> {
        let in_blocks = matches!(shape.dtype, KvDtype::BF16 | KvDtype::Q8_0);
        if in_blocks && !shape.head_dim.is_multiple_of(BLOCK) {
            return None;
        }
        Some(Self { shape, bytes: AlignedBytes::zeroed(shape.n_bytes()?, Pages::Small)? })
    }

    /// Touches the pages of the first blocks, so that the kernel zeroes them now rather than during the first
    /// prefill.
    pub fn touch(&mut self, n_blocks: usize) {
        let first = KvShape { n_blocks: n_blocks.min(self.shape.n_blocks), ..self.shape };
        let n_bytes = first.n_bytes().expect("no more than all blocks");
        self.bytes.as_mut_slice()[..n_bytes].chunks_mut(SMALL_PAGE).for_each(|page| page[0] = 0);
    }

    /// Shape of the layer's keys and values.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Copies all heads of a block to another one.
    ///
    /// # Panics
    /// When a block does not exist.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        assert!((from.max(to) as usize) < self.shape.n_blocks, "a block beyond the cache");
        let n = self.block_bytes();
        self.bytes.as_mut_slice().copy_within(from as usize * n..(from as usize + 1) * n, to as usize * n);
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.shape.panel_bytes() * self.shape.n_panels() * self.shape.n_kv_heads
    }

    /// The bytes of a block: the panels of all heads.
    ///
    /// # Panics
    /// When the block does not exist.
    pub fn block(&self, block: u32) -> &[u8] {
        let n = self.block_bytes();
        &self.bytes.as_slice()[block as usize * n..][..n]
    }

    /// The bytes of a block, to be overwritten.
    ///
    /// # Panics
    /// When the block does not exist.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let n = self.block_bytes();
        &mut self.bytes.as_mut_slice()[block as usize * n..][..n]
    }

    pub(super) fn keys(&self, block: u32, kv_head: usize) -> &[u8] {
        self.panel(block, kv_head, 0)
    }

    pub(super) fn values(&self, block: u32, kv_head: usize) -> &[u8] {
        self.panel(block, kv_head, 1)
    }

    fn panel(&self, block: u32, kv_head: usize, which: usize) -> &[u8] {
        let (n, n_panels) = (self.shape.panel_bytes(), self.shape.n_panels());
        let panel = (block as usize * self.shape.n_kv_heads + kv_head) * n_panels + which;
        &self.bytes.as_slice()[panel * n..][..n]
    }

    /// Writes row `i` of the new keys and values to `slots[i]` = 16 × block + offset in the block.
    ///
    /// # Panics
    /// When a slot does not exist or the rows do not fit the shape.
    pub fn store(&mut self, slots: &[usize], new: NewKv<'_>, pool: &ThreadPool) {
        let shape = self.shape;
        let width = shape.n_kv_heads * shape.head_dim;
        assert!(
            new.rows.len() == slots.len() * new.stride,
            "rows of {} for {} slots",
            new.stride,
            slots.len()
        );
        let has_values = shape.values_in_keys.is_none();
        assert!(
            new.key_col + width <= new.stride && (!has_values || new.value_col + width <= new.stride),
            "columns of {new:?}"
        );
        assert!(slots.iter().all(|s| s / BLOCK_TOKENS < shape.n_blocks), "a slot beyond the cache");
        let (n, n_panels) = (shape.panel_bytes(), shape.n_panels());
        let bytes = Disjoint::new(self.bytes.as_mut_slice());
        // One work item per KV head, so that no two threads write to the same panel, whatever the slots.
        let head = |h: usize| {
            for (row, &slot) in new.rows.chunks_exact(new.stride).zip(slots) {
                let at = (slot / BLOCK_TOKENS * shape.n_kv_heads + h) * n_panels * n;
                // SAFETY: only this item touches the panels of head `h`, and it uses one at a time.
                let (keys, values) = unsafe { bytes.part(at, n_panels * n) }.split_at_mut(n);
                let of = |col: usize| &row[col + h * shape.head_dim..][..shape.head_dim];
                let token = slot % BLOCK_TOKENS;
                let value = if has_values { of(new.value_col) } else { &[] };
                let store = Store { shape, token, key: of(new.key_col), value, keys, values };
                match shape.dtype {
                    KvDtype::BF16 if pool.isa().has_tiles() => pool.isa().run_amx_checked(StoreBf16(store)),
                    _ => pool.isa().run_checked(store),
                }
            }
        };
        if slots.len() * width < 8192 {
            pool.run_here(|| (0..shape.n_kv_heads).for_each(head));
        } else {
            pool.for_each(shape.n_kv_heads, head);
        }
    }
}

/// Writes one token's key and value of one KV head.
struct Store<'a> {
    shape: KvShape,
    token: usize,
    key: &'a [f32],
    value: &'a [f32],
    keys: &'a mut [u8],
    values: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Store<'_> {}

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let (t, dim) = (self.token, self.shape.padded_dim());
        match self.shape.dtype {
            KvDtype::F32 => {
                for (d, x) in self.key.iter().enumerate() {
                    self.keys[(d * BLOCK_TOKENS + t) * 4..][..4].copy_from_slice(&x.to_le_bytes());
                }
                if !self.value.is_empty() {
                    let out = &mut self.values[t * dim * 4..][..self.value.len() * 4];
                    out.copy_from_slice(bytemuck::cast_slice(self.value));
                }
            }
            KvDtype::F16 => {
                for (i, x) in self.key.chunks(16).enumerate() {
                    let half = half_floats::<S>(x);
                    for (j, h) in half.iter().enumerate().take(x.len()) {
                        self.keys[((16 * i + j) * BLOCK_TOKENS + t) * 2..][..2]
                            .copy_from_slice(&h.to_le_bytes());
                    }
                }
                for (i, x) in self.value.chunks(16).enumerate() {
                    let half = half_floats::<S>(x);
                    self.values[(t * dim + 16 * i) * 2..][..32].copy_from_slice(bytemuck::cast_slice(&half));
                }
            }
            KvDtype::BF16 => self.store_bf16(|x| x.map(|x| half::bf16::from_f32(x).to_bits())),
            KvDtype::Q8_0 => {
                let scales_at = self.shape.scales_at();
                let scale_at = |b: usize| scales_at + (b * BLOCK_TOKENS + t) * 2;
                for (b, x) in self.key.chunks_exact(BLOCK).enumerate() {
                    let (scale, codes) = q8_0(x);
                    self.keys[scale_at(b)..][..2].copy_from_slice(&scale);
                    for (j, word) in codes.as_chunks::<4>().0.iter().enumerate() {
                        let at = b * BLOCK * BLOCK_TOKENS + j * 64 + t * 4;
                        self.keys[at..at + 4].copy_from_slice(&word.map(|q| q as u8 ^ 0x80));
                    }
                }
                for (b, x) in self.value.chunks_exact(BLOCK).enumerate() {
                    let (scale, codes) = q8_0(x);
                    self.values[scale_at(b)..][..2].copy_from_slice(&scale);
                    self.values[t * dim + b * BLOCK..][..BLOCK].copy_from_slice(bytemuck::cast_slice(&codes));
                }
            }
        }
    }
}

/// [`Store`] of bf16 with the conversion of an ISA that has AMX.
struct StoreBf16<'a>(Store<'a>);

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for StoreBf16<'_> {}

impl AmxKernel for StoreBf16<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        self.0.store_bf16(|x| {
            let mut rounded = [0; 16];
            // SAFETY: sixteen elements on both sides; the caller guarantees the features.
            unsafe { S::store_bf16(rounded.as_mut_ptr(), S::load(x.as_ptr())) };
            rounded
        });
    }
}

impl Store<'_> {
    /// Writes key and value in bf16; `round` rounds sixteen elements to nearest even.
    #[inline(always)]
    fn store_bf16(self, round: impl Fn(&[f32; 16]) -> [u16; 16]) {
        let t = self.token;
        let round_16 = |x: &[f32]| round(x.try_into().expect("sixteen elements"));
        let keys: &mut [u32] = bytemuck::cast_slice_mut(self.keys);
        for (i, x) in self.key.chunks_exact(BLOCK).enumerate() {
            let (low, high) = (round_16(&x[..16]), round_16(&x[16..]));
            let lines = keys[i * KEY_STEP / 4..][..KEY_STEP / 4].as_chunks_mut::<BLOCK_TOKENS>().0;
            for d in 0..16 {
                lines[d][t] = pair(low[d], high[d]);
            }
        }
        if t == 0 {
            // Clears what an earlier owner left: a NaN times the weight zero would be NaN.
            self.values.fill(0);
        }
        let values: &mut [u32] = bytemuck::cast_slice_mut(self.values);
        for (i, x) in self.value.chunks_exact(16).enumerate() {
            let (new, line) = (round_16(x), &mut values[i * VALUE_STEP / 4 + t / 2 * 16..][..16]);
            for d in 0..16 {
                let [even, odd] = [line[d] as u16, (line[d] >> 16) as u16];
                line[d] = if t.is_multiple_of(2) { pair(new[d], odd) } else { pair(even, new[d]) };
            }
        }
    }
}

/// Rounds up to sixteen floats to f16, padded with zeros.
#[inline(always)]
fn half_floats<S: SimdIsa>(x: &[f32]) -> [u16; 16] {
    let (mut padded, mut half) = ([0.0; 16], [0; 16]);
    padded[..x.len()].copy_from_slice(x);
    // SAFETY: sixteen elements on both sides; only called within a kernel.
    unsafe { S::store_f16(half.as_mut_ptr(), S::load(padded.as_ptr())) };
    half
}

/// Two 16-bit values in one word.
#[inline(always)]
fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// One block of 32 as ggml's Q8_0; a NaN or infinity makes the scale NaN.
#[inline(always)]
fn q8_0(x: &[f32]) -> ([u8; 2], [i8; BLOCK]) {
    let max = f32::from_bits(x.iter().fold(0, |m, v| m.max(v.abs().to_bits())));
    let finite = max < f32::INFINITY;
    let (scale, inverse) = if !finite { (f32::NAN, 0.0) } else { (max / 127.0, 127.0 / max.max(1e-30)) };
    let codes = std::array::from_fn(|i| if finite { (x[i] * inverse).round() as i8 } else { 0 });
    (half::f16::from_f32(scale).to_le_bytes(), codes)
}
