//! Positions of tokens relative to each other, as attention of some encoders reads them. Does not know how
//! anything is computed.

/// Scores of attention that depend on the distance of two tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativePositions {
    /// Way in which buckets of distances enter the scores.
    pub kind: RelativeKind,
    /// Number of buckets.
    pub n_buckets: usize,
    /// Bucket of each distance, position of the query minus position of the key; the middle one is that of
    /// distance 0, and the first and the last hold all larger distances.
    pub buckets: Vec<u16>,
}

/// Way in which buckets of distances enter the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelativeKind {
    /// A number for each head and bucket, the same in all layers (MPNet, arXiv:2004.09297).
    Bias,
    /// Products of queries with keys computed from embeddings of buckets, and of keys with queries computed
    /// from them (DeBERTa, arXiv:2006.03654).
    Disentangled {
        /// Whether there are products of queries.
        has_keys: bool,
        /// Whether there are products of keys.
        has_queries: bool,
        /// Whether the embeddings are multiplied with the matrices of queries and keys themselves.
        shares_projections: bool,
        /// Whether the embeddings are normed first.
        has_norm: bool,
    },
}

impl RelativePositions {
    /// Buckets by the distance: a table for distances of less than `n_distances` in either direction.
    pub fn new(
        kind: RelativeKind,
        n_buckets: usize,
        n_distances: usize,
        bucket: impl Fn(i64) -> usize,
    ) -> Self {
        let reach = n_distances.saturating_sub(1) as i64;
        let last = n_buckets.saturating_sub(1);
        let buckets = (-reach..=reach).map(|distance| bucket(distance).min(last) as u16).collect();
        Self { kind, n_buckets, buckets }
    }

    /// The bucket of a query's distance from a key.
    pub fn bucket(&self, query: usize, key: usize) -> usize {
        let reach = self.buckets.len() / 2;
        usize::from(self.buckets[(query + reach).saturating_sub(key).min(2 * reach)])
    }
}
