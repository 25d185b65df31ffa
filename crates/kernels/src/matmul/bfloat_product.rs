//! Products in tiles of bfloat16, on lanes that have them. Refuses to know formats.
//!
//! Weights are unpacked to bfloat16, scales and all, so that an output is one chain of sums: block after block along the
//! columns, in one register or, between two stretches, in memory. An element's bits depend on its own row and token only.
//! Short floats stay what they are: they and their tokens come in as many parts as that takes.
//!
//! The products of a gated unit are made together, a panel of the gate's beside one of the other's, and meet on their way to
//! the outputs. Few tokens meet each block of weights as it is unpacked: see [`super::bfloat_stream`]. For more, a stretch of several
//! panels is unpacked to the second cache, and meets all tokens.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{Activations, Form, GROUP, Rows};
use super::bfloat_stream::{RING_STEPS, Stream};
use super::stretch::ahead;
use super::{Product, Target};
use crate::memory::AlignedBytes;
use crate::quant::{BLOCK, PAIRS_BYTES, PANEL, PackedMatrix, PairUnpacker, WithUnpacker};
use crate::simd::{Isa, Lane, Task, TileConfig};

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { pairs: None, sums: None }) };
}

/// So few groups meet weights as they are unpacked.
pub(super) const FEW_GROUPS: usize = 2;
/// Groups of tokens that meet a stretch of weights before the next one is unpacked.
const GROUPS_TOGETHER: usize = 32;
/// Slots of a stretch, in the second cache: each holds a panel.
const SLOTS: usize = 16;
/// Blocks of a stretch: those of two groups of tokens stay in the first cache while all panels pass.
const BLOCKS: usize = 8;
/// Elements of a tile of sums.
pub(super) const TILE: usize = GROUP * PANEL;

/// One product, on one thread.
#[derive(Clone, Copy)]
pub(super) struct BfloatProduct<'a> {
    pub(super) product: &'a Product<'a>,
    pub(super) isa: Isa,
    /// Of the activations.
    pub(super) form: Form,
}

/// Room that each thread keeps.
struct Scratch {
    /// [slot][block][part] of a stretch, or a ring of blocks.
    pairs: Option<AlignedBytes>,
    /// [group][slot][16 tokens][16 rows] f32.
    sums: Option<AlignedBytes>,
}

impl<'a> BfloatProduct<'a> {
    /// The product with a range of the weights' panels.
    pub(super) fn run(&self, panels: Range<usize>, target: Target<'_>) {
        let outputs = Outputs::Rows(target);
        self.product.weights.with_unpacker(OfPanels { of: self, panels, outputs });
    }

    /// The same of more than [`FEW_GROUPS`], as rows of the products that follow.
    ///
    /// # Safety
    /// Nobody else may have the blocks of these panels, to which several threads may write.
    pub(super) unsafe fn round(&self, panels: Range<usize>, out: &Activations) {
        let outputs = Outputs::Records(out);
        self.product.weights.with_unpacker(OfPanels { of: self, panels, outputs });
    }

    /// Matrices whose panels take turns: one, or gate and up.
    pub(super) fn n_matrices(&self) -> usize {
        if self.product.gated.is_some() { 2 } else { 1 }
    }

    /// The matrix and the panel in slot number `slot` of those that begin with a panel.
    pub(super) fn in_slot(&self, first: usize, slot: usize) -> (&'a PackedMatrix, usize) {
        match &self.product.gated {
            None => (self.product.weights, first + slot),
            Some(gated) => {
                (if slot.is_multiple_of(2) { self.product.weights } else { gated.up }, first + slot / 2)
            }
        }
    }

    /// Of what is in even slots, and in odd ones.
    fn unpackers<U: PairUnpacker>(&self) -> [U; 2] {
        [0, 1].map(|slot| U::of(self.in_slot(0, slot).0))
    }

    /// Tokens of a group.
    pub(super) fn n_tokens(&self, group: usize) -> usize {
        (self.product.x.n_rows() - group * GROUP).min(GROUP)
    }

    /// A group's records from a block on.
    pub(super) fn records(&self, group: usize, block: usize) -> *const u8 {
        let records = self.product.x.records(group, self.form).expect("checked before the fork");
        records[block * self.product.x.record(self.form)..].as_ptr()
    }

    /// Rows of the weights in some panels.
    pub(super) fn rows(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * PANEL..self.product.weights.rows().min(panels.end * PANEL)
    }
}

/// Where the outputs of some panels go.
#[derive(Clone, Copy)]
enum Outputs<'a> {
    Rows(Target<'a>),
    /// Rounded, to blocks that are nobody else's.
    Records(&'a Activations),
}

/// The product with some panels.
struct OfPanels<'a> {
    of: &'a BfloatProduct<'a>,
    panels: Range<usize>,
    outputs: Outputs<'a>,
}

impl WithUnpacker for OfPanels<'_> {
    fn run<U: PairUnpacker>(self) {
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
    fn few<U: PairUnpacker>(
        &self,
        tiles: &TileConfig,
        groups: Range<usize>,
        target: Target<'_>,
        scratch: &mut Scratch,
    ) {
        let ring = AlignedBytes::at_least(&mut scratch.pairs, RING_STEPS * 2 * U::PARTS * PAIRS_BYTES);
        let is_pair = groups.len() == 2;
        // Records have room for sixteen tokens: sums of those that are not there are nobody's.
        let n_tokens = if is_pair { GROUP } else { self.of.n_tokens(groups.start) };
        let (of, group, unpackers) = (self.of, groups.start, self.of.unpackers::<U>());
        let n_alone = if of.n_matrices() == 2 { 0 } else { self.panels.len() % 2 };
        let in_pairs = self.panels.start..self.panels.end - n_alone;
        let parts = [(in_pairs.clone(), true), (in_pairs.end..self.panels.end, false)];
        for (panels, has_two) in parts.into_iter().filter(|(panels, _)| !panels.is_empty()) {
            // SAFETY: the pool's lane is available and has tiles.
            unsafe {
                tiles.shape(n_tokens, BLOCK / 2);
                match (is_pair, has_two) {
                    (false, false) => {
                        of.isa.run(Stream::<U, 1, 1> { of, unpackers, group, panels, target, ring })
                    }
                    (false, true) => {
                        of.isa.run(Stream::<U, 1, 2> { of, unpackers, group, panels, target, ring })
                    }
                    (true, false) => {
                        of.isa.run(Stream::<U, 2, 1> { of, unpackers, group, panels, target, ring })
                    }
                    (true, true) => {
                        of.isa.run(Stream::<U, 2, 2> { of, unpackers, group, panels, target, ring })
                    }
                }
            }
        }
    }

    fn many<U: PairUnpacker>(&self, tiles: &TileConfig, groups: Range<usize>, scratch: &mut Scratch) {
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

/// Some groups of tokens and some panels, from the first block to the last.
struct Together<'a, U> {
    of: &'a BfloatProduct<'a>,
    /// Of even slots and of odd ones.
    unpackers: [U; 2],
    tiles: &'a TileConfig,
    groups: Range<usize>,
    panels: Range<usize>,
    pairs: &'a mut [u8],
    sums: &'a mut [f32],
}

impl<U: PairUnpacker> Together<'_, U> {
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

    /// A stretch of all panels.
    fn unpack(&mut self, blocks: &Range<usize>) {
        for slot in 0..self.n_slots() {
            let (weights, panel) = self.of.in_slot(self.panels.start, slot);
            let n_panels = SLOTS / self.of.n_matrices();
            let n_bytes = blocks.len() * U::PARTS * PAIRS_BYTES;
            let task = UnpackBlocks {
                unpacker: self.unpackers[slot % 2],
                panel: weights.panel(panel),
                blocks: blocks.clone(),
                ahead: ahead(weights, (panel, blocks.end), n_panels),
                out: &mut self.pairs[slot * n_bytes..][..n_bytes],
            };
            // SAFETY: the pool's lane is available and has tiles; the blocks are in the panel.
            unsafe { self.of.isa.run(task) };
        }
    }

    /// Where the sums of a group and a panel lie.
    fn sums_at(&self, group: usize, slot: usize) -> usize {
        ((group - self.groups.start) * SLOTS + slot) * TILE
    }

    /// `G` groups times `P` panels over a stretch.
    fn run<const G: usize, const P: usize>(&mut self, group: usize, slot: usize, blocks: &Range<usize>) {
        let x = [group, group + G - 1].map(|group| self.of.records(group, blocks.start));
        let n_bytes = blocks.len() * U::PARTS * PAIRS_BYTES;
        let w = [slot, slot + P - 1].map(|slot| self.pairs[slot * n_bytes..][..n_bytes].as_ptr());
        let sums_at = [self.sums_at(group, slot), self.sums_at(group + G - 1, slot)];
        let sums = sums_at.map(|at| self.sums[at..][..P * TILE].as_mut_ptr());
        let adds = blocks.start > 0;
        let unpacker = PhantomData::<U>;
        // SAFETY: the pool's lane is available and has tiles; records, pairs and sums are as long as the task says.
        unsafe {
            self.tiles.shape(self.of.n_tokens(group), BLOCK / 2);
            self.of.isa.run(Dots::<U, G, P> { unpacker, x, w, n_blocks: blocks.len(), sums, adds });
        }
    }

    /// All sums of a group.
    fn sums_of(&self, group: usize) -> &[f32] {
        &self.sums[self.sums_at(group, 0)..][..self.n_slots() * TILE]
    }

    /// The sums to where they belong.
    fn finish(&self, target: Target<'_>) {
        for group in self.groups.clone() {
            let outputs = self.of.outputs(target, group, &self.panels);
            // SAFETY: the pool's lane is available.
            unsafe { self.of.isa.run(self.of.finish(&self.panels, self.sums_of(group), outputs)) };
        }
    }

    /// The same, rounded while a group's outputs are in the first cache.
    fn round(&self, out: &Activations) {
        let rows = self.of.rows(&self.panels);
        let (cols, blocks) = (rows.len(), rows.start / BLOCK..rows.end.div_ceil(BLOCK));
        let mut room = [0.0; GROUP * SLOTS * PANEL];
        for group in self.groups.clone() {
            let outputs = &mut room[..self.of.n_tokens(group) * cols];
            let tokens = outputs.chunks_exact_mut(cols);
            // SAFETY: the pool's lane is available.
            unsafe { self.of.isa.run(self.of.finish(&self.panels, self.sums_of(group), tokens)) };
            // SAFETY: the blocks are nobody else's.
            unsafe { out.records_to_put(group, blocks.clone()) }
                .put(&Rows::whole(outputs, cols), self.of.isa);
        }
    }
}

/// Unpacks blocks of a panel.
struct UnpackBlocks<'a, U> {
    unpacker: U,
    panel: &'a [u8],
    blocks: Range<usize>,
    /// What will be wanted after these, to be asked for early: a panel, which need not be valid, and the first block.
    ahead: (*const u8, usize),
    out: &'a mut [u8],
}

impl<U: PairUnpacker> Task for UnpackBlocks<'_, U> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let (panel, ahead) = (self.panel.as_ptr(), self.ahead);
        for (i, out) in self.out.chunks_exact_mut(U::PARTS * PAIRS_BYTES).enumerate() {
            // SAFETY: the block is in the panel, and has room; any address may be asked for.
            unsafe {
                self.unpacker.ask::<L, false>(ahead.0, ahead.1 + i);
                self.unpacker.unpack::<L>(panel, self.blocks.start + i, out.as_mut_ptr());
            }
        }
    }
}

/// `G` groups times `P` panels over so many blocks, whose records, of sixteen tokens, and pairs follow each other.
struct Dots<U, const G: usize, const P: usize> {
    unpacker: PhantomData<U>,
    x: [*const u8; 2],
    w: [*const u8; 2],
    n_blocks: usize,
    /// Each group's [panel][16 tokens][16 rows] sums.
    sums: [*mut f32; 2],
    /// Adds to the sums, instead of setting them.
    adds: bool,
}

impl<U: PairUnpacker, const G: usize, const P: usize> Task for Dots<U, G, P> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let Self { mut x, mut w, sums, .. } = self;
        // SAFETY: the tiles are shaped and memory is valid, by the driver.
        unsafe {
            if self.adds {
                L::load_sums::<G, P>(sums);
            } else {
                L::zero_sums();
            }
            for _ in 0..self.n_blocks {
                add_products::<L, U, G, P>(x, w);
                x = x.map(|x| x.wrapping_add(U::TOKEN_PARTS * Form::BFloats.record(GROUP)));
                w = w.map(|w| w.wrapping_add(U::PARTS * PAIRS_BYTES));
            }
            L::store_sums::<G, P>(sums);
        }
    }
}

/// Adds a block to the sums, all parts of it.
#[inline(always)]
pub(super) unsafe fn add_products<L: Lane, U: PairUnpacker, const G: usize, const P: usize>(
    x: [*const u8; 2],
    w: [*const u8; 2],
) {
    // SAFETY: by the caller.
    unsafe {
        match (U::TOKEN_PARTS, U::PARTS) {
            (1, _) => L::add_products::<G, P, 1, 1>(x, w),
            (_, 1) => L::add_products::<G, P, 2, 1>(x, w),
            _ => L::add_products::<G, P, 2, 2>(x, w),
        }
    }
}
