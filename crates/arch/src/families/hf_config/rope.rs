//! Reads the parameters of rotary embeddings in a `config.json`. Does not know families and frequencies.

use serde_json::{Map, Value};

use super::HfConfig;
use crate::families::rope_scaling::{Factors, RopeScaling, longrope_amplitude, yarn_amplitude};
use crate::families::{ConfigError, shorten};
use crate::python_json;

/// Place of a rotary embedding's parameters: an object of their own, or the configuration itself.
pub(super) struct RopeSource<'a> {
    pub(super) config: &'a HfConfig,
    pub(super) parameters: Option<&'a Map<String, Value>>,
}

impl RopeSource<'_> {
    fn own(&self, key: &str) -> Option<&Value> {
        let value = self.parameters.and_then(|p| p.get(key)).filter(|value| !value.is_null())?;
        self.config.read.borrow_mut().insert(key.to_owned());
        Some(value)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.own(key) else { return self.config.number(key) };
        python_json::number(value).map(Some).ok_or_else(|| ConfigError::invalid(key, value, "a number"))
    }

    fn required(&self, key: &str) -> Result<f64, ConfigError> {
        self.number(key)?.ok_or_else(|| ConfigError::Missing(format!("{key} of the rope scaling")))
    }

    fn max_tokens(&self) -> Result<f64, ConfigError> {
        Ok(self.config.number("max_position_embeddings")?.unwrap_or(2048.0))
    }

    pub(super) fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let kind = self.own("rope_type").or_else(|| self.own("type")).and_then(Value::as_str);
        match kind.unwrap_or("default") {
            // A position of three parts (time, height, width), which are one number in text.
            "default" | "mrope" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: self.required("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: self.required("factor")?,
                low_freq_factor: self.required("low_freq_factor")?,
                high_freq_factor: self.required("high_freq_factor")?,
                original_tokens: self.required("original_max_position_embeddings")?,
            }),
            "yarn" => self.yarn(),
            "longrope" | "su" => self.longrope(),
            "proportional" => Ok(RopeScaling::Proportional {
                share: self.number("partial_rotary_factor")?.unwrap_or(1.0),
                factor: self.number("factor")?.unwrap_or(1.0),
            }),
            "ntk" if ["new", "gte"].contains(&self.config.model_type()) => {
                let factor = self.required("factor")?;
                Ok(RopeScaling::Ntk { factor })
            }
            "dynamic" if self.is_stretched() => {
                Ok(RopeScaling::StretchedBase { alpha: self.required("alpha")? })
            }
            // The base grows only for sequences longer than `max_position_embeddings`, which are not served.
            "dynamic" if self.own("alpha").is_none() => Ok(RopeScaling::None),
            other => Err(ConfigError::Variant {
                key: "rope_type".to_owned(),
                found: shorten(other),
                expected: "default, linear, dynamic, llama3, yarn, longrope, proportional",
            }),
        }
    }

    /// The section of positions that each of `n_pairs` pairs is rotated by; empty if all have the same
    /// position.
    pub(super) fn sections(&self, n_pairs: usize) -> Result<Vec<u8>, ConfigError> {
        let key = "mrope_section";
        let Some(value) = self.own(key).or_else(|| self.config.get(key)) else { return Ok(Vec::new()) };
        let sizes =
            value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        let sizes: Option<[u64; 3]> = sizes.and_then(|sizes| sizes.try_into().ok());
        let is_interleaved = self.own("mrope_interleaved").and_then(Value::as_bool).unwrap_or(false);
        sizes
            .and_then(|sizes| mrope_sections(sizes, is_interleaved, n_pairs))
            .ok_or_else(|| ConfigError::invalid(key, value, format!("three sizes whose sum is {n_pairs}")))
    }

    /// Whether the base is stretched by a fixed `alpha`: Hunyuan's files call that dynamic, though it does
    /// not depend on the length of a sequence.
    fn is_stretched(&self) -> bool {
        self.config.model_type().starts_with("hunyuan") && self.own("alpha").is_some()
    }

    /// Whether the rotated part of a head is a share of its angles.
    pub(super) fn is_proportional(&self) -> bool {
        self.own("rope_type").and_then(Value::as_str) == Some("proportional")
    }

    /// Further factor of attention scores where YaRN is applied to a part of each head: the square of its
    /// temperature with `mscale_all_dim`, as in DeepSeek's models.
    pub(super) fn score_factor(&self) -> Result<f64, ConfigError> {
        let multiplier = self.number("mscale_all_dim")?.unwrap_or(0.0);
        if multiplier == 0.0 {
            return Ok(1.0);
        }
        Ok(yarn_amplitude(self.required("factor")?, multiplier).powi(2))
    }

    /// YaRN scaling as in transformers' `_compute_yarn_parameters`.
    fn yarn(&self) -> Result<RopeScaling, ConfigError> {
        let factor = self.required("factor")?;
        let original_tokens = match self.number("original_max_position_embeddings")? {
            Some(n) => n,
            None => self.max_tokens()?,
        };
        let amplitude = match (
            self.number("attention_factor")?,
            self.number("mscale")?,
            self.number("mscale_all_dim")?,
        ) {
            (Some(factor), ..) => factor,
            (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                yarn_amplitude(factor, m) / yarn_amplitude(factor, all)
            }
            _ => yarn_amplitude(factor, 1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_tokens,
            beta_fast: self.number("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow")?.unwrap_or(1.0),
            truncate: self.own("truncate").and_then(Value::as_bool).unwrap_or(true),
            amplitude,
        })
    }

    /// Like transformers' `_compute_longrope_parameters`, with one difference: which factors are used depends
    /// on the longest sequence that is served, as in vLLM and llama.cpp, not on the current length of a
    /// sequence.
    fn longrope(&self) -> Result<RopeScaling, ConfigError> {
        let max_tokens = self.max_tokens()?;
        let original = self.number("original_max_position_embeddings")?.unwrap_or(max_tokens);
        let amplitude = match self.number("attention_factor")? {
            Some(amplitude) => amplitude,
            None => longrope_amplitude(max_tokens / original, original),
        };
        // Phi 3.5 MoE names one for each.
        let short = self.factors("short_factor", self.number("short_mscale")?.unwrap_or(amplitude))?;
        if max_tokens <= original {
            return Ok(RopeScaling::Factors(short));
        }
        let long = self.factors("long_factor", self.number("long_mscale")?.unwrap_or(amplitude))?;
        Ok(RopeScaling::LongRope { long, short, original_tokens: original as usize })
    }

    fn factors(&self, key: &str, amplitude: f64) -> Result<Factors, ConfigError> {
        let value =
            self.own(key).ok_or_else(|| ConfigError::Missing(format!("{key} of the rope scaling")))?;
        let factors: Option<Vec<f64>> =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        let factors = factors.ok_or_else(|| ConfigError::invalid(key, value, "a list of numbers"))?;
        Ok(Factors { factors, amplitude })
    }
}

/// The section of each pair: in blocks, or height and width among time, every third pair, until their numbers
/// are reached. `None` if the sections do not add up to the number of pairs.
pub(crate) fn mrope_sections(sizes: [u64; 3], is_interleaved: bool, n_pairs: usize) -> Option<Vec<u8>> {
    let sum = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size))?;
    if sum != n_pairs as u64 {
        return None;
    }
    let [time, height, width] = sizes;
    let section = |pair: u64| match pair % 3 {
        _ if !is_interleaved => u8::from(pair >= time) + u8::from(pair >= time + height),
        1 if pair < 3 * height => 1,
        2 if pair < 3 * width => 2,
        _ => 0,
    };
    Some((0..sum).map(section).collect())
}
