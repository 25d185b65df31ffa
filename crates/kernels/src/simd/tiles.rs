//! What the tile registers of a lane are told: their shape, one run along a stretch. Refuses to
//! know which instructions they are.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use super::amx;

/// The power of two that products in tiles want to be multiplied by: pairs of weights are 2^-112 of what they stand for
/// (half floats with the exponent of bfloat16), those of activations 2^56 times as much, so that neither end of the
/// floats' range is near: activations may be anything from 1e-20 to 1e20.
pub(crate) const TILE_DOTS_BY: f32 = f32::from_bits((127 + 112 - 56) << 23);
/// 2^56; see [`TILE_DOTS_BY`].
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other lane has tiles"))]
pub(crate) const ACTIVATIONS_BY: f32 = f32::from_bits((127 + 56) << 23);

/// `G` groups of query rows, each in two parts of bfloat16 that are multiplied one after the other, meet `P` blocks of keys.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
pub(crate) struct KeyRun {
    /// Each group's [32 dimensions][part][16 rows][32].
    pub(crate) queries: [*const u8; 2],
    /// Each block's [32 dimensions][16 pairs][16 tokens] pairs.
    pub(crate) keys: [*const u8; 2],
    /// Steps of 32 dimensions.
    pub(crate) n_steps: usize,
    /// Each group's rows of `P` times sixteen scores, which are set.
    pub(crate) scores: [*mut f32; 2],
    /// Elements from one row's scores to the next's.
    pub(crate) stride: usize,
}

/// `G` groups of rows of weights, in two parts as [`KeyRun`]'s, meet 32 columns of blocks of values.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
pub(crate) struct ValueRun {
    /// Each group's [block][16 rows][part][16].
    pub(crate) weights: [*const u8; 2],
    /// Each block's [16 dimensions][8 pairs of tokens][16] pairs.
    pub(crate) blocks: *const *const u8,
    pub(crate) n_blocks: usize,
    /// Bytes from a block's begin to its first column.
    pub(crate) offset: usize,
    /// Each group's rows of 32 sums, which are added to.
    pub(crate) sums: [*mut f32; 2],
    /// Elements from one row's sums to the next's.
    pub(crate) stride: usize,
}

/// This thread's hold on its tile registers. They have a shape while it lives, and are given back when it is dropped.
#[derive(Default)]
pub(crate) struct TileConfig {
    shape: Cell<Option<(usize, usize)>>,
}

impl TileConfig {
    /// Shapes the tiles for so many tokens (or other rows), at most sixteen, that meet sixteen pairs of columns, or eight.
    ///
    /// # Safety
    /// The machine must have a lane with tiles.
    pub(crate) unsafe fn shape(&self, n_tokens: usize, n_pairs: usize) {
        if self.shape.replace(Some((n_tokens, n_pairs))) != Some((n_tokens, n_pairs)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches for the tiles.
            unsafe {
                amx::configure(n_tokens, n_pairs);
            }
        }
    }
}

impl Drop for TileConfig {
    fn drop(&mut self) {
        if self.shape.get().is_some() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: tiles were shaped, so that the machine has them.
            unsafe {
                amx::release();
            }
        }
    }
}
