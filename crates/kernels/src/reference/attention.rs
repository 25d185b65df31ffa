//! Paged attention in plain loops.

use super::rows::{softcap, softmax};

/// Shape of an attention call, without its tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`, consecutive query heads share one (Ainslie et al. 2023,
    /// arXiv:2305.13245).
    pub n_kv_heads: usize,
    /// Number of elements of one head.
    pub head_dim: usize,
    /// Factor on `q · k`, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `s = cap tanh(s / cap)` before the mask (Gemma 2).
    pub softcap: Option<f32>,
    /// A query at position p attends to positions `p - window + 1 ..= p` (Mistral, arXiv:2310.06825) and, in
    /// both directions, `p + window - 1` at most.
    pub window: Option<usize>,
    /// First position with stored keys and values, 0 for all. Only a position's own query attends to
    /// positions below it.
    pub first_position: usize,
    /// A query at position p attends to positions `p / chunk * chunk ..= p` (Llama 4).
    pub chunk: Option<usize>,
    /// Values are not stored: they are the elements of the keys from this index on (multi-head latent
    /// attention in its absorbed form, arXiv:2405.04434).
    pub values_in_keys: Option<usize>,
    /// Whether a query also attends to the positions after its own (encoders, arXiv:1810.04805). All tokens
    /// of a sequence are then of one step.
    pub is_bidirectional: bool,
}

impl AttentionShape {
    /// Heads of these numbers and size that attend to all positions.
    pub const fn new(n_heads: usize, n_kv_heads: usize, head_dim: usize, scale: f32) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap: None,
            window: None,
            first_position: 0,
            chunk: None,
            values_in_keys: None,
            is_bidirectional: false,
        }
    }

    /// First position that a query at `position` attends to.
    pub fn first_visible(&self, position: usize) -> usize {
        let of_window = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let of_chunk = self.chunk.map_or(0, |chunk| position / chunk * chunk);
        of_window.max(of_chunk).max(self.first_position.min(position))
    }

    /// End of the positions that a query at `position` attends to, in a sequence of `n_tokens`.
    pub fn end_visible(&self, position: usize, n_tokens: usize) -> usize {
        if !self.is_bidirectional {
            return position + 1;
        }
        self.window.map_or(n_tokens, |window| n_tokens.min(position + window))
    }

    /// Whether a query attends to all positions before its own and none after it.
    pub fn sees_all_before(&self) -> bool {
        self.window.is_none() && self.chunk.is_none() && self.first_position == 0 && !self.is_bidirectional
    }

    /// Number of elements of a value.
    pub fn value_dim(&self) -> usize {
        self.head_dim - self.values_in_keys.unwrap_or(0)
    }
}

/// One sequence's keys and values in f32, found through its block table.
#[derive(Debug, Clone, Copy)]
pub struct PagedKv<'a> {
    /// [n_blocks, block_tokens, n_kv_heads, head_dim].
    pub keys: &'a [f32],
    /// Values, laid out as `keys`; not read where values are parts of keys.
    pub values: &'a [f32],
    /// Position p lies in block `block_table[p / block_tokens]`, slot `p % block_tokens`.
    pub block_table: &'a [u32],
    /// Number of tokens of one block.
    pub block_tokens: usize,
    /// Number of tokens of the sequence.
    pub n_tokens: usize,
}

/// One query row attends to its sequence: `out = softmax(mask(softcap(scale q K^T))) V` (Vaswani et al. 2017,
/// arXiv:1706.03762) over the positions that it sees. `q` is [n_heads, head_dim], `out` [n_heads, value_dim].
/// A sink of a head is a further score without a value: it takes its part of the softmax and adds nothing
/// (gpt-oss, arXiv:2508.10925).
///
/// # Panics
/// When a length does not fit or the table is too short for `position`.
pub fn attention(
    shape: &AttentionShape,
    q: &[f32],
    sinks: Option<&[f32]>,
    kv: &PagedKv<'_>,
    position: usize,
    out: &mut [f32],
) {
    let (d, n_kv, value_dim) = (shape.head_dim, shape.n_kv_heads, shape.value_dim());
    assert!(q.len() == shape.n_heads * d && out.len() == shape.n_heads * value_dim);
    assert!(shape.n_heads.is_multiple_of(n_kv));
    assert!(
        position / kv.block_tokens < kv.block_table.len(),
        "block table too short for position {position}"
    );
    let row = |p: usize, kv_head: usize| {
        let slot = kv.block_table[p / kv.block_tokens] as usize * kv.block_tokens + p % kv.block_tokens;
        (slot * n_kv + kv_head) * d..(slot * n_kv + kv_head + 1) * d
    };
    let (first, end) = (shape.first_visible(position), shape.end_visible(position, kv.n_tokens));
    let mut scores = vec![0.0; end - first];
    for head in 0..shape.n_heads {
        let kv_head = head / (shape.n_heads / n_kv);
        let q = &q[head * d..][..d];
        for (i, score) in scores.iter_mut().enumerate() {
            let key = &kv.keys[row(first + i, kv_head)];
            *score = shape.scale * q.iter().zip(key).fold(0.0, |sum, (q, k)| sum + q * k);
        }
        if let Some(cap) = shape.softcap {
            softcap(&mut scores, cap);
        }
        if let Some(sinks) = sinks {
            scores.push(sinks[head]);
        }
        softmax(&mut scores);
        scores.truncate(end - first);
        let out = &mut out[head * value_dim..][..value_dim];
        out.fill(0.0);
        for (i, p) in scores.iter().enumerate() {
            let value = match shape.values_in_keys {
                None => &kv.values[row(first + i, kv_head)],
                Some(from) => &kv.keys[row(first + i, kv_head)][from..],
            };
            for (out, v) in out.iter_mut().zip(value) {
                *out += p * v;
            }
        }
    }
}
