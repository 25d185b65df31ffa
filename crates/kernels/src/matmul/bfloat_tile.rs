//! The inner product kernel of lanes with tiles: up to sixteen tokens in bfloat16 times a panel. Refuses to know whose
//! tokens they are.
//!
//! `out += scale · Σ code · x (+ min · Σ x)`, block by block in order, each addition fused with its multiplication: an
//! element's bits depend on its own row and token only.

use crate::quant::CodeLayout;
use crate::simd::{Lane, Task, TileRun};

/// One group's tokens over a stretch of blocks of one panel.
pub(super) struct BfloatTile {
    /// [`BfloatTile::rows`] rows of outputs.
    pub(super) run: TileRun,
    pub(super) codes: CodeLayout,
    pub(super) n_tokens: usize,
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
        let (run, scales) = (&self.run, self.codes.scales);
        macro_rules! run {
            ($rows:literal) => {
                match (scales.halves(), scales.has_min()) {
                    (false, false) => L::tile_dots::<$rows, false, false>(run),
                    (false, true) => L::tile_dots::<$rows, false, true>(run),
                    (true, false) => L::tile_dots::<$rows, true, false>(run),
                    (true, true) => L::tile_dots::<$rows, true, true>(run),
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
