//! Matrix products of activations with packed weights: one weight layout for one token and for many, one pass
//! over the weights. Does not know the purpose of the matrices.
//!
//! Work is split by weight panels. With few tokens, blocks are unpacked in registers (see the `skinny_gemm`
//! module). Otherwise a K block of a panel is unpacked once, into L1, and multiplied with all tokens of the
//! call; with many tokens, K blocks of several panels are unpacked into L2 while each group of tokens stays
//! in L1. None of this changes an output's bits (see the `tile` module). On AMX, quantized and 16-bit weights
//! take the path in [`amx`].

mod activation_rows;
pub(crate) mod activations;
pub(crate) mod activations_bf16;
pub(crate) mod activations_int8;
mod amx;
mod k_block;
mod skinny_gemm;
mod swiglu;
pub(crate) mod tile;
mod work_split;

pub use activations::{Activations, Forms, RowNorm};
pub use swiglu::{Gated, gated_matmul};

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::formats::Elements;
use crate::layout::{CodeLayout, PANEL};
use crate::quant::{PackedMatrix, Unpacked};
use crate::simd::Isa;
use crate::threads::ThreadPool;
use activation_rows::GROUP;
use activations::Form;
use amx::AmxGemm;
use k_block::{K_BLOCK_BLOCKS, KBlock, PanelBlocks, SCRATCH, Scratch};
use skinny_gemm::SkinnyGemm;
use swiglu::multiply_gated;
use tile::{NarrowTile, Tile};
use work_split::WorkSplit;

/// Maximum number of tokens with which a product is bound by memory bandwidth.
const FEW_TOKENS: usize = 4;
/// Number of panels of a register tile.
const PAIR: usize = 2;
/// Number of panels unpacked together when there are many tokens.
const PANELS_TOGETHER: usize = 16;
/// Up to this many groups of tokens, a panel's unpacked K block stays in L1 while all groups are multiplied
/// with it.
const FEW_GROUPS: usize = 3;

/// One matrix product: weights, activations and the position of the result in the output.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// The activations, `[n, cols]`.
    pub x: &'a Activations,
    /// The weights, `[rows, cols]`.
    pub weights: &'a PackedMatrix,
    /// Numbers added to each token's outputs.
    pub bias: Option<&'a [f32]>,
    /// Row of the output matrix for the first token.
    pub first_row: usize,
    /// Column of the output matrix for the weights' first row.
    pub first_col: usize,
    /// Range of weight rows, `(first, end)`, whose panels are also multiplied with the int8 residual of the
    /// activations, if the weights are quantized.
    pub refined: (usize, usize),
    /// Adds to the outputs instead of overwriting them.
    pub adds: bool,
    /// Makes the output a gated linear unit (SwiGLU, GeGLU), of which this product is the gate.
    pub gated: Option<Gated<'a>>,
}

impl<'a> Product<'a> {
    /// A product at the output's first row and column.
    pub fn new(x: &'a Activations, weights: &'a PackedMatrix) -> Self {
        let (bias, refined) = (None, (0, 0));
        Self { x, weights, bias, first_row: 0, first_col: 0, refined, adds: false, gated: None }
    }

    fn n_groups(&self) -> usize {
        self.x.n_rows().div_ceil(GROUP)
    }
}

/// `out[first_row + i, first_col + o] = Σ_c x[i, c] w[o, c] (+ bias[o])` for all products in one fork of the
/// pool; `out` has `stride` columns. Products of the same tokens (Q, K and V) are listed in increasing
/// columns, products of other tokens (the experts of a mixture) in increasing rows. Each matrix is read once
/// for all of its tokens.
///
/// # Panics
/// When shapes do not match, products overlap or are out of that order, or the activations do not have the
/// form that a matrix needs (see [`Activations::set`]).
pub fn matmul(products: &[Product<'_>], out: &mut [f32], stride: usize, pool: &ThreadPool) {
    check(products, out.len(), stride, pool.isa());
    let out = Disjoint::new(out);
    WORK_SPLIT.with_borrow_mut(|items| {
        items.split(products, pool.n_threads());
        pool.for_each(items.n(), |item| {
            let (i, panels) = items.locate(products, item);
            let product = &products[i];
            let (first_row, first_col) = (product.first_row, product.first_col + panels.start * PANEL);
            let target = Target { out: &out, stride, first_row, first_col, first_panel: panels.start };
            multiply(product, panels, target, pool.isa());
        });
    });
}

thread_local! {
    static WORK_SPLIT: RefCell<WorkSplit> = const { RefCell::new(WorkSplit::new()) };
}

/// Computes some panels of a product.
fn multiply(product: &Product<'_>, panels: Range<usize>, target: Target<'_>, isa: Isa) {
    if let Some(in_tiles) = in_tiles(product, isa) {
        return in_tiles.run(panels, target);
    }
    if let Some(gated) = &product.gated {
        return multiply_gated(product, gated, panels, target, isa);
    }
    let work = Item { product, target, isa, form: form(product.weights, isa) };
    SCRATCH.with_borrow_mut(|scratch| work.run(panels.start, panels.end, scratch));
}

/// The product on the AMX path; `None` if vector kernels compute it, or if gate and up have different formats
/// and are computed one after the other.
fn in_tiles<'a>(product: &'a Product<'a>, isa: Isa) -> Option<AmxGemm<'a>> {
    let form = form(product.weights, isa);
    let alike = product.gated.is_none_or(|gated| gated.up.format() == product.weights.format());
    let has_tiles = matches!(form, Form::Bf16 | Form::Bf16Split | Form::Bf16PairsSplit);
    (has_tiles && alike).then_some(AmxGemm { product, isa, form })
}

/// Destination of a work item's outputs.
#[derive(Clone, Copy)]
struct Target<'a> {
    out: &'a Disjoint<'a, f32>,
    /// Elements from one token's outputs to the next's.
    stride: usize,
    /// Output row of the first token.
    first_row: usize,
    /// Output column of the first panel.
    first_col: usize,
    first_panel: usize,
}

impl Target<'_> {
    /// Index of a token's first output for a panel.
    fn at(&self, token: usize, panel: usize) -> usize {
        (self.first_row + token) * self.stride + self.first_col + (panel - self.first_panel) * PANEL
    }
}

fn check(products: &[Product<'_>], len: usize, stride: usize, isa: Isa) {
    let mut free = (0, 0, 0);
    for p in products {
        check_operands(p, isa);
        let (n, w) = (p.x.n_rows(), p.weights);
        let (rows_end, row, col) = free;
        assert!(
            p.first_col + w.rows() <= stride && (p.first_row + n) * stride <= len,
            "product out of bounds"
        );
        let beside = p.first_row == row && p.first_row + n == rows_end && p.first_col >= col;
        assert!(beside || p.first_row >= rows_end, "products overlap or are out of order");
        free = (p.first_row + n, p.first_row, p.first_col + w.rows());
    }
}

fn check_operands(p: &Product<'_>, isa: Isa) {
    let (n, w) = (p.x.n_rows(), p.weights);
    assert_eq!(p.x.cols(), w.cols(), "columns of activations and weights");
    assert!(p.bias.is_none_or(|b| b.len() == w.rows()), "length of the bias");
    if let Some(gated) = &p.gated {
        let up = gated.up;
        assert!(up.rows() == w.rows() && up.cols() == w.cols(), "gate and up");
        assert!(gated.up_bias.is_none_or(|b| b.len() == up.rows()), "length of the bias");
        assert!(!p.adds && p.refined.0 >= p.refined.1, "a gated product that adds or is refined");
        assert!(n == 0 || p.x.records(0, self::form(up, isa)).is_some(), "activations lack the form of up");
    }
    let form = form(w, isa);
    assert!(n == 0 || p.x.records(0, form).is_some(), "activations lack the form for {}", w.format().name());
    let lacks_rest =
        p.refined.0 < p.refined.1 && form == Form::Int8 && p.x.records(0, Form::Int8Residual).is_none();
    assert!(n == 0 || !lacks_rest, "activations lack what rounding left over");
}

/// The form of activations that a matrix is multiplied with.
fn form(weights: &PackedMatrix, isa: Isa) -> Form {
    match weights.format().elements() {
        Elements::Floats(floats) if isa.has_tiles() && !floats.needs_f32() => Form::Bf16Split,
        Elements::Floats(_) => Form::F32,
        // As finely as with two terms of int8: see `Forms::mxfp4`.
        Elements::Codes(codes, _) if isa.has_tiles() && codes.is_exact_in_bf16() => Form::Bf16PairsSplit,
        Elements::Codes(..) if isa.has_tiles() => Form::Bf16,
        Elements::Codes(..) => Form::Int8,
    }
}

/// Destination of a tile's sums: a pointer, or one for each panel, to rows that are `stride` apart.
struct Sums<O> {
    out: O,
    stride: usize,
    /// Whether the sums are added to the output's previous content.
    adds: bool,
}

/// Some panels of one product, on one thread, with vector kernels.
struct Item<'a> {
    product: &'a Product<'a>,
    target: Target<'a>,
    isa: Isa,
    /// Form of the activations.
    form: Form,
}

impl Item<'_> {
    fn run(&self, first: usize, last: usize, scratch: &mut Scratch) {
        let weights = self.product.weights;
        if self.unpacks_in_registers() {
            // Panels are contiguous in memory: one at a time is a sequential read.
            return (first..last).for_each(|panel| self.group(0, &[KBlock::stored(weights, panel)]));
        }
        let together = if self.product.n_groups() <= FEW_GROUPS { PAIR } else { PANELS_TOGETHER };
        scratch.reserve(weights, together);
        let n_blocks = weights.layout().n_blocks;
        for panels in (first..last).step_by(together) {
            let panels = panels..(panels + together).min(last);
            for block in (0..n_blocks).step_by(K_BLOCK_BLOCKS) {
                let n = K_BLOCK_BLOCKS.min(n_blocks - block);
                let mut k_blocks = [None; PANELS_TOGETHER];
                for (i, panel) in panels.clone().enumerate() {
                    let unpacked = scratch.unpack(
                        self.isa,
                        weights,
                        PanelBlocks { panel, first: block, n },
                        i,
                        together,
                    );
                    k_blocks[i] = Some(unpacked);
                }
                for group in 0..self.product.n_groups() {
                    for pair in k_blocks[..panels.len()].chunks(PAIR) {
                        match *pair {
                            [Some(a), Some(b)] => self.group(group, &[a, b]),
                            _ => pair.iter().flatten().for_each(|a| self.group(group, &[*a])),
                        }
                    }
                }
            }
        }
    }

    /// Whether there are few enough tokens that weights are unpacked in registers. The other forms are those
    /// of AMX.
    fn unpacks_in_registers(&self) -> bool {
        self.product.x.n_rows() <= FEW_TOKENS && matches!(self.form, Form::Int8 | Form::F32)
    }

    /// Multiplies a group's tokens with one or two panels, as many tokens at a time as the ISA's registers
    /// hold.
    fn group<const P: usize>(&self, group: usize, k_blocks: &[KBlock; P]) {
        if P > 1 && self.n_rows(&k_blocks[P - 1]) < PANEL {
            return k_blocks.iter().for_each(|s| self.group(group, &[*s]));
        }
        let n_tokens = (self.product.x.n_rows() - group * GROUP).min(GROUP);
        let mut first = 0;
        while first < n_tokens {
            let n = (n_tokens - first).min(self.isa.tile_tokens());
            self.tile(group, first..first + n, k_blocks);
            first += n;
        }
    }

    /// Number of rows of the matrix in the K block's panel: 16, fewer in the last one.
    fn n_rows(&self, k_block: &KBlock) -> usize {
        (self.product.weights.rows() - k_block.panel * PANEL).min(PANEL)
    }

    /// Whether a row of the K block's panel is in the refined range.
    fn is_refined(&self, k_block: &KBlock) -> bool {
        let (first, end) = self.product.refined;
        let meets = k_block.panel * PANEL < end && (k_block.panel + 1) * PANEL > first;
        meets && self.form == Form::Int8
    }

    /// Some tokens of a group. A register tile writes whole vectors for a power of two of tokens: a tile that
    /// extends beyond the outputs goes to a temporary buffer first.
    fn tile<const P: usize>(&self, group: usize, tokens: Range<usize>, k_blocks: &[KBlock; P]) {
        let n_rows = self.n_rows(&k_blocks[P - 1]);
        let first_token = group * GROUP + tokens.start;
        let at = |t: usize, s: &KBlock| self.target.at(first_token + t, s.panel);
        // SAFETY: products do not overlap (checked), and a panel's columns belong to one work item.
        let row = |t: usize, s: &KBlock| unsafe { self.target.out.part(at(t, s), n_rows) };
        let adds = k_blocks[0].first > 0 || self.product.adds;
        let is_whole = n_rows == PANEL && tokens.len().is_power_of_two();
        let mut aside = [const { MaybeUninit::<[[f32; PANEL]; GROUP]>::uninit() }; P];
        let (out, stride) = if is_whole {
            (k_blocks.each_ref().map(|s| self.target.out.pointer(at(0, s))), self.target.stride)
        } else {
            for (aside, s) in aside.iter_mut().zip(k_blocks) {
                let aside = aside.write([[0.0; PANEL]; GROUP]);
                if adds {
                    (0..tokens.len()).for_each(|t| aside[t][..n_rows].copy_from_slice(row(t, s)));
                }
            }
            (aside.each_mut().map(|aside| aside.as_mut_ptr().cast()), PANEL)
        };
        self.multiply(group, &tokens, k_blocks, self.form, Sums { out, stride, adds });
        let is_refined = k_blocks.each_ref().map(|s| self.is_refined(s));
        if is_refined.iter().all(|r| *r) {
            self.multiply(group, &tokens, k_blocks, Form::Int8Residual, Sums { out, stride, adds: true });
        } else {
            for ((s, out), _) in k_blocks.iter().zip(out).zip(is_refined).filter(|(_, r)| *r) {
                let sums = Sums { out: [out], stride, adds: true };
                self.multiply(group, &tokens, &[*s], Form::Int8Residual, sums);
            }
        }
        let bias = self.product.bias.filter(|_| k_blocks[0].is_last(self.product.weights));
        for (aside, s) in aside.iter().zip(k_blocks).filter(|_| !is_whole || bias.is_some()) {
            for t in 0..tokens.len() {
                if !is_whole {
                    // SAFETY: written above.
                    row(t, s).copy_from_slice(&unsafe { aside.assume_init_ref() }[t][..n_rows]);
                }
                if let Some(bias) = bias {
                    std::iter::zip(row(t, s), &bias[s.panel * PANEL..]).for_each(|(out, b)| *out += b);
                }
            }
        }
    }

    /// Multiplies the tokens in one of their forms.
    fn multiply<const P: usize>(
        &self,
        group: usize,
        tokens: &Range<usize>,
        k_blocks: &[KBlock; P],
        form: Form,
        sums: Sums<[*mut f32; P]>,
    ) {
        let Sums { out, stride, adds } = sums;
        let p = self.product;
        let record = p.x.record(form);
        let Some(weights) = unpacked(k_blocks) else {
            return self.multiply_stored(
                group,
                tokens,
                &k_blocks[0],
                form,
                Sums { out: out[0], stride, adds },
            );
        };
        let codes = p.weights.format().codes();
        let n_blocks = k_blocks[0].n;
        // Only the first tile of a K block prefetches the next one.
        let asks = group == 0 && tokens.start == 0 && form != Form::Int8Residual;
        let weights = weights.map(|w| Unpacked { ahead_bytes: if asks { w.ahead_bytes } else { 0 }, ..w });
        let halves = codes.is_some_and(|codes| codes.scales.halves());
        let has_min = codes.is_some_and(|codes| codes.scales.has_min());
        let stays_narrow = codes.is_some_and(CodeLayout::is_narrow) && self.isa.wide_is_slow();
        let floats = codes.is_none();
        let records = p.x.records(group, form).expect("checked before the fork");
        let x = records[k_blocks[0].first * record..][..n_blocks * record].as_ptr();
        let first = tokens.start;
        macro_rules! run {
            ($t:literal) => {{
                let tile =
                    Tile::<$t, P> { weights, halves, has_min, floats, n_blocks, x, first, out, stride, adds };
                // SAFETY: weights, records and outputs are as long as the tile says: the
                // unpacked K block has `n` quantization blocks, and a group's records always have room for sixteen tokens.
                unsafe { if stays_narrow { self.isa.run(NarrowTile(tile)) } else { self.isa.run(tile) } }
            }};
        }
        match tokens.len() {
            1 => run!(1),
            2 => run!(2),
            3..=4 => run!(4),
            _ => run!(8),
        }
    }

    /// Multiplies few tokens with one panel, unpacked in registers.
    fn multiply_stored(
        &self,
        group: usize,
        tokens: &Range<usize>,
        k_block: &KBlock,
        form: Form,
        sums: Sums<*mut f32>,
    ) {
        let Sums { out, stride, adds } = sums;
        let p = self.product;
        let (layout, panel) = (p.weights.layout(), p.weights.panel(k_block.panel));
        let x = p.x.records(group, form).expect("checked before the fork").as_ptr();
        let token = tokens.start;
        macro_rules! run {
            ($t:literal) => {{
                let kernel = SkinnyGemm::<$t> { layout, panel, x, token, out, stride, adds };
                // SAFETY: a group's records have all blocks and room for sixteen tokens, and the outputs are for as many as the kernel has.
                unsafe { kernel.multiply(p.weights.format(), self.isa) }
            }};
        }
        match tokens.len() {
            1 => run!(1),
            2 => run!(2),
            _ => run!(4),
        }
    }
}

/// The unpacked weights of K blocks, `None` where they are read as they are stored.
fn unpacked<const P: usize>(k_blocks: &[KBlock; P]) -> Option<[Unpacked; P]> {
    let mut weights = [k_blocks[0].unpacked?; P];
    for (weights, k_block) in weights.iter_mut().zip(k_blocks) {
        *weights = k_block.unpacked?;
    }
    Some(weights)
}
