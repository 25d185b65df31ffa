//! One matrix product in AMX tiles: its operands by group, panel and slot, and the multiplication of a run of
//! blocks. Does not know the order of the blocks.

use std::ops::Range;

use crate::matmul::Product;
use crate::matmul::activation_rows::GROUP;
use crate::matmul::activations::Form;
use crate::quant::{AmxUnpacker, PANEL, PackedMatrix};
use crate::simd::{AmxIsa, Isa, ProductRun};

/// Number of elements of an accumulator tile.
pub(in crate::matmul) const TILE: usize = GROUP * PANEL;

/// One product, on one thread.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct AmxGemm<'a> {
    pub(in crate::matmul) product: &'a Product<'a>,
    pub(in crate::matmul) isa: Isa,
    /// The form of the activations.
    pub(in crate::matmul) form: Form,
}

impl<'a> AmxGemm<'a> {
    /// Number of matrices whose panels alternate in the slots: one, or two for gate and up.
    pub(in crate::matmul) fn n_matrices(&self) -> usize {
        if self.product.gated.is_some() { 2 } else { 1 }
    }

    /// The matrix and the panel in slot `slot`, where the slots begin with panel `first`.
    pub(in crate::matmul) fn in_slot(&self, first: usize, slot: usize) -> (&'a PackedMatrix, usize) {
        match &self.product.gated {
            None => (self.product.weights, first + slot),
            Some(gated) => {
                (if slot.is_multiple_of(2) { self.product.weights } else { gated.up }, first + slot / 2)
            }
        }
    }

    /// The unpackers of even slots and of odd ones.
    pub(super) fn unpackers<U: AmxUnpacker>(&self) -> [U; 2] {
        [0, 1].map(|slot| U::of(self.in_slot(0, slot).0))
    }

    /// Number of tokens in a group.
    pub(in crate::matmul) fn n_tokens(&self, group: usize) -> usize {
        (self.product.x.n_rows() - group * GROUP).min(GROUP)
    }

    /// A group's activation records from `block` on.
    pub(in crate::matmul) fn records(&self, group: usize, block: usize) -> *const u8 {
        let records = self.product.x.records(group, self.form).expect("checked before the fork");
        records[block * self.product.x.record(self.form)..].as_ptr()
    }

    /// Weight rows of some panels.
    pub(in crate::matmul) fn rows(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * PANEL..self.product.weights.rows().min(panels.end * PANEL)
    }
}

/// Adds the products of a run of blocks, with all their bf16 parts, to the accumulators.
///
/// # Safety
/// The tiles are shaped; memory is valid as [`ProductRun`] requires.
#[inline(always)]
pub(in crate::matmul) unsafe fn add_products<S: AmxIsa, U: AmxUnpacker, const G: usize, const P: usize>(
    run: &ProductRun,
) {
    // SAFETY: by the caller.
    unsafe {
        match (U::TOKEN_PARTS, U::PARTS) {
            (1, _) => S::add_products::<G, P, 1, 1>(run),
            (_, 1) => S::add_products::<G, P, 2, 1>(run),
            _ => S::add_products::<G, P, 2, 2>(run),
        }
    }
}
