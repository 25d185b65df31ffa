//! Sums of tiles to outputs. Refuses to know how they came about.

use std::ops::Range;

use super::Target;
use super::activations::GROUP;
use super::bfloat_product::{BfloatProduct, TILE};
use crate::quant::{PANEL, PackedMatrix};
use crate::rows::{Gate, load_part, store_part};
use crate::simd::{Lane, Task};

impl<'a> BfloatProduct<'a> {
    /// What brings sums of a group and some panels, [slot][16 tokens][16 rows], to each token's outputs.
    pub(super) fn finish<'s, T>(&self, panels: &Range<usize>, sums: &'s [f32], tokens: T) -> Finish<'s, T>
    where
        'a: 's,
    {
        let Self { product, .. } = *self;
        let rows = self.rows(panels);
        let part = |weights: &PackedMatrix, bias: Option<&'a [f32]>| Part {
            by: weights.pair_scale().back,
            bias: bias.map(|bias| &bias[rows.clone()]),
        };
        Finish {
            sums,
            product: part(product.weights, product.bias),
            gated: product.gated.map(|gated| (part(gated.up, gated.up_bias), gated.function)),
            adds: product.adds,
            tokens,
        }
    }

    /// Where outputs of a group's tokens for some panels go.
    pub(super) fn outputs<'t>(
        &self,
        target: Target<'t>,
        group: usize,
        panels: &Range<usize>,
    ) -> impl Iterator<Item = &'t mut [f32]> {
        let (first_token, first_panel, n_rows) = (group * GROUP, panels.start, self.rows(panels).len());
        (0..self.n_tokens(group)).map(move |t| {
            // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
            unsafe { target.out.part(target.at(first_token + t, first_panel), n_rows) }
        })
    }
}

/// What a matrix's sums become.
#[derive(Clone, Copy)]
struct Part<'a> {
    by: f32,
    bias: Option<&'a [f32]>,
}

impl Part<'_> {
    /// The product of sixteen rows from `first` on.
    #[inline(always)]
    unsafe fn product<L: Lane>(&self, sums: &[f32], first: usize) -> L::F {
        // SAFETY: sixteen sums; the features are the caller's word.
        unsafe {
            let product = L::mul(L::load(sums[..PANEL].as_ptr()), L::splat(self.by));
            match self.bias {
                None => product,
                Some(bias) => L::add(product, load_part::<L>(&bias[first..bias.len().min(first + PANEL)])),
            }
        }
    }
}

/// A group's sums to outputs.
pub(super) struct Finish<'a, T> {
    /// [slot][16 tokens][16 rows].
    sums: &'a [f32],
    product: Part<'a>,
    /// What goes through the gate that the product is.
    gated: Option<(Part<'a>, Gate)>,
    adds: bool,
    /// Each token's outputs.
    tokens: T,
}

impl<'a, T: Iterator<Item = &'a mut [f32]>> Task for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        let n_slots = if self.gated.is_some() { 2 } else { 1 };
        for (t, out) in self.tokens.enumerate() {
            for (i, out) in out.chunks_mut(PANEL).enumerate() {
                let sums = &self.sums[i * n_slots * TILE + t * PANEL..];
                // SAFETY: up to sixteen outputs; the features are the caller's word.
                unsafe {
                    let mut product = self.product.product::<L>(sums, i * PANEL);
                    if let Some((up, gate)) = &self.gated {
                        let up = up.product::<L>(&sums[TILE..], i * PANEL);
                        product = L::mul(gate.of::<L>(product), up);
                    }
                    if self.adds {
                        product = L::add(load_part::<L>(out), product);
                    }
                    store_part::<L>(out, product);
                }
            }
        }
    }
}
