//! AMX GEMM for small batches: each block of weights is multiplied as soon as it is unpacked, and accumulators stay in tile registers
//! over all of K. Does not know quantization formats.
//!
//! Blocks are unpacked a few steps before they are multiplied, so that vector and tile units work at the same time: a tile load must
//! not wait for stores that are still in the store buffer.

use std::ops::Range;

use super::product::{AmxGemm, TILE, add_products};
use crate::layout::{PAIRS_BYTES, PanelLayout};
use crate::matmul::Target;
use crate::quant::AmxUnpacker;
use crate::simd::{AmxIsa, AmxKernel, Kernel, prefetch_bytes};

/// Steps between unpacking a block and multiplying it.
const DELAY: usize = 2;
/// Capacity of the ring of unpacked blocks, in steps.
pub(super) const RING_STEPS: usize = 2 * DELAY;
/// Prefetch distance in bytes of a panel. With two panels it matches the outstanding misses that a core supports: a larger distance
/// made single-user F16 an eighth slower and Q8_0 3 %.
const PREFETCH_AHEAD_BYTES: usize = 2304;

/// Prefetch distance of activations, in blocks.
const ACTIVATION_PREFETCH_BLOCKS: usize = 8;

/// `G` groups of tokens times some panels, `P` slots at a time (which divides their number). The tile configuration is loaded.
pub(super) struct Stream<'a, U, const G: usize, const P: usize> {
    pub(super) of: &'a AmxGemm<'a>,
    /// Unpackers of even slots and of odd ones.
    pub(super) unpackers: [U; 2],
    /// The first group.
    pub(super) group: usize,
    pub(super) panels: Range<usize>,
    pub(super) target: Target<'a>,
    /// Unpacked blocks: [step][slot][part].
    pub(super) ring: &'a mut [u8],
}

/// A group's accumulators of two slots.
#[repr(align(64))]
struct Sums([f32; 2 * TILE]);

impl<U: AmxUnpacker, const G: usize, const P: usize> AmxKernel for Stream<'_, U, G, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        let (block_bytes, record) = (U::PARTS * PAIRS_BYTES, self.of.product.x.record(self.of.form));
        let n_panels = P / self.of.n_matrices();
        assert!(
            self.ring.len() >= RING_STEPS * P * block_bytes && self.panels.len().is_multiple_of(n_panels)
        );
        let PanelLayout { n_blocks, bytes, .. } = *self.of.product.weights.layout();
        let prefetch_ahead = (PREFETCH_AHEAD_BYTES * n_blocks / bytes).max(1);
        let (n_steps, panel_bytes) = (self.panels.len() / n_panels * n_blocks, n_panels * bytes);
        let x = [self.group, self.group + G - 1].map(|group| self.of.records(group, 0));
        let mut panels = [0, P - 1].map(|slot| {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            weights.panel(panel).as_ptr()
        });
        let (unpackers, ring) = (self.unpackers, self.ring.as_mut_ptr());
        let mut sums = [const { Sums([0.0; 2 * TILE]) }; G];
        // The next block to unpack, the next block to multiply, and the latter's panel.
        let (mut unpacked, mut multiplied, mut panel) = (0, 0, self.panels.start);
        for step in 0..n_steps + DELAY {
            // SAFETY: the tile configuration is loaded; groups have a record for each block, panels are contiguous, the ring has
            // room for the blocks and `sums` for two tiles.
            unsafe {
                if step >= DELAY {
                    if multiplied == 0 {
                        S::zero_sums();
                    }
                    let slot = (step - DELAY) % RING_STEPS * P;
                    let w = [slot, slot + P - 1].map(|slot| ring.add(slot * block_bytes).cast_const());
                    add_products::<S, U, G, P>(x.map(|x| x.wrapping_add(multiplied * record)), w);
                    multiplied += 1;
                    let next = match multiplied + ACTIVATION_PREFETCH_BLOCKS {
                        next if next < n_blocks => next,
                        next => next - n_blocks,
                    };
                    for x in &x[..G] {
                        prefetch_bytes::<S, true>(x.wrapping_add(next * record), record);
                    }
                    if multiplied == n_blocks {
                        S::store_sums::<G, P>([0, G - 1].map(|g| sums[g].0.as_mut_ptr()));
                    }
                }
                if step < n_steps {
                    let slot = step % RING_STEPS * P;
                    let ahead = match unpacked + prefetch_ahead {
                        ahead if ahead < n_blocks => (0, ahead),
                        ahead => (panel_bytes, ahead - n_blocks),
                    };
                    for p in 0..P {
                        unpackers[p].prefetch::<S, true>(panels[p].wrapping_add(ahead.0), ahead.1);
                        unpackers[p].unpack::<S>(panels[p], unpacked, ring.add((slot + p) * block_bytes));
                    }
                    unpacked += 1;
                    if unpacked == n_blocks {
                        unpacked = 0;
                        panels = panels.map(|panel| panel.wrapping_add(panel_bytes));
                    }
                }
                // After the unpacking, which hides the latency of the tile stores.
                if multiplied == n_blocks {
                    let done = panel..panel + n_panels;
                    for (g, sums) in sums.iter().enumerate() {
                        let outputs = self.of.outputs(self.target, self.group + g, &done);
                        self.of.finish(&done, &sums.0, outputs).run::<S>();
                    }
                    (multiplied, panel) = (0, panel + n_panels);
                }
            }
        }
    }
}
