//! Ranges of blocks that are encoded, and nearest values.

/// `1 / d`, or 0 where the block is all zeros.
pub(crate) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value of largest magnitude, with its sign.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// The smallest and the largest value.
pub(super) fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

/// The index of the value nearest to `x`.
pub(super) fn nearest(values: &[i8; 16], x: f32) -> u8 {
    let distance = |i: &usize| (x - f32::from(values[*i])).abs();
    (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0) as u8
}
