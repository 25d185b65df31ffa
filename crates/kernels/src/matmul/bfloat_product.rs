//! Products in tiles of bfloat16, on lanes that have them. Refuses to know formats.
//!
//! The weights of a stretch are unpacked to bfloat16, scales and all, so that an output is one chain of sums: block after
//! block along the columns, in one register or, between two stretches, in memory. An element's bits depend on its own row
//! and token only. Short floats stay what they are: they and their tokens come in as many parts as that takes.

use std::cell::RefCell;
use std::ops::Range;

use super::Product;
use super::activations::{Form, GROUP};
use super::stretch::ahead;
use crate::memory::{AlignedBytes, Disjoint};
use crate::quant::{BLOCK, CodeLayout, PAIRS_BYTES, PANEL, PairFloats, UnpackPairs, weight_parts};
use crate::simd::{Isa, Lane, Task, TileConfig, TileRun};

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { pairs: None, sums: None }) };
}

/// Groups of tokens that meet a stretch of weights before the next one is unpacked.
const GROUPS_TOGETHER: usize = 32;
/// So few groups let a processor unpack while tiles are in work: with [`FEW`] panels, not [`MANY`].
const FEW_GROUPS: usize = 2;
/// A short stretch of two panels, which is used up while it is in the first cache; what comes after the next one is asked
/// for.
const FEW: Shape = Shape { n_panels: 2, n_blocks: 4, blocks_ahead: 4 };
/// Stretches in the second cache; those of two groups of tokens stay in the first while all panels pass.
const MANY: Shape = Shape { n_panels: 16, n_blocks: 8, blocks_ahead: 0 };
/// Elements of a tile of sums.
const TILE: usize = GROUP * PANEL;

/// How much is unpacked at once.
#[derive(Clone, Copy)]
struct Shape {
    n_panels: usize,
    /// Of a stretch.
    n_blocks: usize,
    /// Blocks between a stretch and what is asked for while it is in work.
    blocks_ahead: usize,
}

/// One product, on one thread.
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
    /// [panel][block][part] of a stretch.
    pairs: Option<AlignedBytes>,
    /// [group][panel][16 tokens][16 rows] f32.
    sums: Option<AlignedBytes>,
}

impl BfloatProduct<'_> {
    /// Bytes of an unpacked block.
    fn block_bytes(&self) -> usize {
        weight_parts(self.product.weights.format()) * PAIRS_BYTES
    }

    /// The product with a range of the weights' panels.
    pub(super) fn run(&self, panels: Range<usize>) {
        let tiles = TileConfig::default();
        SCRATCH.with_borrow_mut(|scratch| {
            let n_groups = self.product.x.n_rows().div_ceil(GROUP);
            for first in (0..n_groups).step_by(GROUPS_TOGETHER) {
                let groups = first..n_groups.min(first + GROUPS_TOGETHER);
                let shape = if groups.len() <= FEW_GROUPS { FEW } else { MANY };
                let n_bytes = shape.n_panels * shape.n_blocks * self.block_bytes();
                let pairs = AlignedBytes::at_least(&mut scratch.pairs, n_bytes);
                let sums =
                    AlignedBytes::at_least(&mut scratch.sums, groups.len() * shape.n_panels * TILE * 4);
                for first in panels.clone().step_by(shape.n_panels) {
                    let panels = first..panels.end.min(first + shape.n_panels);
                    let groups = groups.clone();
                    let mut work = Together { of: self, tiles: &tiles, shape, groups, panels, pairs, sums };
                    work.multiply();
                    work.finish();
                }
            }
        });
    }
}

/// Some groups of tokens and some panels, from the first block to the last.
struct Together<'a> {
    of: &'a BfloatProduct<'a>,
    tiles: &'a TileConfig,
    shape: Shape,
    groups: Range<usize>,
    panels: Range<usize>,
    pairs: &'a mut [u8],
    sums: &'a mut [u8],
}

impl Together<'_> {
    fn multiply(&mut self) {
        let n_blocks = self.of.product.weights.layout().n_blocks;
        for block in (0..n_blocks).step_by(self.shape.n_blocks) {
            let blocks = block..n_blocks.min(block + self.shape.n_blocks);
            for panel in self.panels.clone() {
                self.unpack(panel, &blocks);
            }
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

    fn unpack(&mut self, panel: usize, blocks: &Range<usize>) {
        let at = (panel - self.panels.start) * blocks.len() * self.of.block_bytes();
        let (isa, weights) = (self.of.isa, self.of.product.weights);
        let (format, layout, first, n) = (weights.format(), weights.layout(), blocks.start, blocks.len());
        let (panel, ahead) = (weights.panel(panel), self.ahead(panel, blocks));
        let out = &mut self.pairs[at..];
        match CodeLayout::of(format) {
            Some(codes) => {
                let scale = weights.pair_scale();
                let task = UnpackPairs { codes, scale, layout, panel, first, n, ahead, out };
                // SAFETY: the pool's lane is available; the task checks its own sizes.
                unsafe { isa.run(task) };
            }
            None => {
                let task = PairFloats { format, layout, panel, first, n, ahead, out };
                // SAFETY: as above.
                unsafe { isa.run(task) };
            }
        }
    }

    /// What is to be asked for while blocks of a panel are in work.
    fn ahead(&self, panel: usize, blocks: &Range<usize>) -> (*const u8, usize) {
        let end = blocks.end + self.shape.blocks_ahead;
        ahead(self.of.product.weights, (panel, end), self.shape.n_panels)
    }

    /// Tokens of a group.
    fn n_tokens(&self, group: usize) -> usize {
        (self.of.product.x.n_rows() - group * GROUP).min(GROUP)
    }

    /// Where the sums of a group and a panel lie.
    fn sums_at(&self, group: usize, slot: usize) -> usize {
        ((group - self.groups.start) * self.shape.n_panels + slot) * TILE * 4
    }

    /// `G` groups times `P` panels over a stretch.
    fn run<const G: usize, const P: usize>(&mut self, group: usize, slot: usize, blocks: &Range<usize>) {
        let x = |g: usize| {
            let records =
                self.of.product.x.records(group + g, self.of.form).expect("checked before the fork");
            let record = self.of.form.record();
            records[blocks.start * record..][..blocks.len() * record].as_ptr()
        };
        let pairs = |p: usize| {
            let n_bytes = blocks.len() * self.of.block_bytes();
            self.pairs[(slot + p) * n_bytes..][..n_bytes].as_ptr()
        };
        let (x, pairs) = ([x(0), x(G - 1)], [pairs(0), pairs(P - 1)]);
        let n_tokens = self.n_tokens(group);
        let sums_at = [self.sums_at(group, slot), self.sums_at(group + G - 1, slot)];
        let sums = sums_at.map(|at| self.sums[at..][..P * TILE * 4].as_mut_ptr().cast());
        let layout = self.of.product.weights.layout();
        let ahead_at = |p: usize| {
            let (panel, block) = self.ahead(self.panels.start + slot + p, blocks);
            panel.wrapping_add(layout.codes_at + block * layout.code_bytes)
        };
        // The first groups ask, for all others.
        let ahead_step = if group == self.groups.start { layout.code_bytes } else { 0 };
        let ahead = [ahead_at(0), ahead_at(P - 1)];
        let run =
            TileRun { x, pairs, n_blocks: blocks.len(), sums, adds: blocks.start > 0, ahead, ahead_step };
        // SAFETY: the pool's lane is available and has tiles; records, pairs and sums are as long as the run says, in as many
        // parts.
        unsafe {
            self.tiles.shape(n_tokens, BLOCK / 2);
            match (self.of.form, weight_parts(self.of.product.weights.format())) {
                (Form::BFloats, _) => self.of.isa.run(Dots::<G, P, 1, 1>(run)),
                (_, 1) => self.of.isa.run(Dots::<G, P, 2, 1>(run)),
                _ => self.of.isa.run(Dots::<G, P, 2, 2>(run)),
            }
        }
    }

    /// The sums to where they belong.
    fn finish(&self) {
        let BfloatProduct { product, out, stride, isa, .. } = *self.of;
        let rows = self.panels.start * PANEL..product.weights.rows().min(self.panels.end * PANEL);
        for group in self.groups.clone() {
            let at =
                |t: usize| (product.first_row + group * GROUP + t) * stride + product.first_col + rows.start;
            let task = Finish {
                sums: &self.sums[self.sums_at(group, 0)..][..self.panels.len() * TILE * 4],
                by: product.weights.pair_scale().back,
                bias: product.bias.map(|bias| &bias[rows.clone()]),
                // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
                tokens: (0..self.n_tokens(group)).map(|t| unsafe { out.part(at(t), rows.len()) }),
            };
            // SAFETY: the pool's lane is available.
            unsafe { isa.run(task) };
        }
    }
}

/// The dots of a stretch; the tokens come in `X` parts, the weights in `W`.
struct Dots<const G: usize, const P: usize, const X: usize, const W: usize>(TileRun);

impl<const G: usize, const P: usize, const X: usize, const W: usize> Task for Dots<G, P, X, W> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        // SAFETY: the tiles are shaped and memory is valid, by the driver.
        unsafe { L::tile_dots::<G, P, X, W>(&self.0) }
    }
}

/// A group's sums to outputs.
struct Finish<'a, T> {
    /// [panel][16 tokens][16 rows] f32.
    sums: &'a [u8],
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
                let sums = &self.sums[(slot * TILE + t * PANEL) * 4..][..PANEL * 4];
                let mut aside = [0.0; PANEL];
                // SAFETY: sixteen sums and outputs; the features are the caller's word.
                unsafe {
                    let product = L::mul(L::load(sums.as_ptr().cast()), L::splat(self.by));
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
