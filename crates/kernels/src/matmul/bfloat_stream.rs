//! Few tokens in tiles of bfloat16: each block of weights meets them as soon as it is unpacked, and sums stay in the tiles
//! from the first block to the last. Refuses to know formats.
//!
//! Blocks are unpacked some steps before the tiles take them, so that vectors and tiles work at the same time: what a
//! tile reads must have left the processor's queue of stores.

use std::ops::Range;

use super::Target;
use super::bfloat_product::{BfloatProduct, TILE, add_products};
use crate::quant::{PAIRS_BYTES, PairUnpacker, PanelLayout};
use crate::simd::{Lane, Task, ask};

/// Steps between unpacking a block and multiplying it.
const DELAY: usize = 2;
/// Steps that the ring of unpacked blocks has room for.
pub(super) const RING_STEPS: usize = 2 * DELAY;
/// Bytes of a panel between the block that is unpacked and the one that is asked for. Of two panels that is what a core can
/// have under way from memory; asking for more made one user of half floats an eighth slower, of Q8_0 3 %.
const ASK_AHEAD: usize = 2304;

/// Blocks between the activations that are multiplied and those that are asked for.
const X_AHEAD: usize = 8;

/// `G` groups of tokens times some panels in slots, `P` at a time, which divides them; the tiles have their shape.
pub(super) struct Stream<'a, U, const G: usize, const P: usize> {
    pub(super) of: &'a BfloatProduct<'a>,
    /// Of even slots and of odd ones.
    pub(super) unpackers: [U; 2],
    /// The first group.
    pub(super) group: usize,
    pub(super) panels: Range<usize>,
    pub(super) target: Target<'a>,
    /// [step][slot][part].
    pub(super) ring: &'a mut [u8],
}

/// A group's sums of two slots.
#[repr(align(64))]
struct Sums([f32; 2 * TILE]);

impl<U: PairUnpacker, const G: usize, const P: usize> Task for Stream<'_, U, G, P> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let (block_bytes, record) = (U::PARTS * PAIRS_BYTES, self.of.product.x.record(self.of.form));
        let n_panels = P / self.of.n_matrices();
        assert!(
            self.ring.len() >= RING_STEPS * P * block_bytes && self.panels.len().is_multiple_of(n_panels)
        );
        let PanelLayout { n_blocks, bytes, .. } = *self.of.product.weights.layout();
        let ask_ahead = (ASK_AHEAD * n_blocks / bytes).max(1);
        let (n_steps, panel_bytes) = (self.panels.len() / n_panels * n_blocks, n_panels * bytes);
        let x = [self.group, self.group + G - 1].map(|group| self.of.records(group, 0));
        let mut panels = [0, P - 1].map(|slot| {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            weights.panel(panel).as_ptr()
        });
        let (unpackers, ring) = (self.unpackers, self.ring.as_mut_ptr());
        let mut sums = [const { Sums([0.0; 2 * TILE]) }; G];
        // The blocks that are unpacked and multiplied next, and the panel of the latter.
        let (mut unpacked, mut multiplied, mut panel) = (0, 0, self.panels.start);
        for step in 0..n_steps + DELAY {
            // SAFETY: the tiles are shaped; groups have a record for each block, panels have their blocks and follow each
            // other, the ring has room for them and sums for two tiles.
            unsafe {
                if step >= DELAY {
                    if multiplied == 0 {
                        L::zero_sums();
                    }
                    let slot = (step - DELAY) % RING_STEPS * P;
                    let w = [slot, slot + P - 1].map(|slot| ring.add(slot * block_bytes).cast_const());
                    add_products::<L, U, G, P>(x.map(|x| x.wrapping_add(multiplied * record)), w);
                    multiplied += 1;
                    let next = match multiplied + X_AHEAD {
                        next if next < n_blocks => next,
                        next => next - n_blocks,
                    };
                    for x in &x[..G] {
                        ask::<L, true>(x.wrapping_add(next * record), record);
                    }
                    if multiplied == n_blocks {
                        L::store_sums::<G, P>([0, G - 1].map(|g| sums[g].0.as_mut_ptr()));
                    }
                }
                if step < n_steps {
                    let slot = step % RING_STEPS * P;
                    let ahead = match unpacked + ask_ahead {
                        ahead if ahead < n_blocks => (0, ahead),
                        ahead => (panel_bytes, ahead - n_blocks),
                    };
                    for p in 0..P {
                        unpackers[p].ask::<L, true>(panels[p].wrapping_add(ahead.0), ahead.1);
                        unpackers[p].unpack::<L>(panels[p], unpacked, ring.add((slot + p) * block_bytes));
                    }
                    unpacked += 1;
                    if unpacked == n_blocks {
                        unpacked = 0;
                        panels = panels.map(|panel| panel.wrapping_add(panel_bytes));
                    }
                }
                // Behind the unpacking, since sums take a while to leave their tiles.
                if multiplied == n_blocks {
                    let done = panel..panel + n_panels;
                    for (g, sums) in sums.iter().enumerate() {
                        let outputs = self.of.outputs(self.target, self.group + g, &done);
                        self.of.finish(&done, &sums.0, outputs).run::<L>();
                    }
                    (multiplied, panel) = (0, panel + n_panels);
                }
            }
        }
    }
}
