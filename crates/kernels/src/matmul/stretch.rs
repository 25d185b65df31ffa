//! Part of a panel, unpacked for the tiles, and the room where that is done. Refuses to multiply.

use std::cell::RefCell;

use crate::memory::{AlignedBytes, Pages};
use crate::quant::{PANEL, PackedMatrix, Unpack, Unpacked, unpacked_block_bytes};
use crate::simd::Isa;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { codes: None, scales: Vec::new() }) };
}

/// Room for unpacked stretches, kept by each thread.
pub(super) struct Scratch {
    codes: Option<AlignedBytes>,
    scales: Vec<f32>,
}

/// Scales, mins and sums of a block and sixteen rows, each for every half block at most.
const BLOCK_SCALES: usize = 6 * PANEL;

/// Blocks of a stretch at most.
pub(super) const STRETCH: usize = 32;
/// The same where codes are unpacked to bfloat16, twice as large.
pub(super) const TILE_STRETCH: usize = 16;

/// How panels are unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unpacking {
    pub(super) isa: Isa,
    /// Blocks of a stretch at most.
    pub(super) n_blocks: usize,
    /// Codes are read as they are stored.
    pub(super) scales_only: bool,
}

impl Scratch {
    /// Room for a stretch of so many panels.
    pub(super) fn reserve(&mut self, how: Unpacking, weights: &PackedMatrix, n_panels: usize) {
        let n_blocks = n_panels * how.n_blocks;
        let n_bytes = n_blocks * unpacked_block_bytes(weights.format(), how.isa.has_tiles());
        if self.codes.as_ref().is_none_or(|c| c.as_slice().len() < n_bytes) {
            self.codes = AlignedBytes::zeroed(n_bytes, Pages::Huge);
        }
        if self.scales.len() < n_blocks * BLOCK_SCALES {
            self.scales.resize(n_blocks * BLOCK_SCALES, 0.0);
        }
    }

    /// Unpacks blocks `first..first + n` of a panel to the place of number `slot` of `together` panels.
    pub(super) fn unpack(
        &mut self,
        how: Unpacking,
        weights: &PackedMatrix,
        (panel, first, n): (usize, usize, usize),
        (slot, together): (usize, usize),
    ) -> Stretch {
        let n_codes = how.n_blocks * unpacked_block_bytes(weights.format(), how.isa.has_tiles());
        let n_scales = how.n_blocks * BLOCK_SCALES;
        let codes = self.codes.as_mut().expect("the scratch was reserved").as_mut_slice();
        let layout = weights.layout();
        // What this place in a pass over `together` panels holds next.
        let (panels_on, next) = if first + n == layout.n_blocks { (together, 0) } else { (0, first + n) };
        let ahead = weights.panel(panel).as_ptr().wrapping_add(panels_on * layout.bytes);
        let task = Unpack {
            format: weights.format(),
            layout,
            panel: weights.panel(panel),
            ahead: (ahead, next),
            first,
            n,
            scales_only: how.scales_only,
            scratch_codes: &mut codes[slot * n_codes..][..n_codes],
            scratch_scales: &mut self.scales[slot * n_scales..][..n_scales],
        };
        // SAFETY: the pool's lane is available; the task checks its own sizes.
        Stretch { panel, first, n, weights: unsafe { how.isa.run(task) } }
    }
}

/// Blocks `first..first + n` of a panel, unpacked.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) panel: usize,
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) weights: Unpacked,
}

impl Stretch {
    /// Whether it is the end of its panel.
    pub(super) fn is_last(&self, weights: &PackedMatrix) -> bool {
        self.first + self.n == weights.layout().n_blocks
    }
}
