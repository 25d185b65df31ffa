//! Low-rank products (LoRA, arXiv:2106.09685) added to the outputs of linear layers, for rows of several
//! adapters in one fork of the pool. Does not know which requests the rows belong to.
//!
//! A work item is one part of a linear layer (query, key, …) for up to sixteen rows of one adapter: it
//! computes the rows' products with `A`, `rank` numbers each, and adds their products with `B` at once, so
//! that there is no second fork. Every sum has one order, independent of the other rows.

mod matrices;
mod row_groups;

pub use matrices::{LowRank, LowRankPart};
pub use row_groups::RowGroups;

use std::cell::RefCell;

use crate::disjoint::Disjoint;
use crate::rows::{load_part, store_part};
use crate::simd::{Kernel, SimdIsa, prefetch_bytes, sum};
use crate::threads::ThreadPool;
use matrices::{Numbers, Part, RANKS, VECTOR};

/// Maximum number of rows of a work item: `B` is read once for them while their products with `A` stay in L1.
const ITEM_ROWS: usize = 16;
/// Number of rows of a register tile, where the registers hold one.
const TILE_ROWS: usize = 4;
/// Number of vectors of outputs that a register tile has.
const TILE_VECTORS: usize = 4;
/// Distance ahead of the arithmetic at which the matrices are prefetched, as in products of few tokens.
const AHEAD_BYTES: usize = 8192;

/// Some rows of a group and the part of the group's matrices that they are multiplied with.
struct Item<'a> {
    part: &'a Part,
    numbers: &'a Numbers,
    rows: &'a [usize],
}

thread_local! {
    /// The products with `A` of one item's rows, `[rows, rank]`.
    static SHRUNK: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `out[i, first_col + o] += Σ_r b[o, r] (scale Σ_c a[r, c] x[i, c])` for the rows of every group that `of`
/// has matrices for, and for each of their parts; `x` has rows of `cols`, `out` of `stride`.
///
/// # Panics
/// When a row or a column does not exist, or the matrices have other columns than `x`.
pub fn add_low_rank<'a>(
    x: &[f32],
    cols: usize,
    groups: &'a RowGroups,
    of: impl Fn(usize) -> Option<&'a LowRank>,
    out: &mut [f32],
    stride: usize,
    pool: &ThreadPool,
) {
    let end_row = groups.end_row();
    assert!(end_row * cols <= x.len() && end_row * stride <= out.len(), "rows of the groups");
    let mut items = Vec::new();
    for group in 0..groups.len() {
        let Some(low_rank) = of(group) else { continue };
        assert!(low_rank.cols() == cols && low_rank.end_col() <= stride, "columns of an adapter");
        let numbers = low_rank.numbers();
        for part in low_rank.parts() {
            items.extend(groups.rows(group).chunks(ITEM_ROWS).map(|rows| Item { part, numbers, rows }));
        }
    }
    let out = Disjoint::new(out);
    pool.for_each(items.len(), |i| {
        let Item { part, numbers, rows } = items[i];
        SHRUNK.with_borrow_mut(|shrunk| {
            shrunk.resize(shrunk.len().max(rows.len() * part.rank), 0.0);
            let work = Work { part, x, cols, rows, shrunk, out: &out, stride };
            // SAFETY: a row is in one group, and the parts of a group's matrices have columns of
            // their own, so an item's outputs are its own.
            unsafe {
                match numbers {
                    Numbers::F32(numbers) => pool.isa().run(Product::of(numbers, work)),
                    Numbers::BF16(numbers) => pool.isa().run(Product::of(numbers, work)),
                }
            }
        });
    });
}

/// Work of one item of the job.
struct Work<'a> {
    part: &'a Part,
    x: &'a [f32],
    cols: usize,
    rows: &'a [usize],
    shrunk: &'a mut [f32],
    out: &'a Disjoint<'a, f32>,
    stride: usize,
}

/// One item with matrices of one number type.
struct Product<'a, N> {
    a: &'a [N],
    b: &'a [N],
    work: Work<'a>,
}

/// A number type of the matrices.
trait Number: Copy {
    /// Loads sixteen numbers as f32.
    ///
    /// # Safety
    /// `S`'s features must be available, and `from` must be valid for a vector of elements (see [`SimdIsa`]).
    unsafe fn load<S: SimdIsa>(from: *const Self) -> S::F;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn load<S: SimdIsa>(from: *const Self) -> S::F {
        // SAFETY: by the caller.
        unsafe { S::load(from) }
    }
}

/// Bits of a bfloat16.
impl Number for u16 {
    #[inline(always)]
    unsafe fn load<S: SimdIsa>(from: *const Self) -> S::F {
        // SAFETY: by the caller.
        unsafe { S::load_bf16(from) }
    }
}

impl<N: Number> Kernel for Product<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(mut self) {
        let n = self.work.rows.len();
        let mut first = 0;
        // SAFETY: by the caller; tiles are within the item's rows.
        unsafe {
            if S::REGISTERS >= 32 {
                while first + TILE_ROWS <= n {
                    self.tile::<S, TILE_ROWS>(first);
                    first += TILE_ROWS;
                }
            }
            (first..n).for_each(|first| self.tile::<S, 1>(first));
        }
    }
}

/// Prefetches the data that is read after these numbers; an item's first tile does so for all.
#[inline(always)]
unsafe fn prefetch_after<S: SimdIsa, N>(first: usize, numbers: &[N]) {
    if first == 0 {
        let ahead = numbers.as_ptr().cast::<u8>().wrapping_add(AHEAD_BYTES);
        // SAFETY: the ISA's features are available by the caller; any address may be prefetched.
        unsafe { prefetch_bytes::<S, true>(ahead, size_of_val(numbers)) };
    }
}

impl<'a, N: Number> Product<'a, N> {
    fn of(numbers: &'a [N], work: Work<'a>) -> Self {
        let Part { a, b, .. } = work.part;
        Self { a: &numbers[a.clone()], b: &numbers[b.clone()], work }
    }

    /// Computes `T` rows from row number `first` of the item on.
    #[inline(always)]
    unsafe fn tile<S: SimdIsa, const T: usize>(&mut self, first: usize) {
        // SAFETY: by the caller.
        unsafe {
            self.shrink::<S, T>(first);
            let panel = self.work.part.rank * VECTOR;
            let n_together = panel * TILE_VECTORS;
            let b = self.b;
            let n_whole = b.len() / n_together;
            for i in 0..n_whole {
                let together = &b[i * n_together..][..n_together];
                prefetch_after::<S, N>(first, together);
                let panels = std::array::from_fn(|p| &together[p * panel..][..panel]);
                self.expand::<S, T, TILE_VECTORS>(first, i * TILE_VECTORS, panels);
            }
            for (i, panel) in b[n_whole * n_together..].chunks_exact(panel).enumerate() {
                self.expand::<S, T, 1>(first, n_whole * TILE_VECTORS + i, [panel]);
            }
        }
    }

    /// The products with `A`, times the scale.
    #[inline(always)]
    unsafe fn shrink<S: SimdIsa, const T: usize>(&mut self, first: usize) {
        let Work { part, x, cols, rows, shrunk, .. } = &mut self.work;
        let x: [&[f32]; T] = std::array::from_fn(|t| &x[rows[first + t] * *cols..][..*cols]);
        let n_vectors = cols.div_ceil(VECTOR);
        for (panel_idx, panel) in self.a.chunks_exact(n_vectors * RANKS * VECTOR).enumerate() {
            // SAFETY: the ISA's features are available by the caller; loads are within the slices.
            let sums = unsafe {
                let mut sums = [[S::splat(0.0); RANKS]; T];
                for (c, a) in panel.as_chunks::<{ RANKS * VECTOR }>().0.iter().enumerate() {
                    let columns = c * VECTOR..(*cols).min((c + 1) * VECTOR);
                    prefetch_after::<S, N>(first, a);
                    let a: [S::F; RANKS] = std::array::from_fn(|r| N::load::<S>(a[r * VECTOR..].as_ptr()));
                    for (x, sums) in x.iter().zip(&mut sums) {
                        let x = load_part::<S>(&x[columns.clone()]);
                        for (sum, a) in sums.iter_mut().zip(a) {
                            *sum = S::fma(x, a, *sum);
                        }
                    }
                }
                sums
            };
            let ranks = panel_idx * RANKS..part.rank.min((panel_idx + 1) * RANKS);
            for (t, sums) in sums.into_iter().enumerate() {
                let of_row = &mut shrunk[(first + t) * part.rank..][..part.rank];
                for (shrunk, vector) in of_row[ranks.clone()].iter_mut().zip(sums) {
                    // SAFETY: the ISA's features are available by the caller; no memory is touched.
                    *shrunk = unsafe { sum::<S>(vector) } * part.scale;
                }
            }
        }
    }

    /// Adds the products with `P` panels of `B`, from panel number `panel_idx` on.
    #[inline(always)]
    unsafe fn expand<S: SimdIsa, const T: usize, const P: usize>(
        &mut self,
        first: usize,
        panel_idx: usize,
        panels: [&[N]; P],
    ) {
        let Work { part, rows, shrunk, out, stride, .. } = &self.work;
        let shrunk: [&[f32]; T] = std::array::from_fn(|t| &shrunk[(first + t) * part.rank..][..part.rank]);
        // SAFETY: the ISA's features are available by the caller; loads are within the slices.
        let sums = unsafe {
            let mut sums = [[S::splat(0.0); P]; T];
            for r in 0..part.rank {
                let b: [S::F; P] =
                    std::array::from_fn(|p| N::load::<S>(panels[p][r * VECTOR..][..VECTOR].as_ptr()));
                for (shrunk, sums) in shrunk.iter().zip(&mut sums) {
                    let x = S::splat(shrunk[r]);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = S::fma(x, b, *sum);
                    }
                }
            }
            sums
        };
        for (t, sums) in sums.into_iter().enumerate() {
            for (p, vector) in sums.into_iter().enumerate() {
                let col = (panel_idx + p) * VECTOR;
                let n = VECTOR.min(part.n_cols - col);
                let at = rows[first + t] * *stride + part.first_col + col;
                // SAFETY: an item's outputs are its own by the caller, and within the buffer.
                unsafe {
                    let out = out.part(at, n);
                    store_part::<S>(out, S::add(load_part::<S>(out), vector));
                }
            }
        }
    }
}
