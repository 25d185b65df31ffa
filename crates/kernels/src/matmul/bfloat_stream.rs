//! Few tokens in tiles of bfloat16: each block of weights meets them as soon as it is unpacked, and sums stay in the tiles
//! from the first block to the last. Refuses to know formats.
//!
//! Blocks are unpacked some steps before the tiles take them, so that vectors and tiles work at the same time: what a
//! tile reads must have left the processor's queue of stores.

use std::ops::Range;

use super::activations::Form;
use super::bfloat_product::{BfloatProduct, TILE, add_products};
use super::stretch::ahead;
use crate::quant::{PAIRS_BYTES, PairUnpacker};
use crate::simd::{Lane, Task};

/// Steps between unpacking a block and multiplying it.
const DELAY: usize = 2;
/// Steps that the ring of unpacked blocks has room for.
pub(super) const RING_STEPS: usize = 2 * DELAY;
/// Blocks between the one that is unpacked and the one that is asked for.
const ASK_AHEAD: usize = 8;

/// `G` groups of tokens times some panels, `P` at a time, which divides them; the tiles have their shape.
pub(super) struct Stream<'a, U, const G: usize, const P: usize> {
    pub(super) of: &'a BfloatProduct<'a>,
    pub(super) unpacker: U,
    /// The first group.
    pub(super) group: usize,
    pub(super) panels: Range<usize>,
    /// [step][panel][part].
    pub(super) ring: &'a mut [u8],
}

/// A group's sums of two panels.
#[repr(align(64))]
struct Sums([f32; 2 * TILE]);

impl<U: PairUnpacker, const G: usize, const P: usize> Task for Stream<'_, U, G, P> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let (block_bytes, record) = (U::PARTS * PAIRS_BYTES, U::TOKEN_PARTS * Form::BFloats.record());
        assert!(self.ring.len() >= RING_STEPS * P * block_bytes && self.panels.len().is_multiple_of(P));
        let n_blocks = self.of.product.weights.layout().n_blocks;
        let n_steps = self.panels.len() / P * n_blocks;
        let groups = [self.group, self.group + G - 1];
        let x = groups.map(|group| self.of.records(group, 0));
        let mut sums = [const { Sums([0.0; 2 * TILE]) }; G];
        let (mut unpacked, mut multiplied) = (Place::new(&self.panels), Place::new(&self.panels));
        for step in 0..n_steps + DELAY {
            // SAFETY: the tiles are shaped; groups have a record for each block, panels have their blocks, the ring has
            // room for them and sums for two tiles.
            unsafe {
                if step >= DELAY {
                    if multiplied.block == 0 {
                        L::zero_sums();
                    }
                    let slot = (step - DELAY) % RING_STEPS * P;
                    let w =
                        [slot, slot + P - 1].map(|slot| self.ring.as_ptr().wrapping_add(slot * block_bytes));
                    let x = x.map(|x| x.wrapping_add(multiplied.block * record));
                    add_products::<L, U, G, P>(x, w);
                    if multiplied.block + 1 == n_blocks {
                        let first = multiplied.panel;
                        L::store_sums::<G, P>([0, G - 1].map(|g| sums[g].0.as_mut_ptr()));
                        for (g, sums) in sums.iter().enumerate() {
                            self.of.finish(self.group + g, first..first + P, &sums.0).run::<L>();
                        }
                    }
                    multiplied.step(n_blocks, P);
                }
                if step < n_steps {
                    let weights = self.of.product.weights;
                    for p in 0..P {
                        let (panel, slot) = (unpacked.panel + p, step % RING_STEPS * P + p);
                        let (next, block) = ahead(weights, (panel, unpacked.block + ASK_AHEAD), P);
                        self.unpacker.ask::<L>(next, block);
                        let out = self.ring.as_mut_ptr().add(slot * block_bytes);
                        self.unpacker.unpack::<L>(weights.panel(panel).as_ptr(), unpacked.block, out);
                    }
                    unpacked.step(n_blocks, P);
                }
            }
        }
    }
}

/// A place on the way over the blocks of some panels.
struct Place {
    /// The first one of those that go together.
    panel: usize,
    block: usize,
}

impl Place {
    fn new(panels: &Range<usize>) -> Self {
        Self { panel: panels.start, block: 0 }
    }

    #[inline(always)]
    fn step(&mut self, n_blocks: usize, n_panels: usize) {
        self.block += 1;
        if self.block == n_blocks {
            (self.panel, self.block) = (self.panel + n_panels, 0);
        }
    }
}
