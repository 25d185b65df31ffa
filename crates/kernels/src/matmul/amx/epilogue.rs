//! Epilogue of the AMX GEMM: scales accumulators, adds bias, applies the gate, writes or adds to the outputs.

use std::ops::Range;

use super::product::{AmxGemm, TILE};
use crate::matmul::Target;
use crate::matmul::activation_rows::GROUP;
use crate::quant::{PANEL, PackedMatrix};
use crate::rows::{Activation, load_part, store_part};
use crate::simd::{CheckedKernel, Kernel, SimdIsa};

impl<'a> AmxGemm<'a> {
    /// The epilogue for a group's accumulators of some panels, [slot][16 tokens][16 rows].
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

    /// The outputs of a group's tokens for some panels.
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

/// Scale and bias of one matrix.
#[derive(Clone, Copy)]
struct Part<'a> {
    by: f32,
    bias: Option<&'a [f32]>,
}

impl Part<'_> {
    /// Scaled accumulators plus bias, of sixteen rows from `first` on.
    #[inline(always)]
    unsafe fn product<S: SimdIsa>(&self, sums: &[f32], first: usize) -> S::F {
        // SAFETY: sixteen sums; the caller guarantees the features.
        unsafe {
            let product = S::mul(S::load(sums[..PANEL].as_ptr()), S::splat(self.by));
            match self.bias {
                None => product,
                Some(bias) => S::add(product, load_part::<S>(&bias[first..bias.len().min(first + PANEL)])),
            }
        }
    }
}

/// Writes one group's accumulators to the outputs.
pub(super) struct Finish<'a, T> {
    /// Accumulators, [slot][16 tokens][16 rows].
    sums: &'a [f32],
    product: Part<'a>,
    /// The up projection and the activation, where the product is the gate of a gated linear unit.
    gated: Option<(Part<'a>, Activation)>,
    adds: bool,
    /// Each token's outputs.
    tokens: T,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl<'a, T: Iterator<Item = &'a mut [f32]>> CheckedKernel for Finish<'_, T> {}

impl<'a, T: Iterator<Item = &'a mut [f32]>> Kernel for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let n_slots = if self.gated.is_some() { 2 } else { 1 };
        for (t, out) in self.tokens.enumerate() {
            for (i, out) in out.chunks_mut(PANEL).enumerate() {
                let sums = &self.sums[i * n_slots * TILE + t * PANEL..];
                // SAFETY: up to sixteen outputs; the caller guarantees the features.
                unsafe {
                    let mut product = self.product.product::<S>(sums, i * PANEL);
                    if let Some((up, gate)) = &self.gated {
                        let up = up.product::<S>(&sums[TILE..], i * PANEL);
                        product = gate.glu::<S>(product, up);
                    }
                    if self.adds {
                        product = S::add(load_part::<S>(out), product);
                    }
                    store_part::<S>(out, product);
                }
            }
        }
    }
}
