//! Sums of tiles to outputs. Refuses to know how they came about.

use super::bfloat_product::TILE;
use crate::quant::PANEL;
use crate::rows::{Gate, load_part, store_part};
use crate::simd::{Lane, Task};

/// What a matrix's sums become.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) by: f32,
    pub(super) bias: Option<&'a [f32]>,
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
    pub(super) sums: &'a [f32],
    pub(super) product: Part<'a>,
    /// What goes through the gate that the product is.
    pub(super) gated: Option<(Part<'a>, Gate)>,
    pub(super) adds: bool,
    /// Each token's outputs.
    pub(super) tokens: T,
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
