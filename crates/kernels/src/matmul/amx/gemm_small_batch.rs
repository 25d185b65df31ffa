//! AMX GEMM for small batches: a run of a few blocks of weights is multiplied as soon as it is unpacked. Does
//! not know quantization formats.
//!
//! Accumulators are in memory between two runs, which are as long as keeps that cheap and the unpacked blocks
//! in L1. Each run is multiplied after the first blocks of the next one were unpacked, so that vector and
//! tile units work at the same time: a tile load must not wait for stores that are still in the store buffer.

use std::ops::Range;

use super::product::{AmxGemm, TILE, add_products};
use crate::layout::{PAIRS_BYTES, PanelLayout};
use crate::matmul::Target;
use crate::quant::AmxUnpacker;
use crate::simd::{AmxIsa, AmxKernel, Kernel, ProductRun, prefetch_bytes};

/// Most blocks of a run: the last one of a panel may be shorter.
const RUN: usize = 4;
/// Blocks of the next run that are unpacked before a run is multiplied.
const DELAY: usize = 2;
/// Capacity of the ring of unpacked blocks: two runs.
pub(super) const RING_BLOCKS: usize = 2 * RUN;
/// Prefetch distance in bytes of a panel. With two panels it matches the outstanding misses that a core
/// supports: a larger distance made single-user F16 an eighth slower and Q8_0 3 %.
const PREFETCH_AHEAD_BYTES: usize = 2304;

/// Prefetch distance of activations, in blocks.
const ACTIVATION_PREFETCH_BLOCKS: usize = 8;

/// `G` groups of tokens times some panels, `P` slots at a time (which divides their number). The tile
/// configuration is loaded.
pub(super) struct Stream<'a, U, const G: usize, const P: usize> {
    pub(super) of: &'a AmxGemm<'a>,
    /// Unpackers of even slots and of odd ones.
    pub(super) unpackers: [U; 2],
    /// The first group.
    pub(super) group: usize,
    pub(super) panels: Range<usize>,
    pub(super) target: Target<'a>,
    /// Unpacked blocks: [run][block][slot][part].
    pub(super) ring: &'a mut [u8],
}

/// A group's accumulators of two slots, [slot][16 tokens][16 rows].
#[repr(align(64))]
struct Sums([f32; 2 * TILE]);

/// Blocks that are multiplied together.
struct Run {
    /// The first slot's panel, counted from the first panel of all.
    panel: usize,
    /// The blocks of these panels; none after the last run.
    blocks: Range<usize>,
    /// The half of the ring that they are unpacked to.
    ring: *mut u8,
}

impl<U: AmxUnpacker, const G: usize, const P: usize> Stream<'_, U, G, P> {
    /// Bytes of an unpacked block.
    const BLOCK_BYTES: usize = U::PARTS * PAIRS_BYTES;
    /// Bytes of an unpacked block of all slots.
    const STEP: usize = P * Self::BLOCK_BYTES;

    /// Unpacks a block of the slots' panels to `out`.
    ///
    /// # Safety
    /// The block is in the panels, there is room for it, and the ISA's features are available.
    #[inline(always)]
    unsafe fn unpack<S: AmxIsa>(&self, panels: [*const u8; 2], block: usize, out: *mut u8) {
        let PanelLayout { n_blocks, bytes, .. } = *self.of.product.weights.layout();
        let prefetch_ahead = (PREFETCH_AHEAD_BYTES * n_blocks / bytes).max(1);
        let ahead = match block + prefetch_ahead {
            ahead if ahead < n_blocks => (0, ahead),
            ahead => (P / self.of.n_matrices() * bytes, ahead - n_blocks),
        };
        for (p, &panel) in panels.iter().enumerate().take(P) {
            // SAFETY: by the caller; any address may be prefetched.
            unsafe {
                self.unpackers[p].prefetch::<S, true>(panel.wrapping_add(ahead.0), ahead.1);
                self.unpackers[p].unpack::<S>(panel, block, out.add(p * Self::BLOCK_BYTES));
            }
        }
    }

    /// Multiplies the groups, whose records begin at `x`, with a run of unpacked blocks, and prefetches
    /// records of later ones.
    ///
    /// # Safety
    /// The tiles are shaped, and the ring has the blocks.
    #[inline(always)]
    unsafe fn multiply<S: AmxIsa>(&self, x: [*const u8; 2], run: &Run, sums: &mut [Sums; G]) {
        let (blocks, w) = (run.blocks.clone(), run.ring.cast_const());
        let record = self.of.product.x.record(self.of.form);
        let operands = ProductRun {
            x: x.map(|x| x.wrapping_add(blocks.start * record)),
            x_step: record,
            w: [0, P - 1].map(|slot| w.wrapping_add(slot * Self::BLOCK_BYTES)),
            w_step: Self::STEP,
            n_blocks: blocks.len(),
            sums: [0, G - 1].map(|g| sums[g].0.as_mut_ptr()),
            adds: blocks.start > 0,
        };
        let n_blocks = self.of.product.weights.layout().n_blocks;
        // SAFETY: by the caller; groups have a record for each block and `sums` two tiles a group; any address may be prefetched.
        unsafe {
            add_products::<S, U, G, P>(&operands);
            for block in blocks {
                let next = match block + 1 + ACTIVATION_PREFETCH_BLOCKS {
                    next if next < n_blocks => next,
                    next => next - n_blocks,
                };
                for x in &x[..G] {
                    prefetch_bytes::<S, true>(x.wrapping_add(next * record), record);
                }
            }
        }
    }
}

impl<U: AmxUnpacker, const G: usize, const P: usize> AmxKernel for Stream<'_, U, G, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        let n_panels = P / self.of.n_matrices();
        assert!(self.ring.len() >= RING_BLOCKS * Self::STEP && self.panels.len().is_multiple_of(n_panels));
        let PanelLayout { n_blocks, bytes, .. } = *self.of.product.weights.layout();
        let runs_per_panel = n_blocks.div_ceil(RUN);
        let n_runs = self.panels.len() / n_panels * runs_per_panel;
        let x = [self.group, self.group + G - 1].map(|group| self.of.records(group, 0));
        let first_panels = [0, P - 1].map(|slot| {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            weights.panel(panel).as_ptr()
        });
        let ring = self.ring.as_mut_ptr();
        let run_at = |n: usize| {
            let first = n % runs_per_panel * RUN;
            let end = if n < n_runs { n_blocks.min(first + RUN) } else { first };
            let ring = ring.wrapping_add(n % 2 * RUN * Self::STEP);
            Run { panel: n / runs_per_panel * n_panels, blocks: first..end, ring }
        };
        let mut sums = [const { Sums([0.0; 2 * TILE]) }; G];
        for n in 0..=n_runs {
            let (next, before) = (run_at(n), n.checked_sub(1).map(run_at));
            let panels = first_panels.map(|first| first.wrapping_add(next.panel * bytes));
            let pause = next.blocks.len().min(DELAY);
            for i in 0..=next.blocks.len() {
                // SAFETY: the tile configuration is loaded; panels are contiguous and have the blocks, and each run a half of the ring.
                unsafe {
                    if i == pause
                        && let Some(before) = &before
                    {
                        self.multiply::<S>(x, before, &mut sums);
                    }
                    if i < next.blocks.len() {
                        self.unpack::<S>(panels, next.blocks.start + i, next.ring.add(i * Self::STEP));
                    }
                }
            }
            // After the unpacking, which hides the latency of the tile stores.
            if let Some(done) = before
                && done.blocks.end == n_blocks
            {
                let first = self.panels.start + done.panel;
                let panels = first..first + n_panels;
                for (g, sums) in sums.iter().enumerate() {
                    let outputs = self.of.outputs(self.target, self.group + g, &panels);
                    // SAFETY: the ISA's features are available, by the caller.
                    unsafe { self.of.finish(&panels, &sums.0, outputs).run::<S>() };
                }
            }
        }
    }
}
