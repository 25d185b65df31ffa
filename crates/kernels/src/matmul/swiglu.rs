//! Gated linear units (SwiGLU, GeGLU): the gate and up projections computed together, their activation fused.
//! Does not know register tiles.

use std::cell::RefCell;
use std::ops::Range;

use super::activation_rows::{GROUP, Rows};
use super::amx::gemm::FEW_GROUPS;
use super::{Activations, Forms, Product, Target, WORK_SPLIT, check_operands, in_tiles, multiply};
use crate::disjoint::Disjoint;
use crate::quant::{BLOCK, PANEL, PackedMatrix};
use crate::rows::{Activation, Glu};
use crate::simd::Isa;
use crate::threads::ThreadPool;

/// The up projection and the activation of a gated linear unit:
/// `out = function(x · weightsᵀ + bias) (x · upᵀ + up_bias)` (arXiv:2002.05202).
#[derive(Debug, Clone, Copy)]
pub struct Gated<'a> {
    /// The up projection; same shape as the product's own weights.
    pub up: &'a PackedMatrix,
    /// Bias of the up projection.
    pub up_bias: Option<&'a [f32]>,
    /// The activation applied to the gate.
    pub function: Activation,
}

/// Computes SwiGLU hidden activations directly in the form that the down projection reads, one `out` for each
/// unit. Same bits as [`super::matmul`] followed by [`Activations::set`], but they are rounded while they are
/// in a core's cache. The units' `first_row` and `first_col` are not used.
///
/// # Panics
/// When a product is not gated, shapes do not match, the activations lack a form (as in [`super::matmul`]),
/// and when memory for the outputs cannot be allocated.
pub fn gated_matmul(units: &[Product<'_>], forms: Forms, out: &mut [Activations], pool: &ThreadPool) {
    assert_eq!(units.len(), out.len(), "units and their outputs");
    for (unit, out) in units.iter().zip(&mut *out) {
        assert!(unit.gated.is_some(), "a product without a gate");
        check_operands(unit, pool.isa());
        out.reserve(unit.x.n_rows(), unit.weights.rows(), forms, pool.isa());
    }
    let out = &*out;
    WORK_SPLIT.with_borrow_mut(|items| {
        items.split(units, pool.n_threads());
        pool.for_each(items.n(), |item| {
            let (i, panels) = items.locate(units, item);
            HIDDEN.with_borrow_mut(|room| {
                // SAFETY: an item's panels cover whole blocks of the outputs, or the last ones, and `out` was borrowed
                // uniquely.
                unsafe { multiply_to_records(&units[i], panels, &out[i], room, pool.isa()) }
            });
        });
    });
}

thread_local! {
    /// Hidden activations of one item: [token][output].
    static HIDDEN: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Gate and up projections of one item: [token][gate, up][output].
    static GATES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes some panels of a unit into activation records.
///
/// # Safety
/// The panels' blocks of `out` must belong to this call alone.
unsafe fn multiply_to_records(
    unit: &Product<'_>,
    panels: Range<usize>,
    out: &Activations,
    room: &mut Vec<f32>,
    isa: Isa,
) {
    if let Some(in_tiles) = in_tiles(unit, isa)
        && unit.n_groups() > FEW_GROUPS
    {
        // SAFETY: by the caller.
        return unsafe { in_tiles.round(panels, out) };
    }
    let rows = panels.start * PANEL..unit.weights.rows().min(panels.end * PANEL);
    let (n, stride) = (unit.x.n_rows(), rows.len());
    room.resize(room.len().max(n * stride), 0.0);
    let hidden = &mut room[..n * stride];
    let whole = Disjoint::new(hidden);
    let aside = Target { out: &whole, stride, first_row: 0, first_col: 0, first_panel: panels.start };
    multiply(unit, panels, aside, isa);
    let blocks = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
    for (g, rows) in hidden.chunks(GROUP * stride).enumerate() {
        // SAFETY: by the caller.
        let mut records = unsafe { out.records_to_put(g, blocks.clone()) };
        records.put(&Rows::whole(rows, stride), isa);
    }
}

/// Computes some panels of a gated unit: gate, then up, then the activation, all in this core's cache.
pub(super) fn multiply_gated(
    product: &Product<'_>,
    gated: &Gated<'_>,
    panels: Range<usize>,
    target: Target<'_>,
    isa: Isa,
) {
    let (n, width) = (product.x.n_rows(), panels.len() * PANEL);
    let n_rows = (product.weights.rows() - panels.start * PANEL).min(width);
    GATES.with_borrow_mut(|room| {
        room.resize(room.len().max(2 * n * width), 0.0);
        let sums = Disjoint::new(&mut room[..]);
        let halves = [(product.weights, product.bias), (gated.up, gated.up_bias)];
        for (i, (weights, bias)) in halves.into_iter().enumerate() {
            let half = Product { weights, bias, gated: None, ..*product };
            let (stride, first_col) = (2 * width, i * width);
            let aside = Target { out: &sums, stride, first_row: 0, first_col, first_panel: panels.start };
            multiply(&half, panels.clone(), aside, isa);
        }
        for (t, sums) in room.chunks_exact(2 * width).take(n).enumerate() {
            let (gate, up) = (&sums[..n_rows], &sums[width..][..n_rows]);
            // SAFETY: products do not overlap (checked), and a panel's columns belong to one item.
            let out = unsafe { target.out.part(target.at(t, panels.start), n_rows) };
            isa.run_checked(Glu { gate, up, out, function: gated.function });
        }
    });
}
