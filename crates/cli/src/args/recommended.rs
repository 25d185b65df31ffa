//! Default sampling settings that an operator sets for requests without them: the keys of a model's
//! `generation_config.json`. Does not know the model's own defaults.

use clap::ValueEnum;
use serde::Deserialize;
use throng_core::request::GenerationDefaults;

use crate::bounds;

/// The source of default sampling settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GenerationConfigSource {
    /// The model's `generation_config.json`.
    #[default]
    Auto,
    /// Neutral values.
    Vllm,
}

/// `--override-generation-config` and `[model.override_generation_config]`. Unknown keys are errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are those of the parameters")]
pub struct RecommendedSampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
}

impl RecommendedSampling {
    /// Checks the ranges, which are those of a request.
    ///
    /// # Errors
    /// A message that names the setting and its range.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: Option<f64>, range: std::ops::RangeInclusive<f64>| {
            let fault = value.and_then(|value| bounds::fault(&value, &range));
            fault.map_or(Ok(()), |fault| Err(format!("{name} {fault}")))
        };
        // Values must be above 0 in single precision.
        let positive = f64::from(f32::MIN_POSITIVE);
        within("temperature", self.temperature.map(f64::from), 0.0..=2.0)?;
        within("min_p", self.min_p.map(f64::from), 0.0..=1.0)?;
        within("top_k", self.top_k.map(|k| k as f64), -1.0..=f64::from(i32::MAX))?;
        within("max_new_tokens", self.max_new_tokens.map(f64::from), 1.0..=f64::from(i32::MAX))?;
        within("repetition_penalty", self.repetition_penalty.map(f64::from), positive..=100.0)
            .map_err(|_| "repetition_penalty must be a number above 0 and at most 100".to_owned())?;
        within("top_p", self.top_p.map(f64::from), positive..=1.0)
            .map_err(|_| "top_p must be a number above 0 and at most 1".to_owned())
    }

    /// Merges the settings with the model's: absent ones are taken from `own`.
    pub fn over(&self, own: GenerationDefaults) -> GenerationDefaults {
        GenerationDefaults {
            temperature: self.temperature.or(own.temperature),
            top_p: self.top_p.or(own.top_p),
            top_k: self.top_k.map(|k| u32::try_from(k).unwrap_or(0)).or(own.top_k),
            min_p: self.min_p.or(own.min_p),
            repetition_penalty: self.repetition_penalty.or(own.repetition_penalty),
            max_tokens: self.max_new_tokens.or(own.max_tokens),
        }
    }
}

/// Parses the flag's JSON.
pub fn parse_recommended(text: &str) -> Result<RecommendedSampling, String> {
    let settings: RecommendedSampling = serde_json::from_str(text).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_replace_the_models_own_one_by_one() {
        let own = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let settings =
            parse_recommended(r#"{"top_k": -1, "top_p": 0.9, "max_new_tokens": 7}"#).expect("valid");
        let expected = GenerationDefaults {
            temperature: Some(0.6),
            top_k: Some(0),
            top_p: Some(0.9),
            max_tokens: Some(7),
            ..Default::default()
        };
        assert_eq!(settings.over(own), expected);
        for (bad, words) in [
            (r#"{"temperature": 3}"#, "temperature must be a number from 0 to 2"),
            (r#"{"top_p": 0}"#, "top_p must be a number above 0"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty must be a number above 0"),
            (r#"{"top_k": -2}"#, "top_k must be"),
            (r#"{"max_new_tokens": 0}"#, "max_new_tokens must be"),
            (r#"{"colour": 1}"#, "unknown field `colour`"),
            ("0.6", "invalid type"),
        ] {
            let fault = parse_recommended(bad).expect_err(bad);
            assert!(fault.contains(words), "{bad}: {fault}");
        }
    }
}
