//! Rotary position embedding in plain loops.

/// Pairing of a head's elements for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(x[i], x[i + d/2])`: GPT-NeoX, and every Hugging Face checkpoint.
    HalfSplit,
    /// `(x[2i], x[2i + 1])`: the paper, and GGUF files of llama-family models (their Q and K rows are
    /// permuted).
    Interleaved,
}

/// Rotates the first `2 cos.len()` elements of one head by the position's angles (Su et al. 2021,
/// arXiv:2104.09864): `(a, b) → (a cos - b sin, b cos + a sin)`. `cos` and `sin` hold one value a pair; later
/// elements stay as they are.
///
/// # Panics
/// When `cos` and `sin` differ in length or the head is shorter than the rotated part.
pub fn rope(head: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    let n_pairs = cos.len();
    assert!(sin.len() == n_pairs && head.len() >= 2 * n_pairs, "{n_pairs} pairs of {}", head.len());
    for i in 0..n_pairs {
        let (p, q) = match style {
            RopeStyle::HalfSplit => (i, i + n_pairs),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (head[p], head[q]);
        head[p] = a * cos[i] - b * sin[i];
        head[q] = b * cos[i] + a * sin[i];
    }
}
