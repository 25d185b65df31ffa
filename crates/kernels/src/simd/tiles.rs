//! What the tile registers of a lane are told: their shape, the codes' values, one run along a stretch. Refuses to
//! know which instructions they are.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use super::amx;

/// What [`super::Lane::wide_pairs`] multiplies values by: a power of two, and so without rounding.
pub(crate) const WIDE_PAIRS: f32 = 256.0;

/// The bfloat16 values of codes below 64.
pub(crate) struct PairTable {
    /// Low and high bytes apart.
    pub(crate) low: [u8; 64],
    pub(crate) high: [u8; 64],
    /// Whole, of the codes below 16, and once more.
    pub(crate) nibbles: [u16; 32],
}

impl PairTable {
    /// Code `c` stands for `c - zero`.
    pub(crate) const fn from_zero(zero: u8) -> Self {
        let mut values = [0; 64];
        let mut i = 0;
        while i < 64 {
            values[i] = i as i16 - zero as i16;
            i += 1;
        }
        Self::of(&values)
    }

    /// Code `c` stands for `values[c]`, at most eight bits.
    pub(crate) const fn of(values: &[i16]) -> Self {
        let mut table = Self { low: [0; 64], high: [0; 64], nibbles: [0; 32] };
        let mut i = 0;
        while i < values.len() {
            let [_, _, low, high] = (values[i] as f32).to_bits().to_le_bytes();
            (table.low[i], table.high[i]) = (low, high);
            if i < 16 {
                let value = u16::from_le_bytes([low, high]);
                (table.nibbles[i], table.nibbles[i + 16]) = (value, value);
            }
            i += 1;
        }
        table
    }
}

/// Cache lines that a run asks for with each block.
pub(crate) const TILE_ASKS: usize = 4;

/// A tile of tokens meets a stretch of one panel.
pub(crate) struct TileRun {
    /// The first token's row in the stretch's first bfloat16 record.
    pub(crate) x: *const u8,
    /// [block][16 pairs of columns][16 rows] bfloat16 pairs, or the codes as they are stored.
    pub(crate) codes: *const u8,
    /// [block or half][16].
    pub(crate) scales: *const f32,
    /// As `scales`; only with mins.
    pub(crate) mins: *const f32,
    pub(crate) n_blocks: usize,
    /// Stored bytes to ask for early, [`TILE_ASKS`] lines with each block, or all of it where codes are read as stored.
    pub(crate) ahead: *const u8,
    /// Bytes from one block's to the next's; none to ask for nothing.
    pub(crate) ahead_step: usize,
    /// T rows of sixteen outputs, `stride` elements apart.
    pub(crate) out: *mut f32,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by x86's tiles only"))]
    pub(crate) stride: usize,
    /// Adds to what the outputs are, instead of setting them.
    pub(crate) adds: bool,
}

/// This thread's hold on its tile registers. They have a shape while it lives, and are given back when it is dropped.
#[derive(Default)]
pub(crate) struct TileConfig {
    shape: Cell<Option<(usize, bool)>>,
}

impl TileConfig {
    /// Shapes the tiles for so many tokens, and for blocks or half blocks.
    ///
    /// # Safety
    /// The machine must have a lane with tiles.
    pub(crate) unsafe fn shape(&self, n_tokens: usize, halves: bool) {
        if self.shape.replace(Some((n_tokens, halves))) != Some((n_tokens, halves)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches for the tiles.
            unsafe {
                amx::configure(n_tokens, halves);
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
