//! A K block of a weight panel: unpacked for the register tiles, with the scratch buffer that holds it, or as
//! it is stored. Does not multiply.

use std::cell::RefCell;

use throng_os::memory::AlignedBytes;

use crate::quant::{PANEL, PackedMatrix, Unpack, Unpacked, unpacked_block_bytes};
use crate::simd::Isa;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { codes: None, scales: Vec::new() }) };
}

/// Scratch for unpacked K blocks; one for each thread, reused.
pub(super) struct Scratch {
    codes: Option<AlignedBytes>,
    scales: Vec<f32>,
}

/// f32 values of one quantization block and sixteen rows: scales, mins and sums, each for up to two half
/// blocks.
const BLOCK_SCALES: usize = 6 * PANEL;

/// Quantization blocks of a K block (1,024 columns). Unpacked they take 16 KiB, which leaves room in L1 for
/// the activations.
pub(super) const K_BLOCK_BLOCKS: usize = 32;

/// Quantization blocks `first..first + n` of a panel.
pub(super) struct PanelBlocks {
    pub(super) panel: usize,
    pub(super) first: usize,
    pub(super) n: usize,
}

impl Scratch {
    /// Makes room for the K blocks of `n_panels` panels.
    pub(super) fn reserve(&mut self, weights: &PackedMatrix, n_panels: usize) {
        let n_blocks = n_panels * K_BLOCK_BLOCKS;
        let n_bytes = n_blocks * unpacked_block_bytes(weights.format());
        AlignedBytes::at_least(&mut self.codes, n_bytes);
        if self.scales.len() < n_blocks * BLOCK_SCALES {
            self.scales.resize(n_blocks * BLOCK_SCALES, 0.0);
        }
    }

    /// Unpacks quantization blocks of a panel into slot `slot` out of `together`.
    pub(super) fn unpack(
        &mut self,
        isa: Isa,
        weights: &PackedMatrix,
        blocks: PanelBlocks,
        slot: usize,
        together: usize,
    ) -> KBlock {
        let PanelBlocks { panel, first, n } = blocks;
        let n_codes = K_BLOCK_BLOCKS * unpacked_block_bytes(weights.format());
        let n_scales = K_BLOCK_BLOCKS * BLOCK_SCALES;
        let codes = self.codes.as_mut().expect("the scratch was reserved").as_mut_slice();
        let layout = weights.layout();
        let kernel = Unpack {
            format: weights.format(),
            layout,
            panel: weights.panel(panel),
            ahead: ahead(weights, panel, first + n, together),
            first,
            n,
            scratch_codes: &mut codes[slot * n_codes..][..n_codes],
            scratch_scales: &mut self.scales[slot * n_scales..][..n_scales],
        };
        // SAFETY: the kernel checks its sizes against the panel's layout.
        KBlock { panel, first, n, unpacked: Some(unsafe { isa.run(kernel) }) }
    }
}

/// Operands that a pass over `together` panels reads next in this slot, after a panel's blocks before `end`:
/// the address of a panel (need not be valid) and its first block. For prefetching.
pub(super) fn ahead(weights: &PackedMatrix, panel: usize, end: usize, together: usize) -> (*const u8, usize) {
    let layout = weights.layout();
    let (panels_on, next) = if end >= layout.n_blocks { (together, end - layout.n_blocks) } else { (0, end) };
    (weights.panel(panel).as_ptr().wrapping_add(panels_on * layout.bytes), next)
}

/// Quantization blocks `first..first + n` of a panel.
#[derive(Clone, Copy)]
pub(super) struct KBlock {
    pub(super) panel: usize,
    pub(super) first: usize,
    pub(super) n: usize,
    /// `None` where codes are read as they are stored.
    pub(super) unpacked: Option<Unpacked>,
}

impl KBlock {
    /// All blocks of a panel, read as they are stored.
    pub(super) fn stored(weights: &PackedMatrix, panel: usize) -> Self {
        Self { panel, first: 0, n: weights.layout().n_blocks, unpacked: None }
    }

    /// Whether it is the last K block of its panel.
    pub(super) fn is_last(&self, weights: &PackedMatrix) -> bool {
        self.first + self.n == weights.layout().n_blocks
    }
}
