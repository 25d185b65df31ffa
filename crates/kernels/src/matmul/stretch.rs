//! Part of a panel, unpacked for the tiles, and the room where that is done. Refuses to multiply.

use std::cell::RefCell;

use crate::memory::AlignedBytes;
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

/// Blocks of a stretch at most: unpacked, 16 KiB of codes, which leaves room in the first cache for the tokens.
pub(super) const STRETCH: usize = 32;

impl Scratch {
    /// Room for a stretch of so many panels.
    pub(super) fn reserve(&mut self, weights: &PackedMatrix, n_panels: usize) {
        let n_blocks = n_panels * STRETCH;
        let n_bytes = n_blocks * unpacked_block_bytes(weights.format());
        AlignedBytes::at_least(&mut self.codes, n_bytes);
        if self.scales.len() < n_blocks * BLOCK_SCALES {
            self.scales.resize(n_blocks * BLOCK_SCALES, 0.0);
        }
    }

    /// Unpacks blocks `first..first + n` of a panel to the place of number `slot` of `together` panels.
    pub(super) fn unpack(
        &mut self,
        isa: Isa,
        weights: &PackedMatrix,
        (panel, first, n): (usize, usize, usize),
        (slot, together): (usize, usize),
    ) -> Stretch {
        let n_codes = STRETCH * unpacked_block_bytes(weights.format());
        let n_scales = STRETCH * BLOCK_SCALES;
        let codes = self.codes.as_mut().expect("the scratch was reserved").as_mut_slice();
        let layout = weights.layout();
        let task = Unpack {
            format: weights.format(),
            layout,
            panel: weights.panel(panel),
            ahead: ahead(weights, (panel, first + n), together),
            first,
            n,
            scratch_codes: &mut codes[slot * n_codes..][..n_codes],
            scratch_scales: &mut self.scales[slot * n_scales..][..n_scales],
        };
        // SAFETY: the pool's lane is available; the task checks its own sizes.
        Stretch { panel, first, n, weights: unsafe { isa.run(task) } }
    }
}

/// What a place in a pass over `together` panels holds after a panel's blocks before `end`: where a panel begins, which need
/// not be valid, and its first block.
pub(super) fn ahead(
    weights: &PackedMatrix,
    (panel, end): (usize, usize),
    together: usize,
) -> (*const u8, usize) {
    let layout = weights.layout();
    let (panels_on, next) = if end >= layout.n_blocks { (together, end - layout.n_blocks) } else { (0, end) };
    (weights.panel(panel).as_ptr().wrapping_add(panels_on * layout.bytes), next)
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
