//! Frequencies of rotary embeddings and their scaling to longer contexts. Does not know where the numbers are
//! written.

use std::f64::consts::PI;

use crate::config::{RopeTable, ShortRope};

/// Scaling of a base's frequencies.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RopeScaling {
    /// No scaling.
    None,
    /// All divided by a factor (arXiv:2306.15595).
    Linear { factor: f64 },
    /// Llama 3.1: low frequencies divided, high ones kept, smooth between.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_tokens: f64 },
    /// YaRN (arXiv:2309.00071).
    Yarn { factor: f64, original_tokens: f64, beta_fast: f64, beta_slow: f64, truncate: bool, amplitude: f64 },
    /// Each frequency divided by its own factor (GGUF's `rope_freqs`).
    Factors(Factors),
    /// Only a share of the angles, the fastest, is used and divided by a factor; the others are zero (Gemma
    /// 4).
    Proportional { share: f64, factor: f64 },
    /// NTK-aware scaling by a fixed factor: the base is multiplied with it, and all frequencies are divided
    /// by `factor^(2 / n)` of `n` rotated elements (GTE; `ntk_scaling_rope.py` of vLLM).
    Ntk { factor: f64 },
    /// A base that is multiplied with `alpha^(n / (n - 2))` of `n` rotated elements (Hunyuan).
    StretchedBase { alpha: f64 },
    /// LongRoPE (arXiv:2402.13753): other factors where no sequence is longer than the original context.
    LongRope { long: Factors, short: Factors, original_tokens: usize },
}

/// Divisors of the frequencies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Factors {
    pub(super) factors: Vec<f64>,
    /// Multiplies cosines and sines.
    pub(super) amplitude: f64,
}

impl Factors {
    fn table(&self, mut frequencies: Vec<f64>) -> Option<RopeTable> {
        if self.factors.len() != frequencies.len() {
            return None;
        }
        frequencies.iter_mut().zip(&self.factors).for_each(|(f, factor)| *f /= factor);
        Some(RopeTable {
            frequencies,
            amplitude: self.amplitude,
            growth: None,
            sections: Vec::new(),
            short: None,
        })
    }
}

impl RopeScaling {
    /// The table for heads whose first `n_rotated` elements are rotated, with frequencies `theta^(-2i /
    /// n_rotated)`. `None` if the numbers of factors and frequencies differ.
    pub(super) fn table(&self, theta: f64, n_rotated: usize) -> Option<RopeTable> {
        let n = n_rotated as f64;
        let theta = match self {
            Self::StretchedBase { alpha } => theta * alpha.powf(n / (n - 2.0)),
            Self::Ntk { factor } => theta * factor,
            _ => theta,
        };
        let mut frequencies: Vec<f64> = (0..n_rotated / 2).map(|i| theta.powf(-2.0 * i as f64 / n)).collect();
        let mut amplitude = 1.0;
        match self {
            Self::None | Self::StretchedBase { .. } => {}
            Self::Ntk { factor } => frequencies.iter_mut().for_each(|f| *f /= factor.powf(2.0 / n)),
            Self::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_tokens } => {
                for frequency in &mut frequencies {
                    // Full turns over the original context: frequencies with few turns are scaled, those with many are kept.
                    let turns = original_tokens * *frequency / (2.0 * PI);
                    let keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    *frequency = mix(*frequency / factor, *frequency, keep.clamp(0.0, 1.0));
                }
            }
            Self::Yarn { factor, original_tokens, beta_fast, beta_slow, truncate, amplitude: a } => {
                let pair_of_turns = |turns: f64| {
                    n_rotated as f64 * (original_tokens / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (pair_of_turns(*beta_fast), pair_of_turns(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let high = high.min(n_rotated as f64 - 1.0);
                let width = if high == low { 0.001 } else { high - low };
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    let stretch = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    *frequency = mix(*frequency, *frequency / factor, stretch);
                }
                amplitude = *a;
            }
            Self::Proportional { share, factor } => {
                let n_turning = (share * n_rotated as f64 / 2.0) as usize;
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    *frequency = if i < n_turning { *frequency / factor } else { 0.0 };
                }
            }
            Self::Factors(factors) => return factors.table(frequencies),
            Self::LongRope { long, short, original_tokens } => {
                let RopeTable { frequencies: short, amplitude, .. } = short.table(frequencies.clone())?;
                let short = ShortRope { max_tokens: *original_tokens, frequencies: short, amplitude };
                return Some(RopeTable { short: Some(short), ..long.table(frequencies)? });
            }
        }
        Some(RopeTable { frequencies, amplitude, growth: None, sections: Vec::new(), short: None })
    }
}

/// YaRN's temperature of the attention as a factor of cosines and sines.
pub(super) fn yarn_amplitude(factor: f64, multiplier: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 }
}

/// LongRoPE's: `sqrt(1 + ln(factor) / ln(original context))`.
pub(super) fn longrope_amplitude(factor: f64, original_tokens: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_tokens.ln()).sqrt() }
}

fn mix(a: f64, b: f64, share_of_b: f64) -> f64 {
    a * (1.0 - share_of_b) + b * share_of_b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_fast_and_stretches_slow_turns() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_tokens: 8192.0,
        };
        let plain = RopeScaling::None.table(500_000.0, 128).unwrap();
        let scaled = scaling.table(500_000.0, 128).unwrap();
        assert_eq!(scaled.frequencies[0], plain.frequencies[0]);
        let slowest = (scaled.frequencies[63], plain.frequencies[63] / 8.0);
        assert!((slowest.0 / slowest.1 - 1.0).abs() < 1e-12);
        // Values of transformers 5 (`_compute_llama3_parameters`) for pairs inside the smooth part.
        let between = scaled.frequencies[29] / plain.frequencies[29];
        assert!(between > 0.125 && between < 1.0, "{between}");
    }

    #[test]
    fn yarn_keeps_the_first_and_divides_the_last() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_tokens: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            amplitude: yarn_amplitude(4.0, 1.0),
        };
        let plain = RopeScaling::None.table(1e6, 128).unwrap();
        let scaled = scaling.table(1e6, 128).unwrap();
        assert_eq!(scaled.frequencies[0], plain.frequencies[0]);
        assert!((scaled.frequencies[63] / plain.frequencies[63] - 0.25).abs() < 1e-12);
        assert!((scaled.amplitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
    }

    #[test]
    fn factors_must_fit() {
        let factors = Factors { factors: vec![1.0; 3], amplitude: 1.0 };
        let scaling = RopeScaling::Factors(factors.clone());
        assert_eq!(scaling.table(1e4, 8), None);
        assert!(scaling.table(1e4, 6).is_some());
        let short = Factors { factors: vec![1.0; 2], amplitude: 1.0 };
        let scaling = RopeScaling::LongRope { long: factors, short, original_tokens: 16 };
        assert_eq!(scaling.table(1e4, 6), None);
    }
}
