//! Products of activations with packed matrices: one layout for one token and for many, one pass over the weights.
//! Refuses to know what the matrices are for.
//!
//! Work is split by panels. A stretch of a panel is unpacked once, in the first cache, and meets all tokens of the
//! call; with many tokens several panels are unpacked into the second cache while each group of tokens stays in the
//! first. Neither changes an output's bits (see the `tile` module). Lanes with tiles go another way: see
//! [`bfloat_product`].

pub(crate) mod activations;
mod bfloat_finish;
mod bfloat_product;
mod bfloat_stream;
pub(crate) mod bfloats;
pub(crate) mod bytes;
mod gated;
mod items;
mod stretch;
pub(crate) mod tile;

pub use activations::{Activations, Forms, RowNorm};
pub use gated::{Gated, gated_matmul};

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::memory::Disjoint;
use crate::quant::{CodeLayout, Format, PANEL, PackedMatrix, Unpacked};
use crate::simd::Isa;
use crate::threads::ThreadPool;
use activations::{Form, GROUP};
use bfloat_product::BfloatProduct;
use gated::multiply_gated;
use items::Items;
use stretch::{SCRATCH, STRETCH, Scratch, Stretch};
use tile::{NarrowTile, Tile};

/// With so few tokens, memory is what a product waits for.
const FEW_TOKENS: usize = 4;
/// Panels that meet a tile together.
const PAIR: usize = 2;
/// Panels unpacked together when there are many tokens.
const PANELS_TOGETHER: usize = 16;
/// Up to so many groups of tokens, a panel's stretch stays in the first cache while all of them pass.
const FEW_GROUPS: usize = 3;

/// One matrix, its tokens, and where the product goes.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// The tokens, `[n, cols]`.
    pub x: &'a Activations,
    /// The weights, `[rows, cols]`.
    pub weights: &'a PackedMatrix,
    /// Added to every row of the product.
    pub bias: Option<&'a [f32]>,
    /// The output row of the first token.
    pub first_row: usize,
    /// The output column of the weights' first row.
    pub first_col: usize,
    /// Rows of the weights, first and end, whose panels meet what rounding the tokens left over as well, if they are
    /// quantized.
    pub refined: (usize, usize),
    /// Adds to the outputs, instead of setting them.
    pub adds: bool,
    /// Makes the outputs a gated linear unit's: this product is what the gate takes.
    pub gated: Option<Gated<'a>>,
}

impl<'a> Product<'a> {
    /// A product that begins at the output's first element.
    pub fn new(x: &'a Activations, weights: &'a PackedMatrix) -> Self {
        let (bias, refined) = (None, (0, 0));
        Self { x, weights, bias, first_row: 0, first_col: 0, refined, adds: false, gated: None }
    }

    fn n_groups(&self) -> usize {
        self.x.n_rows().div_ceil(GROUP)
    }
}

/// `out[first_row + i, first_col + o] = Σ_c x[i, c] w[o, c] (+ bias[o])` for all products in one fork; `out` has rows
/// of `stride` columns. Products of the same tokens stand side by side in increasing columns (Q, K and V); others
/// follow in increasing rows (the experts of a mixture): each matrix is read once for all of its tokens.
///
/// # Panics
/// When shapes do not fit, products overlap or are out of that order, or the activations were not kept in the form
/// that a matrix needs (see [`Activations::set`]).
pub fn matmul(products: &[Product<'_>], out: &mut [f32], stride: usize, pool: &ThreadPool) {
    check(products, out.len(), stride, pool.isa());
    let out = Disjoint::new(out);
    ITEMS.with_borrow_mut(|items| {
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
    static ITEMS: RefCell<Items> = const { RefCell::new(Items::new()) };
}

/// Some panels of a product.
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

/// The product as tiles make it; `None` where vectors do, or where gate and up have to come one after the other.
fn in_tiles<'a>(product: &'a Product<'a>, isa: Isa) -> Option<BfloatProduct<'a>> {
    let form = form(product.weights, isa);
    let alike = product.gated.is_none_or(|gated| gated.up.format() == product.weights.format());
    let has_tiles = matches!(form, Form::BFloats | Form::SplitBFloats);
    (has_tiles && alike).then_some(BfloatProduct { product, isa, form })
}

/// Where an item's outputs go.
#[derive(Clone, Copy)]
struct Target<'a> {
    out: &'a Disjoint<'a, f32>,
    /// Elements from one token's outputs to the next's.
    stride: usize,
    /// Of the first token.
    first_row: usize,
    /// Of the first panel.
    first_col: usize,
    first_panel: usize,
}

impl Target<'_> {
    /// Where a token's outputs for a panel begin.
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
        p.refined.0 < p.refined.1 && form == Form::Bytes && p.x.records(0, Form::Residuals).is_none();
    assert!(n == 0 || !lacks_rest, "activations lack what rounding left over");
}

/// The form of activations that a matrix multiplies.
fn form(weights: &PackedMatrix, isa: Isa) -> Form {
    match CodeLayout::of(weights.format()) {
        None if isa.has_tiles() && weights.format() != Format::F32 => Form::SplitBFloats,
        None => Form::Floats,
        Some(_) if isa.has_tiles() => Form::BFloats,
        Some(_) => Form::Bytes,
    }
}

/// Panels of one product, on one thread.
struct Item<'a> {
    product: &'a Product<'a>,
    target: Target<'a>,
    isa: Isa,
    /// Of the activations.
    form: Form,
}

impl Item<'_> {
    fn run(&self, first: usize, last: usize, scratch: &mut Scratch) {
        let weights = self.product.weights;
        let together = match self.product.x.n_rows() {
            // Panels stand in memory one behind the other, and are asked for in that order.
            ..=FEW_TOKENS => 1,
            _ if self.product.n_groups() <= FEW_GROUPS => PAIR,
            _ => PANELS_TOGETHER,
        };
        scratch.reserve(weights, together);
        let n_blocks = weights.layout().n_blocks;
        for panels in (first..last).step_by(together) {
            let panels = panels..(panels + together).min(last);
            for block in (0..n_blocks).step_by(STRETCH) {
                let n = STRETCH.min(n_blocks - block);
                let mut stretches = [None; PANELS_TOGETHER];
                for (i, panel) in panels.clone().enumerate() {
                    stretches[i] = Some(scratch.unpack(self.isa, weights, (panel, block, n), (i, together)));
                }
                for group in 0..self.product.n_groups() {
                    for pair in stretches[..panels.len()].chunks(PAIR) {
                        match *pair {
                            [Some(a), Some(b)] => self.group(group, &[a, b]),
                            _ => pair.iter().flatten().for_each(|a| self.group(group, &[*a])),
                        }
                    }
                }
            }
        }
    }

    /// A group's tokens times the rows of one or two panels, as many tokens at a time as the lane's registers hold.
    fn group<const P: usize>(&self, group: usize, stretches: &[Stretch; P]) {
        if P > 1 && self.n_rows(&stretches[P - 1]) < PANEL {
            return stretches.iter().for_each(|s| self.group(group, &[*s]));
        }
        let n_tokens = (self.product.x.n_rows() - group * GROUP).min(GROUP);
        let mut first = 0;
        while first < n_tokens {
            let n = (n_tokens - first).min(self.isa.tile_tokens());
            self.tile(group, first..first + n, stretches);
            first += n;
        }
    }

    /// Rows of the stretch's panel that the matrix has.
    fn n_rows(&self, stretch: &Stretch) -> usize {
        (self.product.weights.rows() - stretch.panel * PANEL).min(PANEL)
    }

    /// Whether a row of the stretch's panel is to be refined.
    fn is_refined(&self, stretch: &Stretch) -> bool {
        let (first, end) = self.product.refined;
        let meets = stretch.panel * PANEL < end && (stretch.panel + 1) * PANEL > first;
        meets && self.form == Form::Bytes
    }

    /// Some tokens of a group. A tile writes whole vectors for whole powers of two of tokens: what goes beyond the
    /// outputs is put aside.
    fn tile<const P: usize>(&self, group: usize, tokens: Range<usize>, stretches: &[Stretch; P]) {
        let n_rows = self.n_rows(&stretches[P - 1]);
        let first_token = group * GROUP + tokens.start;
        let at = |t: usize, s: &Stretch| self.target.at(first_token + t, s.panel);
        // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
        let row = |t: usize, s: &Stretch| unsafe { self.target.out.part(at(t, s), n_rows) };
        let adds = stretches[0].first > 0 || self.product.adds;
        let is_whole = n_rows == PANEL && tokens.len().is_power_of_two();
        let mut aside = [const { MaybeUninit::<[[f32; PANEL]; GROUP]>::uninit() }; P];
        let (out, stride) = if is_whole {
            (stretches.each_ref().map(|s| self.target.out.pointer(at(0, s))), self.target.stride)
        } else {
            for (aside, s) in aside.iter_mut().zip(stretches) {
                let aside = aside.write([[0.0; PANEL]; GROUP]);
                if adds {
                    (0..tokens.len()).for_each(|t| aside[t][..n_rows].copy_from_slice(row(t, s)));
                }
            }
            (aside.each_mut().map(|aside| aside.as_mut_ptr().cast()), PANEL)
        };
        self.multiply((group, &tokens), stretches, self.form, (out, stride, adds));
        let is_refined = stretches.each_ref().map(|s| self.is_refined(s));
        if is_refined.iter().all(|r| *r) {
            self.multiply((group, &tokens), stretches, Form::Residuals, (out, stride, true));
        } else {
            for ((s, out), _) in stretches.iter().zip(out).zip(is_refined).filter(|(_, r)| *r) {
                self.multiply((group, &tokens), &[*s], Form::Residuals, ([out], stride, true));
            }
        }
        let bias = self.product.bias.filter(|_| stretches[0].is_last(self.product.weights));
        for (aside, s) in aside.iter().zip(stretches).filter(|_| !is_whole || bias.is_some()) {
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

    /// The product of the tokens in one of their forms.
    fn multiply<const P: usize>(
        &self,
        (group, tokens): (usize, &Range<usize>),
        stretches: &[Stretch; P],
        form: Form,
        (out, stride, adds): ([*mut f32; P], usize, bool),
    ) {
        let p = self.product;
        let record = p.x.record(form);
        let scales = CodeLayout::of(p.weights.format()).map(|codes| codes.scales);
        let n_blocks = stretches[0].n;
        // The first tile asks for what comes next, for all others.
        let asks = group == 0 && tokens.start == 0 && form != Form::Residuals;
        let weights = stretches
            .map(|s| Unpacked { ahead_bytes: if asks { s.weights.ahead_bytes } else { 0 }, ..s.weights });
        let halves = scales.is_some_and(|s| s.halves());
        let has_min = scales.is_some_and(|s| s.has_min());
        let is_narrow = CodeLayout::of(p.weights.format()).is_some_and(CodeLayout::is_narrow);
        let stays_narrow = is_narrow && self.isa.wide_is_slow();
        let floats = scales.is_none();
        let records = p.x.records(group, form).expect("checked before the fork");
        let x = records[stretches[0].first * record..][..n_blocks * record].as_ptr();
        let first = tokens.start;
        macro_rules! run {
            ($t:literal) => {{
                let tile =
                    Tile::<$t, P> { weights, halves, has_min, floats, n_blocks, x, first, out, stride, adds };
                // SAFETY: the pool's lane is available; weights, records and outputs are as long as the tile says: the
                // unpacked stretch has `n` blocks, and a group is always whole.
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
}
