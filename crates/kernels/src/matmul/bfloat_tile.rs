//! The inner product kernel of lanes with tiles: up to sixteen tokens in bfloat16 times a panel. Refuses to know whose
//! tokens they are.
//!
//! `out += scale · Σ code · x (+ min · Σ x)`, block by block in order, each addition fused with its multiplication: an
//! element's bits depend on its own row and token only.

use crate::quant::Unpacked;
use crate::simd::{Lane, Task, TileRun};

/// One group's tokens over a stretch of blocks of one panel.
pub(super) struct BfloatTile {
    pub(super) weights: Unpacked,
    /// A half block has its own scale.
    pub(super) halves: bool,
    /// Mins are added.
    pub(super) has_min: bool,
    pub(super) n_tokens: usize,
    pub(super) n_blocks: usize,
    /// The group's first record of the stretch.
    pub(super) x: *const u8,
    /// Where the outputs begin: [`BfloatTile::rows`] rows of sixteen, `stride` apart.
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    /// Adds to what the outputs are, instead of setting them.
    pub(super) adds: bool,
}

impl BfloatTile {
    /// Rows that are computed and written.
    pub(super) fn rows(&self) -> usize {
        self.n_tokens.next_power_of_two()
    }
}

impl Task for BfloatTile {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let Self { weights, n_blocks, x, out, stride, adds, .. } = self;
        let Unpacked { codes, scales, mins, ahead, ahead_bytes, .. } = weights;
        // Asking for what is in the first cache costs next to nothing.
        let (ahead, ahead_step) = if ahead_bytes > 0 { (ahead, ahead_bytes) } else { (codes, 0) };
        let run = TileRun { x, codes, scales, mins, n_blocks, ahead, ahead_step, out, stride, adds };
        macro_rules! run {
            ($rows:literal) => {
                match (self.halves, self.has_min) {
                    (false, false) => L::tile_dots::<$rows, false, false>(&run),
                    (false, true) => L::tile_dots::<$rows, false, true>(&run),
                    (true, false) => L::tile_dots::<$rows, true, false>(&run),
                    (true, true) => L::tile_dots::<$rows, true, true>(&run),
                }
            };
        }
        // SAFETY: records, codes and outputs are as long as the fields say, by the driver.
        unsafe {
            match self.rows() {
                1 => run!(1),
                2 => run!(2),
                4 => run!(4),
                8 => run!(8),
                _ => run!(16),
            }
        }
    }
}
