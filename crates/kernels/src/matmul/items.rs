//! The work of a call in items that threads claim: some panels of a product each. Refuses to multiply.

use std::ops::Range;

use super::{FEW_GROUPS, PANELS_TOGETHER, Product};

/// Where products' items are among those of a call. Keeps its memory between uses.
pub(super) struct Items {
    /// Panels of all products that have tokens.
    n_panels: usize,
    n_threads: usize,
    /// Where each product's items end.
    ends: Vec<usize>,
}

impl Items {
    pub(super) const fn new() -> Self {
        Self { n_panels: 0, n_threads: 1, ends: Vec::new() }
    }

    /// Splits the work of these products for so many threads.
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

    /// How many there are.
    pub(super) fn n(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Which of the products that were split an item's is, and its panels.
    pub(super) fn locate(&self, products: &[Product<'_>], item: usize) -> (usize, Range<usize>) {
        let i = self.ends.partition_point(|&end| end <= item);
        let (product, first_item) = (&products[i], if i == 0 { 0 } else { self.ends[i - 1] });
        let n = self.panels_an_item(product);
        let first = (item - first_item) * n;
        (i, first..(first + n).min(n_panels(product)))
    }

    /// Panels that one item takes: enough items for every thread, large enough to be worth the claim. Outputs of a gated
    /// unit may be rounded in blocks, of as many columns as two panels have.
    fn panels_an_item(&self, product: &Product<'_>) -> usize {
        let (most, items) = if product.n_groups() <= FEW_GROUPS { (8, 8) } else { (PANELS_TOGETHER, 2) };
        let n = self.n_panels / (self.n_threads * items);
        if product.gated.is_some() { n.clamp(2, most / 2) / 2 * 2 } else { n.clamp(1, most) }
    }
}

/// Panels that a product's tokens meet: none when it has no tokens.
fn n_panels(product: &Product<'_>) -> usize {
    if product.x.n_rows() == 0 { 0 } else { product.weights.n_panels() }
}
