//! Values that are parts of keys, from the order of keys to that of values. Does not know queries.

use super::KvDtype;
use super::kv::{BLOCK_TOKENS, KEY_STEP, KvShape};
use super::tiles::half_of_pairs;
use crate::quant::BLOCK;
use crate::simd::{Kernel, SimdIsa};

/// Writes the values of a block whose keys are [dimension][token] to [token][dimension of values], in f32.
pub(super) struct ValuesOfKeys<'a> {
    /// Shape of the stored keys.
    pub(super) shape: &'a KvShape,
    /// Panel with the keys of a block.
    pub(super) keys: &'a [u8],
    /// Sixteen rows of the padded dimension of values.
    pub(super) values: &'a mut [f32],
}

impl Kernel for ValuesOfKeys<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        assert!(self.keys.len() >= self.shape.panel_bytes());
        let keys = self.keys.as_ptr();
        // SAFETY: a whole panel of keys.
        unsafe {
            match self.shape.dtype {
                KvDtype::F32 => self.transpose::<S>(|d| S::load(keys.cast::<f32>().add(d * BLOCK_TOKENS))),
                KvDtype::F16 => {
                    self.transpose::<S>(|d| S::load_f16(keys.cast::<u16>().add(d * BLOCK_TOKENS)));
                }
                KvDtype::BF16 => self.transpose::<S>(|d| {
                    let pairs = keys.add(d / BLOCK * KEY_STEP + d % 16 * 64);
                    half_of_pairs::<S>(pairs, d % BLOCK / 16)
                }),
                KvDtype::Q8_0 => {
                    let scales = keys.add(self.shape.scales_at()).cast::<u16>();
                    self.transpose::<S>(|d| {
                        let (b, i) = (d / BLOCK, d % BLOCK);
                        let codes = keys.add(b * BLOCK * BLOCK_TOKENS + i / 4 * 64 + i % 4);
                        let code = |t: usize| f32::from((*codes.add(4 * t) ^ 0x80) as i8);
                        let codes: [f32; BLOCK_TOKENS] = std::array::from_fn(code);
                        S::mul(S::load(codes.as_ptr()), S::load_f16(scales.add(b * BLOCK_TOKENS)))
                    });
                }
            }
        }
    }
}

impl ValuesOfKeys<'_> {
    /// Transposes sixteen dimensions at a time, so that those of each token are stored as a vector.
    #[inline(always)]
    unsafe fn transpose<S: SimdIsa>(self, key: impl Fn(usize) -> S::F) {
        let (from, dim) = (self.shape.values_in_keys.unwrap_or(0), self.shape.value_dim());
        let padded = self.shape.padded_value_dim();
        assert!(self.values.len() >= BLOCK_TOKENS * padded);
        for first in (0..dim).step_by(16) {
            let mut tile = [[0.0_f32; BLOCK_TOKENS]; 16];
            for (i, row) in tile.iter_mut().enumerate().take(dim - first) {
                // SAFETY: the key has the dimension, and a row of the tile has room for a vector.
                unsafe { S::store(row.as_mut_ptr(), key(from + first + i)) };
            }
            for (t, row) in self.values.chunks_exact_mut(padded).take(BLOCK_TOKENS).enumerate() {
                let row: &mut [f32] = &mut row[first..first + 16];
                row.iter_mut().zip(&tile).for_each(|(out, of_dim)| *out = of_dim[t]);
            }
        }
    }
}
