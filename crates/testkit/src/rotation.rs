//! Rotary embeddings of one head, for the example backends. Does not know positions.

use throng_model::config::RopeStyle;

/// Rotates the pairs of a head's elements, one by each cosine and sine.
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    for i in 0..cos.len() {
        let (a, b) = match style {
            RopeStyle::HalfSplit => (i, i + cos.len()),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (x, y) = (head[a], head[b]);
        (head[a], head[b]) = (x * cos[i] - y * sin[i], y * cos[i] + x * sin[i]);
    }
}
