//! AMX GEMM for small batches: a run of a few blocks of weights is multiplied as soon as it is unpacked. Does
//! not know quantization formats.
//!
//! Accumulators are in memory between two runs, which are long enough to make that cheap and short enough to
//! keep the unpacked blocks in L1. Each run is multiplied after the first blocks of the next one were
//! unpacked, so that vector and tile units work at the same time: a tile load must not wait for stores that
//! are still in the store buffer.

use std::ops::Range;

use super::product::{AmxGemm, TILE, add_products};
use crate::layout::{PAIRS_BYTES, PanelLayout};
use crate::matmul::Target;
use crate::quant::AmxUnpacker;
use crate::simd::{AmxIsa, AmxKernel, Kernel, ProductRun, prefetch_bytes};

/// Maximum number of blocks of a run: the last one of a panel may be shorter.
const MOST_RUN: usize = 4;
/// Number of tokens from which runs are long: storing and loading the accumulators takes longer.
const LONG_RUN_TOKENS: usize = 8;
/// Capacity of the ring of unpacked blocks: two runs.
pub(super) const RING_BLOCKS: usize = 2 * MOST_RUN;
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
    /// Index of the first group.
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
#[derive(Clone, Copy)]
struct Run {
    /// The first slot's panel, counted from the first panel of all.
    panel: usize,
    /// The first block of these panels.
    block: usize,
    /// Number of blocks; 0 after the last run.
    n_blocks: usize,
    /// The half of the ring that they are unpacked to.
    ring: *mut u8,
}

/// Constants of the loops over blocks, in registers: a memory access in the loops would be repeated after
/// each block of assembly, which may have changed memory.
struct Sizes {
    n_blocks: usize,
    /// Bytes of a panel.
    panel: usize,
    /// Bytes of an activation record.
    record: usize,
    /// Prefetch distance of weights, in blocks.
    prefetch_ahead: usize,
}

impl<U: AmxUnpacker, const G: usize, const P: usize> Stream<'_, U, G, P> {
    /// Bytes of an unpacked block.
    const BLOCK_BYTES: usize = U::PARTS * PAIRS_BYTES;
    /// Bytes of an unpacked block of all slots.
    const STEP: usize = P * Self::BLOCK_BYTES;

    /// Unpacks a block of the slots' panels to `out`. The next panels begin `stride` bytes behind these.
    ///
    /// # Safety
    /// The block is in the panels, there is room for it, and the ISA's features are available.
    #[inline(always)]
    unsafe fn unpack<S: AmxIsa>(
        unpackers: &[U; 2],
        sizes: &Sizes,
        (panels, stride): ([*const u8; 2], usize),
        block: usize,
        out: *mut u8,
    ) {
        let ahead = match block + sizes.prefetch_ahead {
            ahead if ahead < sizes.n_blocks => (0, ahead),
            ahead => (stride, ahead - sizes.n_blocks),
        };
        for (p, &panel) in panels.iter().enumerate().take(P) {
            // SAFETY: by the caller; any address may be prefetched.
            unsafe {
                unpackers[p].prefetch::<S, true>(panel.wrapping_add(ahead.0), ahead.1);
                unpackers[p].unpack::<S>(panel, block, out.add(p * Self::BLOCK_BYTES));
            }
        }
    }

    /// Multiplies the groups, whose records begin at `x`, with a run of unpacked blocks, and prefetches
    /// records of later ones.
    ///
    /// # Safety
    /// The tiles are shaped, and the ring has the blocks.
    #[inline(always)]
    unsafe fn multiply<S: AmxIsa>(sizes: &Sizes, x: [*const u8; 2], run: Run, sums: &mut [Sums; G]) {
        let (record, w) = (sizes.record, run.ring.cast_const());
        let operands = ProductRun {
            x: x.map(|x| x.wrapping_add(run.block * record)),
            x_step: record,
            w: [0, P - 1].map(|slot| w.wrapping_add(slot * Self::BLOCK_BYTES)),
            w_step: Self::STEP,
            n_blocks: run.n_blocks,
            sums: [0, G - 1].map(|g| sums[g].0.as_mut_ptr()),
            adds: run.block > 0,
        };
        // SAFETY: by the caller; groups have a record for each block and `sums` two tiles a group; any address may be prefetched.
        unsafe {
            add_products::<S, U, G, P>(&operands);
            for block in run.block..run.block + run.n_blocks {
                let next = match block + 1 + ACTIVATION_PREFETCH_BLOCKS {
                    next if next < sizes.n_blocks => next,
                    next => next - sizes.n_blocks,
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
        let sizes = Sizes {
            n_blocks,
            panel: bytes,
            record: self.of.product.x.record(self.of.form),
            prefetch_ahead: (PREFETCH_AHEAD_BYTES * n_blocks / bytes).max(1),
        };
        let unpackers = self.unpackers;
        let x = [self.group, self.group + G - 1].map(|group| self.of.records(group, 0));
        let first_panels = [0, P - 1].map(|slot| {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            weights.panel(panel).as_ptr()
        });
        // Long runs of activations in two parts do not fit L1.
        let is_long = U::TOKEN_PARTS == 1 && self.of.n_tokens(self.group) >= LONG_RUN_TOKENS;
        let run = if is_long { MOST_RUN } else { MOST_RUN / 2 };
        let halves = [0, run * Self::STEP].map(|at| self.ring.as_mut_ptr().wrapping_add(at));
        let mut sums = [const { Sums([0.0; 2 * TILE]) }; G];
        let mut next = Run { panel: 0, block: 0, n_blocks: n_blocks.min(run), ring: halves[0] };
        let mut before: Option<Run> = None;
        loop {
            let panels = first_panels.map(|first| first.wrapping_add(next.panel * sizes.panel));
            let panels = (panels, n_panels * sizes.panel);
            let pause = next.n_blocks.min(run / 2);
            // SAFETY: the tile configuration is loaded; panels are contiguous and have the blocks, and each run a half of the ring.
            unsafe {
                for i in 0..pause {
                    let out = next.ring.add(i * Self::STEP);
                    Self::unpack::<S>(&unpackers, &sizes, panels, next.block + i, out);
                }
                if let Some(before) = before {
                    Self::multiply::<S>(&sizes, x, before, &mut sums);
                }
                for i in pause..next.n_blocks {
                    let out = next.ring.add(i * Self::STEP);
                    Self::unpack::<S>(&unpackers, &sizes, panels, next.block + i, out);
                }
            }
            // After the unpacking, which hides the latency of the tile stores.
            if let Some(done) = before
                && done.block + done.n_blocks == n_blocks
            {
                let first = self.panels.start + done.panel;
                let panels = first..first + n_panels;
                for (g, sums) in sums.iter().enumerate() {
                    let outputs = self.of.outputs(self.target, self.group + g, &panels);
                    // SAFETY: the ISA's features are available, by the caller.
                    unsafe { self.of.finish(&panels, &sums.0, outputs).run::<S>() };
                }
            }
            if next.n_blocks == 0 {
                return;
            }
            let end = next.block + next.n_blocks;
            let (panel, block) = if end < n_blocks { (next.panel, end) } else { (next.panel + n_panels, 0) };
            let n = if panel < self.panels.len() { run.min(n_blocks - block) } else { 0 };
            let ring = if next.ring == halves[0] { halves[1] } else { halves[0] };
            before = Some(next);
            next = Run { panel, block, n_blocks: n, ring };
        }
    }
}
