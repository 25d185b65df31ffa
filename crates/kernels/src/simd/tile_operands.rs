//! The operands of AMX kernels, in a form that compiles on every architecture.

/// Products computed in AMX tiles are multiplied by this power of two. Unpacked weights are 2^-112 of their
/// value (an f16 reinterpreted with the exponent range of bf16) and activations are scaled by 2^56, which
/// keeps both away from the ends of the f32 range for activations from 1e-20 to 1e20.
pub(crate) const TILE_DOTS_BY: f32 = f32::from_bits((127 + 112 - 56) << 23);
/// 2^56; see [`TILE_DOTS_BY`].
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other ISA has tiles"))]
pub(crate) const ACTIVATIONS_BY: f32 = f32::from_bits((127 + 56) << 23);

/// Products of `G` groups of tokens with `P` panels over consecutive blocks, for
/// [`super::AmxIsa::add_products`].
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
pub(crate) struct ProductRun {
    /// Each group's record of the first block.
    pub(crate) x: [*const u8; 2],
    /// Bytes from a record to that of the next block.
    pub(crate) x_step: usize,
    /// Each panel's first unpacked block.
    pub(crate) w: [*const u8; 2],
    /// Bytes from an unpacked block to the panel's next one.
    pub(crate) w_step: usize,
    /// Number of blocks, at least one.
    pub(crate) n_blocks: usize,
    /// Each group's accumulators, [panel][16 tokens][16 rows].
    pub(crate) sums: [*mut f32; 2],
    /// Continues from the accumulators in memory instead of zeros.
    pub(crate) adds: bool,
}

/// `q · k` of `G` groups of query heads, each in two bf16 parts, with `P` blocks of keys.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
pub(crate) struct KeyRun {
    /// Each group's [32 dimensions][part][16 query heads][32].
    pub(crate) queries: [*const u8; 2],
    /// Each block's [32 dimensions][16 pairs][16 tokens] pairs.
    pub(crate) keys: [*const u8; 2],
    /// Number of steps of 32 dimensions.
    pub(crate) n_steps: usize,
    /// Each group's output: rows of `P` × sixteen scores.
    pub(crate) scores: [*mut f32; 2],
    /// Elements from one query head's scores to the next's.
    pub(crate) stride: usize,
}

/// `Σ weight · v` of `G` groups of query heads, the weights in two bf16 parts as in [`KeyRun`], over 32
/// columns of blocks of values.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
pub(crate) struct ValueRun {
    /// Each group's [block][16 query heads][part][16].
    pub(crate) weights: [*const u8; 2],
    /// Each block's [16 dimensions][8 pairs of tokens][16] pairs.
    pub(crate) blocks: *const *const u8,
    pub(crate) n_blocks: usize,
    /// Byte offset of the first column in a block.
    pub(crate) offset: usize,
    /// Each group's rows of 32 sums, which are added to.
    pub(crate) sums: [*mut f32; 2],
    /// Elements from one query head's sums to the next's.
    pub(crate) stride: usize,
}
