//! Norms of a row on the example device. Does not know heads.

use throng_kernels::reference;
use throng_model::backend::Norm;

use super::ExampleBackend;

/// Norms a row in place.
pub(super) fn normalize(norm: Norm<'_, ExampleBackend>, x: &mut [f32]) {
    if let Some(bias) = norm.bias {
        let row = x.to_vec();
        return reference::layer_norm(&row, norm.gain, bias, norm.eps, x);
    }
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let inverse = 1.0 / (mean + norm.eps).sqrt();
    x.iter_mut().zip(norm.gain).for_each(|(x, gain)| *x *= inverse * gain);
}
