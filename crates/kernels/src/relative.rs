//! Attention of encoders whose scores depend on the distance of two tokens: by a number for each head and
//! bucket of distances (MPNet, arXiv:2004.09297), or by products of queries and keys with embeddings of the
//! buckets (DeBERTa, arXiv:2006.03654). All tokens of a sequence are rows of one matrix. Does not know
//! models.

use std::cell::RefCell;

use crate::attention::QuerySpan;
use crate::disjoint::Disjoint;
use crate::rows::exponentials;
use crate::simd::{CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Queries, keys and values of whole sequences, and their scores by distance. For each head, the score of a
/// query at `i` and a key at `j`, whose distance is in bucket `b`, is `(q · k + of_queries[i][b] +
/// of_keys[j][b]) * scale + bias[b]`.
#[derive(Debug, Clone, Copy)]
pub struct RelativeBatch<'a> {
    /// Rows, one for each token: queries of all heads, then keys, then values.
    pub rows: &'a [f32],
    /// Number of columns of the matrix.
    pub stride: usize,
    /// The sequences, each with all of its tokens.
    pub spans: &'a [QuerySpan],
    /// Number of heads of queries, of keys and of values.
    pub n_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Bucket of each distance, position of the query minus position of the key; the middle one is that of
    /// distance 0, and the first and the last hold all larger distances.
    pub buckets: &'a [u16],
    /// Number of buckets; indices are below it.
    pub n_buckets: usize,
    /// `[n_heads, n_buckets]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, n_heads, n_buckets]`.
    pub of_queries: Option<&'a [f32]>,
    /// `[rows, n_heads, n_buckets]`.
    pub of_keys: Option<&'a [f32]>,
}

/// Buffers of a thread.
#[derive(Default)]
struct Room {
    /// Keys of one head, `[head_dim, tokens]`.
    keys: Vec<f32>,
    /// Scores of one query.
    scores: Vec<f32>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Attention of every token over all tokens of its sequence. `out` is `[rows, n_heads * head_dim]`.
///
/// # Panics
/// When shapes do not match, a span does not begin at position 0 or a bucket does not exist.
pub fn relative_attention(batch: &RelativeBatch<'_>, out: &mut [f32], pool: &ThreadPool) {
    check(batch, out.len());
    let n_heads = batch.n_heads;
    let out = Disjoint::new(out);
    pool.for_each(batch.spans.len() * n_heads, |item| {
        let (span, head) = (&batch.spans[item / n_heads], item % n_heads);
        ROOM.with_borrow_mut(|room| {
            pool.isa().run_checked(Head { batch, span, head, room, out: &out });
        });
    });
}

fn check(batch: &RelativeBatch<'_>, n_out: usize) {
    let width = batch.n_heads * batch.head_dim;
    assert!(batch.stride >= 3 * width && batch.rows.len().is_multiple_of(batch.stride), "rows");
    let n_rows = batch.rows.len() / batch.stride;
    assert_eq!(n_out, n_rows * width, "rows of {width}");
    let mut end = 0;
    for span in batch.spans {
        assert!(span.start == 0 && span.first_row >= end, "whole sequences, one after the other");
        end = span.first_row + span.n_rows;
    }
    assert!(end <= n_rows, "{end} of {n_rows} rows");
    let of_rows = batch.n_heads * batch.n_buckets;
    assert!(batch.buckets.len() % 2 == 1, "as many distances on each side");
    assert!(batch.buckets.iter().all(|&bucket| usize::from(bucket) < batch.n_buckets), "buckets");
    assert!(batch.bias.is_none_or(|bias| bias.len() == of_rows), "a bias a bucket");
    for parts in [batch.of_queries, batch.of_keys].into_iter().flatten() {
        assert_eq!(parts.len(), n_rows * of_rows, "a score a row and bucket");
    }
}

/// A head of one sequence.
struct Head<'a> {
    batch: &'a RelativeBatch<'a>,
    span: &'a QuerySpan,
    head: usize,
    room: &'a mut Room,
    out: &'a Disjoint<'a, f32>,
}

// SAFETY: slices only, and their lengths are checked; each head of a row of `out` belongs to one item.
unsafe impl CheckedKernel for Head<'_> {}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { batch, span, head, room, out } = self;
        let RelativeBatch { rows, stride, head_dim, .. } = *batch;
        let (n, width) = (span.n_rows, batch.n_heads * head_dim);
        let part = |i: usize, first: usize| {
            &rows[(span.first_row + i) * stride + first + head * head_dim..][..head_dim]
        };
        room.keys.resize(n * head_dim, 0.0);
        room.scores.resize(n, 0.0);
        for j in 0..n {
            for (d, x) in part(j, width).iter().enumerate() {
                room.keys[d * n + j] = *x;
            }
        }
        for i in 0..n {
            let scores = &mut room.scores[..n];
            scores.fill(0.0);
            for (x, keys) in part(i, 0).iter().zip(room.keys.chunks_exact(n)) {
                scores.iter_mut().zip(keys).for_each(|(score, key)| *score += x * key);
            }
            batch.add_relative(span, head, i, scores);
            // SAFETY: the ISA's features are available by the caller.
            let inverse = unsafe { exponentials::<S>(scores) };
            // SAFETY: the head of this row belongs to one item.
            let out = unsafe { out.part((span.first_row + i) * width + head * head_dim, head_dim) };
            out.fill(0.0);
            for (j, weight) in scores.iter().enumerate() {
                let weight = weight * inverse;
                out.iter_mut().zip(part(j, 2 * width)).for_each(|(out, value)| *out += weight * value);
            }
        }
    }
}

impl RelativeBatch<'_> {
    /// Adds the scores of distances to the products of one query with all keys, and scales them.
    #[inline(always)]
    fn add_relative(&self, span: &QuerySpan, head: usize, i: usize, scores: &mut [f32]) {
        let reach = self.buckets.len() / 2;
        let row_of = |parts: &'_ [f32], token: usize, bucket: usize| {
            parts[((span.first_row + token) * self.n_heads + head) * self.n_buckets + bucket]
        };
        for (j, score) in scores.iter_mut().enumerate() {
            let place = (i + reach).saturating_sub(j).min(2 * reach);
            let bucket = usize::from(self.buckets[place]);
            let of_query = self.of_queries.map_or(0.0, |parts| row_of(parts, i, bucket));
            let of_key = self.of_keys.map_or(0.0, |parts| row_of(parts, j, bucket));
            let bias = self.bias.map_or(0.0, |bias| bias[head * self.n_buckets + bucket]);
            *score = (*score + of_query + of_key) * self.scale + bias;
        }
    }
}
