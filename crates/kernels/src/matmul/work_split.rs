//! Splits the work of a call into items that threads claim; an item is some panels of one product. Does not
//! compute.

use std::ops::Range;

use super::{FEW_GROUPS, PANELS_TOGETHER, Product};

/// The items of all products of a call. Keeps its allocations between uses.
pub(super) struct WorkSplit {
    /// Number of panels of all products that have tokens.
    n_panels: usize,
    n_threads: usize,
    /// End of each product's items in the call's numbering.
    ends: Vec<usize>,
}

impl WorkSplit {
    pub(super) const fn new() -> Self {
        Self { n_panels: 0, n_threads: 1, ends: Vec::new() }
    }

    /// Splits the work of these products for `n_threads` threads.
    pub(super) fn split(&mut self, products: &[Product<'_>], n_threads: usize) {
        self.n_threads = n_threads;
        self.n_panels = products.iter().map(n_panels).sum();
        self.ends.clear();
        let mut end = 0;
        for product in products {
            end += n_panels(product).div_ceil(self.panels_an_item(product));
            self.ends.push(end);
        }
    }

    /// Number of items.
    pub(super) fn n(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// An item's product (its index) and panels.
    pub(super) fn locate(&self, products: &[Product<'_>], item: usize) -> (usize, Range<usize>) {
        let i = self.ends.partition_point(|&end| end <= item);
        let (product, first_item) = (&products[i], if i == 0 { 0 } else { self.ends[i - 1] });
        let n = self.panels_an_item(product);
        let first = (item - first_item) * n;
        (i, first..(first + n).min(n_panels(product)))
    }

    /// Panels of one item: enough items to balance the threads, each large enough to be worth claiming.
    /// SwiGLU outputs are rounded in blocks of 32 columns, so their items have an even number of panels.
    fn panels_an_item(&self, product: &Product<'_>) -> usize {
        let (most, items) = if product.n_groups() <= FEW_GROUPS { (8, 8) } else { (PANELS_TOGETHER, 2) };
        let n = self.n_panels / (self.n_threads * items);
        if product.gated.is_some() { n.clamp(2, most / 2) / 2 * 2 } else { n.clamp(1, most) }
    }
}

/// Number of panels to compute: none when the product has no tokens.
fn n_panels(product: &Product<'_>) -> usize {
    if product.x.n_rows() == 0 { 0 } else { product.weights.n_panels() }
}
