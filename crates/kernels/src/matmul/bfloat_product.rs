//! Products in tiles of bfloat16, on lanes that have them. Refuses to know formats.
//!
//! Weights are unpacked to bfloat16, scales and all, so that an output is one chain of sums: block after block along the
//! columns, in one register or, between two stretches, in memory. An element's bits depend on its own row and token only.
//! Short floats stay what they are: they and their tokens come in as many parts as that takes.
//!
//! Few tokens meet each block of weights as it is unpacked: see [`super::bfloat_stream`]. For more, a stretch of several
//! panels is unpacked to the second cache, and meets all tokens.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::Product;
use super::activations::{Form, GROUP};
use super::bfloat_stream::{RING_STEPS, Stream};
use super::stretch::ahead;
use crate::memory::{AlignedBytes, Disjoint};
use crate::quant::{BLOCK, PAIRS_BYTES, PANEL, PairUnpacker, WithUnpacker};
use crate::simd::{Isa, Lane, Task, TileConfig};

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { pairs: None, sums: None }) };
}

/// So few groups meet weights as they are unpacked.
const FEW_GROUPS: usize = 2;
/// Groups of tokens that meet a stretch of weights before the next one is unpacked.
const GROUPS_TOGETHER: usize = 32;
/// Panels of a stretch, in the second cache.
const PANELS: usize = 16;
/// Blocks of a stretch: those of two groups of tokens stay in the first cache while all panels pass.
const BLOCKS: usize = 8;
/// Elements of a tile of sums.
pub(super) const TILE: usize = GROUP * PANEL;

/// One product, on one thread.
#[derive(Clone, Copy)]
pub(super) struct BfloatProduct<'a> {
    pub(super) product: &'a Product<'a>,
    pub(super) out: &'a Disjoint<'a, f32>,
    /// Of the outputs.
    pub(super) stride: usize,
    pub(super) isa: Isa,
    /// Of the activations.
    pub(super) form: Form,
}

/// Room that each thread keeps.
struct Scratch {
    /// [panel][block][part] of a stretch, or a ring of blocks.
    pairs: Option<AlignedBytes>,
    /// [group][panel][16 tokens][16 rows] f32.
    sums: Option<AlignedBytes>,
}

impl<'a> BfloatProduct<'a> {
    /// The product with a range of the weights' panels.
    pub(super) fn run(&self, panels: Range<usize>) {
        self.product.weights.with_unpacker(OfPanels { of: self, panels });
    }

    /// Tokens of a group.
    fn n_tokens(&self, group: usize) -> usize {
        (self.product.x.n_rows() - group * GROUP).min(GROUP)
    }

    /// A group's records from a block on.
    pub(super) fn records(&self, group: usize, block: usize) -> *const u8 {
        let records = self.product.x.records(group, self.form).expect("checked before the fork");
        records[block * self.form.record()..].as_ptr()
    }

    /// What brings sums of a group and some panels, [panel][16 tokens][16 rows], to where they belong.
    pub(super) fn finish<'s>(
        &self,
        group: usize,
        panels: Range<usize>,
        sums: &'s [f32],
    ) -> Finish<'s, impl Iterator<Item = &'a mut [f32]>>
    where
        'a: 's,
    {
        let Self { product, out, stride, .. } = *self;
        let rows = panels.start * PANEL..product.weights.rows().min(panels.end * PANEL);
        let first = (product.first_row + group * GROUP) * stride + product.first_col + rows.start;
        let n_rows = rows.len();
        Finish {
            sums,
            by: product.weights.pair_scale().back,
            bias: product.bias.map(|bias| &bias[rows]),
            // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
            tokens: (0..self.n_tokens(group)).map(move |t| unsafe { out.part(first + t * stride, n_rows) }),
        }
    }
}

/// The product with some panels.
struct OfPanels<'a> {
    of: &'a BfloatProduct<'a>,
    panels: Range<usize>,
}

impl WithUnpacker for OfPanels<'_> {
    fn run<U: PairUnpacker>(self, unpacker: U) {
        let tiles = TileConfig::default();
        let n_groups = self.of.product.x.n_rows().div_ceil(GROUP);
        for first in (0..n_groups).step_by(GROUPS_TOGETHER) {
            let groups = first..n_groups.min(first + GROUPS_TOGETHER);
            SCRATCH.with_borrow_mut(|scratch| match groups.len() {
                ..=FEW_GROUPS => self.few(unpacker, &tiles, groups, scratch),
                _ => self.many(unpacker, &tiles, groups, scratch),
            });
        }
    }
}

impl OfPanels<'_> {
    fn few<U: PairUnpacker>(
        &self,
        unpacker: U,
        tiles: &TileConfig,
        groups: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let ring = AlignedBytes::at_least(&mut scratch.pairs, RING_STEPS * 2 * U::PARTS * PAIRS_BYTES);
        let is_pair = groups.len() == 2;
        // Records have room for sixteen tokens: sums of those that are not there are nobody's.
        let n_tokens = if is_pair { GROUP } else { self.of.n_tokens(groups.start) };
        let in_pairs = self.panels.start..self.panels.end - self.panels.len() % 2;
        let (of, group) = (self.of, groups.start);
        for (panels, has_two) in [(in_pairs.clone(), true), (in_pairs.end..self.panels.end, false)] {
            // SAFETY: the pool's lane is available and has tiles.
            unsafe {
                tiles.shape(n_tokens, BLOCK / 2);
                match (is_pair, has_two) {
                    (false, false) => of.isa.run(Stream::<U, 1, 1> { of, unpacker, group, panels, ring }),
                    (false, true) => of.isa.run(Stream::<U, 1, 2> { of, unpacker, group, panels, ring }),
                    (true, false) => of.isa.run(Stream::<U, 2, 1> { of, unpacker, group, panels, ring }),
                    (true, true) => of.isa.run(Stream::<U, 2, 2> { of, unpacker, group, panels, ring }),
                }
            }
        }
    }

    fn many<U: PairUnpacker>(
        &self,
        unpacker: U,
        tiles: &TileConfig,
        groups: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let pairs = AlignedBytes::at_least(&mut scratch.pairs, PANELS * BLOCKS * U::PARTS * PAIRS_BYTES);
        let sums = AlignedBytes::at_least(&mut scratch.sums, groups.len() * PANELS * TILE * 4);
        let sums = bytemuck::cast_slice_mut(sums);
        for first in self.panels.clone().step_by(PANELS) {
            let panels = first..self.panels.end.min(first + PANELS);
            let groups = groups.clone();
            let mut work = Together { of: self.of, unpacker, tiles, groups, panels, pairs, sums };
            work.multiply();
            work.finish();
        }
    }
}

/// Some groups of tokens and some panels, from the first block to the last.
struct Together<'a, U> {
    of: &'a BfloatProduct<'a>,
    unpacker: U,
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
                for slot in (0..self.panels.len()).step_by(2) {
                    match (is_pair, slot + 2 <= self.panels.len()) {
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

    /// A stretch of all panels.
    fn unpack(&mut self, blocks: &Range<usize>) {
        let weights = self.of.product.weights;
        for (slot, panel) in self.panels.clone().enumerate() {
            let n_bytes = blocks.len() * U::PARTS * PAIRS_BYTES;
            let task = UnpackBlocks {
                unpacker: self.unpacker,
                panel: weights.panel(panel),
                blocks: blocks.clone(),
                ahead: ahead(weights, (panel, blocks.end), PANELS),
                out: &mut self.pairs[slot * n_bytes..][..n_bytes],
            };
            // SAFETY: the pool's lane is available and has tiles; the blocks are in the panel.
            unsafe { self.of.isa.run(task) };
        }
    }

    /// Where the sums of a group and a panel lie.
    fn sums_at(&self, group: usize, slot: usize) -> usize {
        ((group - self.groups.start) * PANELS + slot) * TILE
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

    /// The sums to where they belong.
    fn finish(&self) {
        for group in self.groups.clone() {
            let sums = &self.sums[self.sums_at(group, 0)..][..self.panels.len() * TILE];
            // SAFETY: the pool's lane is available.
            unsafe { self.of.isa.run(self.of.finish(group, self.panels.clone(), sums)) };
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
                self.unpacker.ask::<L>(ahead.0, ahead.1 + i);
                self.unpacker.unpack::<L>(panel, self.blocks.start + i, out.as_mut_ptr());
            }
        }
    }
}

/// `G` groups times `P` panels over so many blocks, whose records and pairs follow each other.
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
                x = x.map(|x| x.wrapping_add(U::TOKEN_PARTS * Form::BFloats.record()));
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

/// A group's sums to outputs.
pub(super) struct Finish<'a, T> {
    /// [panel][16 tokens][16 rows].
    sums: &'a [f32],
    by: f32,
    bias: Option<&'a [f32]>,
    /// Each token's outputs.
    tokens: T,
}

impl<'a, T: Iterator<Item = &'a mut [f32]>> Task for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        for (t, out) in self.tokens.enumerate() {
            for (slot, out) in out.chunks_mut(PANEL).enumerate() {
                let sums = &self.sums[slot * TILE + t * PANEL..][..PANEL];
                let mut aside = [0.0; PANEL];
                // SAFETY: sixteen sums and outputs; the features are the caller's word.
                unsafe {
                    let product = L::mul(L::load(sums.as_ptr()), L::splat(self.by));
                    if out.len() == PANEL {
                        L::store(out.as_mut_ptr(), product);
                    } else {
                        L::store(aside.as_mut_ptr(), product);
                        out.copy_from_slice(&aside[..out.len()]);
                    }
                }
            }
            if let Some(bias) = self.bias {
                out.iter_mut().zip(bias).for_each(|(out, b)| *out += b);
            }
        }
    }
}
