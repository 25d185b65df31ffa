//! Norms of a row on the example device. Does not know heads.

use throng_kernels::reference;
use throng_model::backend::{Columns, Norm};

use super::{ExampleBackend, Rows};

/// Applies a norm to a row in place.
pub(super) fn normalize(norm: Norm<'_, ExampleBackend>, x: &mut [f32]) {
    if let Some(bias) = norm.bias {
        let row = x.to_vec();
        return reference::layer_norm(&row, norm.gain, bias, norm.eps, x);
    }
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let inverse = 1.0 / (mean + norm.eps).sqrt();
    x.iter_mut().zip(norm.gain).for_each(|(x, gain)| *x *= inverse * gain);
}

/// Norms groups of columns in place: by one gain, or with a bias by those of each column.
pub(super) fn normalize_groups(x: &mut Rows, columns: Columns, norm: Norm<'_, ExampleBackend>) {
    let Some(bias) = norm.bias else {
        return x.for_each_group(columns, |_, group| normalize(norm, group));
    };
    for row in x.iter_mut() {
        let groups = row[columns.first..columns.end()].chunks_exact_mut(columns.width);
        let gains = norm.gain.chunks_exact(columns.width).zip(bias.chunks_exact(columns.width));
        for (group, (gain, bias)) in groups.zip(gains) {
            let before = group.to_vec();
            reference::layer_norm(&before, gain, bias, norm.eps, group);
        }
    }
}
