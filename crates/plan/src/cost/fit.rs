//! Fits of the shares of the peaks to measured durations of operators.

use throng_core::timeline::latency::percentile;

use super::collective::Links;
use super::product::{Product, ProductRates, joined};
use crate::machine::{Efficiency, ErrorBar};
use crate::minimize::minimize;

/// Maximum number of samples that a fit uses; of more, evenly spaced ones.
const MAX_FITTED: usize = 1500;

/// A product and its measured duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductSample {
    /// The product on one device.
    pub product: Product,
    /// Measured seconds.
    pub seconds: f64,
}

/// Exponent that joins the start of an operation without products and its reading and writing.
const ELEMENTWISE_SHARPNESS: f64 = 4.0;

/// An all-reduce and its measured duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveSample {
    /// Bytes on each device.
    pub bytes: f64,
    /// Number of devices that take part.
    pub n_devices: f64,
    /// Measured seconds.
    pub seconds: f64,
}

/// An operation without a product, and its measured duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElementwiseSample {
    /// Number of bytes read and written.
    pub bytes: f64,
    /// Measured seconds.
    pub seconds: f64,
}

/// Seconds of an operation that only reads and writes.
pub fn elementwise_seconds(bytes: f64, bytes_per_s: f64, efficiency: &Efficiency) -> f64 {
    if bytes <= 0.0 {
        return 0.0;
    }
    let moving = bytes / (bytes_per_s * efficiency.elementwise_memory);
    joined(efficiency.elementwise_launch_s, moving, ELEMENTWISE_SHARPNESS)
}

/// Every n-th sample, so that few enough remain.
fn thinned<T: Copy>(samples: &[T]) -> Vec<T> {
    samples.iter().step_by(samples.len().div_ceil(MAX_FITTED).max(1)).copied().collect()
}

/// Mean of the absolute logarithms of predicted over measured: errors by a factor count the same upwards and
/// downwards, and outliers little.
fn mean_log_error(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut sum, mut n) = (0.0, 0);
    for (predicted, measured) in pairs {
        sum += (predicted / measured).ln().abs();
        n += 1;
    }
    sum / f64::from(n.max(1))
}

/// The logistic function, which maps all numbers to shares.
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The efficiencies that explain products best; those of other operations are kept.
pub fn fit_products(rates: &ProductRates, samples: &[ProductSample], start: &Efficiency) -> Efficiency {
    let samples = thinned(samples);
    let with = |p: &[f64]| Efficiency {
        launch_s: p[0].exp() * 1e-6,
        compute: logistic(p[1]),
        memory: logistic(p[2]),
        sharpness: 1.0 + p[3].exp(),
        waves: if rates.units.is_some() { logistic(p[4]) } else { 0.0 },
        ..start.clone()
    };
    let cost = |p: &[f64]| {
        let efficiency = with(p);
        mean_log_error(
            samples.iter().map(|sample| (rates.seconds(&sample.product, &efficiency), sample.seconds)),
        )
    };
    let first = [1.0, 1.0, 2.0, 0.5, -1.0];
    with(&minimize(&first, 0.4, cost))
}

/// The efficiencies that explain norms, activations and additions best; those of other operations are kept.
pub fn fit_elementwise(bytes_per_s: f64, samples: &[ElementwiseSample], start: &Efficiency) -> Efficiency {
    let samples = thinned(samples);
    let with = |p: &[f64]| Efficiency {
        elementwise_launch_s: p[0].exp() * 1e-6,
        elementwise_memory: logistic(p[1]),
        ..start.clone()
    };
    let cost = |p: &[f64]| {
        let efficiency = with(p);
        mean_log_error(
            samples.iter().map(|s| (elementwise_seconds(s.bytes, bytes_per_s, &efficiency), s.seconds)),
        )
    };
    with(&minimize(&[1.0, 1.0], 0.4, cost))
}

/// The efficiencies that explain all-reduces best; those of other operations are kept.
pub fn fit_all_reduce(links: Links, samples: &[CollectiveSample], start: &Efficiency) -> Efficiency {
    let samples = thinned(samples);
    let with = |p: &[f64]| Efficiency {
        all_reduce_s: p[0].exp() * 1e-6,
        links: logistic(p[1]),
        link_sharpness: 1.0 + p[2].exp(),
        ..start.clone()
    };
    let cost = |p: &[f64]| {
        let efficiency = with(p);
        mean_log_error(
            samples.iter().map(|s| (links.all_reduce(s.bytes, s.n_devices, &efficiency), s.seconds)),
        )
    };
    with(&minimize(&[3.0, 1.0, 0.5], 0.4, cost))
}

/// Relative errors of predictions, as pairs of predicted and measured; `None` without any.
pub fn error_bar(pairs: impl Iterator<Item = (f64, f64)>) -> Option<ErrorBar> {
    let mut errors: Vec<f64> =
        pairs.map(|(predicted, measured)| (predicted / measured - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    Some(ErrorBar { median: percentile(&errors, 50.0)?, p90: percentile(&errors, 90.0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_shares_that_made_the_samples() {
        let rates = ProductRates { operations_per_s: 1e15, bytes_per_s: 3e12, units: None };
        let truth =
            Efficiency { launch_s: 5e-6, compute: 0.6, memory: 0.9, sharpness: 3.0, ..Efficiency::ideal() };
        let samples: Vec<ProductSample> = (0..14)
            .flat_map(|power| [1024.0, 8192.0].map(|n| (f64::from(1 << power), n)))
            .map(|(m, n)| Product { m, n, k: 4096.0, weight_bytes: 2.0 })
            .map(|product| ProductSample { product, seconds: rates.seconds(&product, &truth) })
            .collect();
        let found = fit_products(&rates, &samples, &Efficiency::ideal());
        let pairs = samples.iter().map(|s| (rates.seconds(&s.product, &found), s.seconds));
        let bar = error_bar(pairs).expect("samples");
        assert!(bar.p90 < 0.02, "{bar:?} {found:?}");
        assert!((found.compute - 0.6).abs() < 0.03 && (found.memory - 0.9).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn an_error_bar_has_the_median_and_the_ninth_tenth() {
        let pairs = (1..=10).map(|i| (1.0 + f64::from(i) / 100.0, 1.0));
        let bar = error_bar(pairs).expect("pairs");
        assert!((bar.median - 0.05).abs() < 1e-9 && (bar.p90 - 0.09).abs() < 1e-9, "{bar:?}");
        assert_eq!(error_bar(std::iter::empty()), None);
    }
}
