//! Products of activations with packed matrices: one layout for one token and for many, one pass over the weights.
//! Refuses to know what the matrices are for.
//!
//! Work is split by panels. A stretch of a panel is unpacked once, in the first cache, and meets all tokens of the
//! call; with many tokens a group of panels is unpacked into the second cache while each tile of tokens stays in the
//! first. Neither changes an output's bits (see the `tile` module).

pub(crate) mod activations;
pub(crate) mod tile;

pub use activations::{Activations, Forms};

use std::cell::RefCell;
use std::ops::Range;

use crate::memory::{AlignedBytes, Disjoint, Pages};
use crate::quant::{CodeLayout, PANEL, PackedMatrix, Unpack, Unpacked, unpacked_block_bytes};
use crate::simd::Isa;
use crate::threads::ThreadPool;
use activations::{FLOAT_RECORD, Form, GROUP, RECORD};
use tile::{MAX_TOKENS, Tile};

/// Blocks of a stretch: 1024 columns of codes are 16 KiB a panel.
const STRETCH: usize = 32;
/// Panels unpacked together when there are many tokens.
const PANELS_TOGETHER: usize = 16;
/// Up to so many tiles of tokens, a panel's stretch stays in the first cache while all of them pass.
const FEW_TILES: usize = 4;

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
}

impl<'a> Product<'a> {
    /// A product that begins at the output's first element.
    pub fn new(x: &'a Activations, weights: &'a PackedMatrix) -> Self {
        Self { x, weights, bias: None, first_row: 0, first_col: 0 }
    }

    /// Panels that one item of work takes: enough items for every thread, large enough to be worth the claim.
    fn panels_an_item(&self, n_threads: usize) -> usize {
        let (most, items) = if self.n_tiles() <= FEW_TILES { (8, 8) } else { (PANELS_TOGETHER, 2) };
        (self.weights.n_panels() / (n_threads * items)).clamp(1, most)
    }

    fn n_tiles(&self) -> usize {
        self.x.n_rows().div_ceil(MAX_TOKENS)
    }

    fn n_items(&self, n_threads: usize) -> usize {
        if self.x.n_rows() == 0 {
            return 0;
        }
        self.weights.n_panels().div_ceil(self.panels_an_item(n_threads))
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
    check(products, out.len(), stride);
    let n_threads = pool.n_threads();
    let n_items: usize = products.iter().map(|p| p.n_items(n_threads)).sum();
    let out = Disjoint::new(out);
    pool.for_each(n_items, |mut item| {
        for product in products {
            let n = product.n_items(n_threads);
            if item < n {
                let n_panels = product.panels_an_item(n_threads);
                let first = item * n_panels;
                let last = (first + n_panels).min(product.weights.n_panels());
                let work = Item { product, out: &out, stride, isa: pool.isa() };
                SCRATCH.with_borrow_mut(|scratch| work.run(first, last, scratch));
                return;
            }
            item -= n;
        }
    });
}

fn check(products: &[Product<'_>], len: usize, stride: usize) {
    let mut free = (0, 0, 0);
    for p in products {
        let (n, w) = (p.x.n_rows(), p.weights);
        let (rows_end, row, col) = free;
        assert_eq!(p.x.cols(), w.cols(), "columns of activations and weights");
        assert!(p.bias.is_none_or(|b| b.len() == w.rows()), "length of the bias");
        assert!(
            p.first_col + w.rows() <= stride && (p.first_row + n) * stride <= len,
            "product out of bounds"
        );
        let beside = p.first_row == row && p.first_row + n == rows_end && p.first_col >= col;
        assert!(beside || p.first_row >= rows_end, "products overlap or are out of order");
        free = (p.first_row + n, p.first_row, p.first_col + w.rows());
        let form = form(w);
        assert!(
            n == 0 || p.x.records(0, form).is_some(),
            "activations lack the form for {}",
            w.format().name()
        );
    }
}

/// The form of activations that a matrix multiplies.
fn form(weights: &PackedMatrix) -> Form {
    if CodeLayout::of(weights.format()).is_some() { Form::Ints } else { Form::Floats }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { codes: None, scales: Vec::new() }) };
}

/// Room for unpacked stretches, kept by each thread.
struct Scratch {
    codes: Option<AlignedBytes>,
    scales: Vec<f32>,
}

/// Scales, mins and sums of a stretch, each for every half block at most.
const STRETCH_SCALES: usize = STRETCH * 6 * PANEL;

impl Scratch {
    fn reserve(&mut self, n_bytes: usize, n_panels: usize) {
        if self.codes.as_ref().is_none_or(|c| c.as_slice().len() < n_bytes) {
            self.codes = AlignedBytes::zeroed(n_bytes, Pages::Huge);
        }
        let n_scales = n_panels * STRETCH_SCALES;
        if self.scales.len() < n_scales {
            self.scales.resize(n_scales, 0.0);
        }
    }
}

/// Blocks `first..first + n` of a panel, unpacked.
#[derive(Clone, Copy)]
struct Stretch {
    panel: usize,
    first: usize,
    n: usize,
    weights: Unpacked,
}

/// Panels of one product, on one thread.
struct Item<'a> {
    product: &'a Product<'a>,
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    isa: Isa,
}

impl Item<'_> {
    fn run(&self, first: usize, last: usize, scratch: &mut Scratch) {
        let weights = self.product.weights;
        let together = if self.product.n_tiles() <= FEW_TILES { 1 } else { PANELS_TOGETHER };
        scratch.reserve(together * STRETCH * unpacked_block_bytes(weights.format()), together);
        let n_blocks = weights.layout().n_blocks;
        for panels in (first..last).step_by(together) {
            let panels = panels..(panels + together).min(last);
            for block in (0..n_blocks).step_by(STRETCH) {
                let n = STRETCH.min(n_blocks - block);
                let mut stretches = [None; PANELS_TOGETHER];
                for (i, panel) in panels.clone().enumerate() {
                    stretches[i] = Some(self.unpack(panel, block, n, i, scratch));
                }
                for tile in 0..self.product.n_tiles() {
                    for stretch in stretches.iter().flatten() {
                        self.tile(tile * MAX_TOKENS, stretch);
                    }
                }
            }
        }
    }

    fn unpack(&self, panel: usize, first: usize, n: usize, slot: usize, scratch: &mut Scratch) -> Stretch {
        let weights = self.product.weights;
        let slot_bytes = STRETCH * unpacked_block_bytes(weights.format());
        let codes = scratch.codes.as_mut().expect("the scratch was reserved").as_mut_slice();
        let task = Unpack {
            format: weights.format(),
            layout: weights.layout(),
            panel: weights.panel(panel),
            first,
            n,
            scratch_codes: &mut codes[slot * slot_bytes..][..slot_bytes],
            scratch_scales: &mut scratch.scales[slot * STRETCH_SCALES..][..STRETCH_SCALES],
        };
        // SAFETY: the pool's lane is available; the task checks its own sizes.
        Stretch { panel, first, n, weights: unsafe { self.isa.run(task) } }
    }

    /// Tokens from `first` on, as many as a tile takes, times the rows of a panel.
    fn tile(&self, first: usize, stretch: &Stretch) {
        let p = self.product;
        let tokens = first..p.x.n_rows().min(first + MAX_TOKENS);
        let n_rows = (p.weights.rows() - stretch.panel * PANEL).min(PANEL);
        let row = |t: usize| {
            let at = (p.first_row + t) * self.stride + p.first_col + stretch.panel * PANEL;
            // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
            unsafe { self.out.part(at, n_rows) }
        };
        let mut acc = [[0.0f32; PANEL]; MAX_TOKENS];
        if stretch.first > 0 {
            tokens.clone().zip(&mut acc).for_each(|(t, acc)| acc[..n_rows].copy_from_slice(row(t)));
        }
        let form = form(p.weights);
        self.multiply(tokens.clone(), stretch, form, &mut acc);
        if form == Form::Ints && p.x.records(0, Form::Residuals).is_some() {
            self.multiply(tokens.clone(), stretch, Form::Residuals, &mut acc);
        }
        let is_last = stretch.first + stretch.n == p.weights.layout().n_blocks;
        for (t, acc) in tokens.zip(&mut acc) {
            if let Some(bias) = p.bias.filter(|_| is_last) {
                std::iter::zip(acc.iter_mut(), &bias[stretch.panel * PANEL..]).for_each(|(a, b)| *a += b);
            }
            row(t).copy_from_slice(&acc[..n_rows]);
        }
    }

    /// Adds the product of some tokens in one of their forms, as many at a time as the lane's registers hold.
    fn multiply(
        &self,
        tokens: Range<usize>,
        stretch: &Stretch,
        form: Form,
        acc: &mut [[f32; PANEL]; MAX_TOKENS],
    ) {
        let p = self.product;
        let record = if form == Form::Floats { FLOAT_RECORD } else { RECORD };
        let scales = CodeLayout::of(p.weights.format()).map(|codes| codes.scales);
        let (weights, n_blocks) = (stretch.weights, stretch.n);
        let halves = scales.is_some_and(|s| s.halves());
        let has_min = scales.is_some_and(|s| s.has_min());
        let widest = self.isa.tile_tokens();
        for (acc, first) in acc.chunks_mut(widest).zip(tokens.clone().step_by(widest)) {
            let n = (tokens.end - first).min(widest);
            let mut x = [std::ptr::null(); MAX_TOKENS / GROUP];
            for (g, x) in x.iter_mut().enumerate().take(n.div_ceil(GROUP)) {
                let records = p.x.records(first / GROUP + g, form).expect("checked before the fork");
                *x = records[stretch.first * record..][..stretch.n * record].as_ptr();
            }
            macro_rules! run {
                ($t:literal) => {{
                    let (floats, acc) = (scales.is_none(), acc.as_mut_ptr().cast());
                    let tile = Tile::<$t> { weights, halves, has_min, floats, n_blocks, x, acc };
                    // SAFETY: the pool's lane is available; weights, records and accumulators are as long as the
                    // tile says: the unpacked stretch has `n` blocks, and groups of four are always whole.
                    unsafe { self.isa.run(tile) }
                }};
            }
            match n {
                1 => run!(1),
                2 => run!(2),
                3..=4 => run!(4),
                5..=8 => run!(8),
                _ => run!(12),
            }
        }
    }
}
