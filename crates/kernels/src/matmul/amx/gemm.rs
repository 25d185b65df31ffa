//! GEMM in AMX tiles of bf16. Does not know quantization formats.
//!
//! Weights are unpacked to bf16 with their scales applied, so that an output is one chain of additions along
//! K: in one tile register or, between two runs of blocks, in memory. An output's bits depend on its own
//! weight row and token only. 16-bit floats are not rounded: weights and activations are split into as many
//! bf16 parts as that takes.
//!
//! Gate and up projections of a gated linear unit are computed together, their panels alternating, and
//! combined in the epilogue. With few tokens a few blocks of weights are multiplied as soon as they are
//! unpacked: see [`super::gemm_small_batch`]. With more, a K block of several panels is unpacked into L2 and
//! multiplied with all tokens.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use throng_os::memory::AlignedBytes;

use super::gemm_small_batch::{RING_BLOCKS, Stream};
use super::product::{AmxGemm, TILE, add_products};
use crate::layout::PAIRS_BYTES;
use crate::matmul::Target;
use crate::matmul::activation_rows::{GROUP, Rows};
use crate::matmul::activations::{Activations, Form};
use crate::matmul::k_block::ahead;
use crate::quant::{AmxUnpacker, BLOCK, PANEL, WithUnpacker};
use crate::simd::{AmxIsa, AmxKernel, ProductRun, TileConfig};

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { pairs: None, sums: None }) };
}

/// Maximum number of groups of tokens that take the small-batch path.
pub(in crate::matmul) const FEW_GROUPS: usize = 2;
/// Groups of tokens multiplied with an unpacked K block before the next one is unpacked.
const GROUPS_TOGETHER: usize = 32;
/// Number of panels of an unpacked K block in L2 (gate and up panels alternate in these slots).
const SLOTS: usize = 16;
/// Quantization blocks of a K block: the activations of two groups stay in L1 while all panels are
/// multiplied.
const BLOCKS: usize = 8;
/// Scratch of each thread.
struct Scratch {
    /// Unpacked weights: [slot][block][part] of a K block, or the small-batch path's ring of blocks.
    pairs: Option<AlignedBytes>,
    /// Accumulators: [group][slot][16 tokens][16 rows] f32.
    sums: Option<AlignedBytes>,
}

impl AmxGemm<'_> {
    /// Computes a range of panels into `target`.
    pub(in crate::matmul) fn run(&self, panels: Range<usize>, target: Target<'_>) {
        let outputs = Outputs::Rows(target);
        self.product.weights.with_unpacker(OfPanels { of: self, panels, outputs });
    }

    /// Computes a range of panels for more than [`FEW_GROUPS`] groups into activation records of the next
    /// product.
    ///
    /// # Safety
    /// The blocks of `out` for these panels must belong to this call alone.
    pub(in crate::matmul) unsafe fn round(&self, panels: Range<usize>, out: &Activations) {
        let outputs = Outputs::Records(out);
        self.product.weights.with_unpacker(OfPanels { of: self, panels, outputs });
    }
}

/// Destination of some panels' outputs.
#[derive(Clone, Copy)]
enum Outputs<'a> {
    Rows(Target<'a>),
    /// Activation records of the next product; the blocks belong to this call alone.
    Records(&'a Activations),
}

/// Some panels of a product, to be run with the weights' unpacker.
struct OfPanels<'a> {
    of: &'a AmxGemm<'a>,
    panels: Range<usize>,
    outputs: Outputs<'a>,
}

impl WithUnpacker for OfPanels<'_> {
    fn run<U: AmxUnpacker>(self) {
        let tiles = TileConfig::default();
        let n_groups = self.of.product.x.n_rows().div_ceil(GROUP);
        for first in (0..n_groups).step_by(GROUPS_TOGETHER) {
            let groups = first..n_groups.min(first + GROUPS_TOGETHER);
            SCRATCH.with_borrow_mut(|scratch| match (self.outputs, groups.len()) {
                (Outputs::Rows(target), ..=FEW_GROUPS) => self.few::<U>(&tiles, groups, target, scratch),
                _ => self.many::<U>(&tiles, groups, scratch),
            });
        }
    }
}

impl OfPanels<'_> {
    fn few<U: AmxUnpacker>(
        &self,
        tiles: &TileConfig,
        groups: Range<usize>,
        target: Target<'_>,
        scratch: &mut Scratch,
    ) {
        let ring = AlignedBytes::at_least(&mut scratch.pairs, RING_BLOCKS * 2 * U::PARTS * PAIRS_BYTES);
        let is_pair = groups.len() == 2;
        // A pair of groups uses whole tiles: accumulators of absent tokens are computed and ignored.
        let n_tokens = if is_pair { GROUP } else { self.of.n_tokens(groups.start) };
        let (of, group, unpackers) = (self.of, groups.start, self.of.unpackers::<U>());
        let n_alone = if of.n_matrices() == 2 { 0 } else { self.panels.len() % 2 };
        let in_pairs = self.panels.start..self.panels.end - n_alone;
        let parts = [(in_pairs.clone(), true), (in_pairs.end..self.panels.end, false)];
        for (panels, has_two) in parts.into_iter().filter(|(panels, _)| !panels.is_empty()) {
            // SAFETY: the ISA has tiles; the panels' blocks and the group's records are as long as the kernel says.
            unsafe {
                tiles.shape(n_tokens, BLOCK / 2);
                match (is_pair, has_two) {
                    (false, false) => {
                        of.isa.run_amx(Stream::<U, 1, 1> { of, unpackers, group, panels, target, ring })
                    }
                    (false, true) => {
                        of.isa.run_amx(Stream::<U, 1, 2> { of, unpackers, group, panels, target, ring })
                    }
                    (true, false) => {
                        of.isa.run_amx(Stream::<U, 2, 1> { of, unpackers, group, panels, target, ring })
                    }
                    (true, true) => {
                        of.isa.run_amx(Stream::<U, 2, 2> { of, unpackers, group, panels, target, ring })
                    }
                }
            }
        }
    }

    fn many<U: AmxUnpacker>(&self, tiles: &TileConfig, groups: Range<usize>, scratch: &mut Scratch) {
        let pairs = AlignedBytes::at_least(&mut scratch.pairs, SLOTS * BLOCKS * U::PARTS * PAIRS_BYTES);
        let sums = AlignedBytes::at_least(&mut scratch.sums, groups.len() * SLOTS * TILE * 4);
        let sums = bytemuck::cast_slice_mut(sums);
        let n_panels = SLOTS / self.of.n_matrices();
        for first in self.panels.clone().step_by(n_panels) {
            let panels = first..self.panels.end.min(first + n_panels);
            let groups = groups.clone();
            let unpackers = self.of.unpackers::<U>();
            let mut work = Together { of: self.of, unpackers, tiles, groups, panels, pairs, sums };
            work.multiply();
            match self.outputs {
                Outputs::Rows(target) => work.finish(target),
                Outputs::Records(out) => work.round(out),
            }
        }
    }
}

/// Some groups of tokens times some panels over all of K.
struct Together<'a, U> {
    of: &'a AmxGemm<'a>,
    /// Unpackers of even slots and of odd ones.
    unpackers: [U; 2],
    tiles: &'a TileConfig,
    groups: Range<usize>,
    panels: Range<usize>,
    pairs: &'a mut [u8],
    sums: &'a mut [f32],
}

impl<U: AmxUnpacker> Together<'_, U> {
    fn multiply(&mut self) {
        let n_blocks = self.of.product.weights.layout().n_blocks;
        for block in (0..n_blocks).step_by(BLOCKS) {
            let blocks = block..n_blocks.min(block + BLOCKS);
            self.unpack(&blocks);
            let n_whole = self.of.product.x.n_rows() / GROUP;
            let mut group = self.groups.start;
            while group < self.groups.end {
                let is_pair = group + 2 <= self.groups.end.min(n_whole);
                for slot in (0..self.n_slots()).step_by(2) {
                    match (is_pair, slot + 2 <= self.n_slots()) {
                        (false, false) => self.run::<1, 1>(group, slot, &blocks),
                        (false, true) => self.run::<1, 2>(group, slot, &blocks),
                        (true, false) => self.run::<2, 1>(group, slot, &blocks),
                        (true, true) => self.run::<2, 2>(group, slot, &blocks),
                    }
                }
                group += if is_pair { 2 } else { 1 };
            }
        }
    }

    fn n_slots(&self) -> usize {
        self.panels.len() * self.of.n_matrices()
    }

    /// Unpacks one K block of all panels.
    fn unpack(&mut self, blocks: &Range<usize>) {
        for slot in 0..self.n_slots() {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            let n_panels = SLOTS / self.of.n_matrices();
            let n_bytes = blocks.len() * U::PARTS * PAIRS_BYTES;
            let kernel = UnpackBlocks {
                unpacker: self.unpackers[slot % 2],
                panel: weights.panel(panel),
                blocks: blocks.clone(),
                ahead: ahead(weights, panel, blocks.end, n_panels),
                out: &mut self.pairs[slot * n_bytes..][..n_bytes],
            };
            // SAFETY: the ISA has tiles; the blocks are in the panel.
            unsafe { self.of.isa.run_amx(kernel) };
        }
    }

    /// Index of the accumulators of a group and a slot.
    fn sums_at(&self, group: usize, slot: usize) -> usize {
        ((group - self.groups.start) * SLOTS + slot) * TILE
    }

    /// Multiplies `G` groups with `P` panels over one K block.
    fn run<const G: usize, const P: usize>(&mut self, group: usize, slot: usize, blocks: &Range<usize>) {
        let x = [group, group + G - 1].map(|group| self.of.records(group, blocks.start));
        let n_bytes = blocks.len() * U::PARTS * PAIRS_BYTES;
        let w = [slot, slot + P - 1].map(|slot| self.pairs[slot * n_bytes..][..n_bytes].as_ptr());
        let sums_at = [self.sums_at(group, slot), self.sums_at(group + G - 1, slot)];
        let sums = sums_at.map(|at| self.sums[at..][..P * TILE].as_mut_ptr());
        let run = ProductRun {
            x,
            x_step: U::TOKEN_PARTS * Form::Bf16.record(GROUP),
            w,
            w_step: U::PARTS * PAIRS_BYTES,
            n_blocks: blocks.len(),
            sums,
            adds: blocks.start > 0,
        };
        let unpacker = PhantomData::<U>;
        // SAFETY: the ISA has tiles; there are a record and an unpacked block for each block, and accumulators of `P` panels.
        unsafe {
            self.tiles.shape(self.of.n_tokens(group), BLOCK / 2);
            self.of.isa.run_amx(Dots::<U, G, P> { unpacker, run });
        }
    }

    /// All accumulators of a group.
    fn sums_of(&self, group: usize) -> &[f32] {
        &self.sums[self.sums_at(group, 0)..][..self.n_slots() * TILE]
    }

    /// Runs the epilogue into `target`.
    fn finish(&self, target: Target<'_>) {
        for group in self.groups.clone() {
            let outputs = self.of.outputs(target, group, &self.panels);
            self.of.isa.run_checked(self.of.finish(&self.panels, self.sums_of(group), outputs));
        }
    }

    /// Runs the epilogue and rounds a group's outputs into activation records while they are in L1.
    fn round(&self, out: &Activations) {
        let rows = self.of.rows(&self.panels);
        let (cols, blocks) = (rows.len(), rows.start / BLOCK..rows.end.div_ceil(BLOCK));
        let mut room = [0.0; GROUP * SLOTS * PANEL];
        for group in self.groups.clone() {
            let outputs = &mut room[..self.of.n_tokens(group) * cols];
            let tokens = outputs.chunks_exact_mut(cols);
            self.of.isa.run_checked(self.of.finish(&self.panels, self.sums_of(group), tokens));
            // SAFETY: the blocks belong to this call alone.
            unsafe { out.records_to_put(group, blocks.clone()) }
                .put(&Rows::whole(outputs, cols), self.of.isa);
        }
    }
}

/// Unpacks some blocks of a panel.
struct UnpackBlocks<'a, U> {
    unpacker: U,
    panel: &'a [u8],
    blocks: Range<usize>,
    /// Operands to prefetch: the panel read after these blocks (need not be valid) and its first block.
    ahead: (*const u8, usize),
    out: &'a mut [u8],
}

impl<U: AmxUnpacker> AmxKernel for UnpackBlocks<'_, U> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        let (panel, ahead) = (self.panel.as_ptr(), self.ahead);
        for (i, out) in self.out.chunks_exact_mut(U::PARTS * PAIRS_BYTES).enumerate() {
            // SAFETY: the block is in the panel, and has room; any address may be prefetched.
            unsafe {
                self.unpacker.prefetch::<S, false>(ahead.0, ahead.1 + i);
                self.unpacker.unpack::<S>(panel, self.blocks.start + i, out.as_mut_ptr());
            }
        }
    }
}

/// Multiplies `G` groups with `P` panels over a run of blocks.
struct Dots<U, const G: usize, const P: usize> {
    unpacker: PhantomData<U>,
    run: ProductRun,
}

impl<U: AmxUnpacker, const G: usize, const P: usize> AmxKernel for Dots<U, G, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        // SAFETY: the tiles are shaped and memory is valid, by the caller.
        unsafe { add_products::<S, U, G, P>(&self.run) }
    }
}
