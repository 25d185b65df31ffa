//! The timings of an answer, under llama.cpp's names. Does not measure.

use std::time::Duration;

use serde::Serialize;

use super::{Moments, Tally};

/// Timings of a request. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens found in the prefix cache.
    cache_n: u64,
    /// Number of computed prompt tokens.
    prompt_n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_per_second: Option<f64>,
    /// Output tokens of all choices.
    predicted_n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_ms: Option<f64>,
}

impl From<&Tally> for Timings {
    fn from(tally: &Tally) -> Self {
        Self::new(&tally.moments, tally.prompt, tally.cached, tally.output)
    }
}

impl Timings {
    /// Creates the timings of a request. `cached_tokens` of its `prompt_tokens` were found in the prefix
    /// cache. The first token of each choice counts towards the prompt's time, so the output rate is that
    /// of the other tokens.
    pub fn new(moments: &Moments, prompt_tokens: u64, cached_tokens: u64, output_tokens: u64) -> Self {
        let between = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
        let prompt = between(moments.first_step, moments.first_token);
        let predicted = between(moments.first_token, moments.last_token);
        let rate = |n: u64, time: Option<Duration>| {
            time.filter(|time| n > 0 && !time.is_zero()).map(|time| n as f64 / time.as_secs_f64())
        };
        let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
        let prompt_n = prompt_tokens.saturating_sub(cached_tokens);
        Self {
            cache_n: cached_tokens,
            prompt_n,
            prompt_ms: ms(prompt),
            prompt_per_second: rate(prompt_n, prompt),
            predicted_n: output_tokens,
            predicted_ms: ms(predicted),
            predicted_per_second: rate(output_tokens.saturating_sub(moments.n_first_tokens), predicted),
            queue_ms: ms(moments.first_step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_the_moments_of_all_choices() {
        let ms = |n| Some(Duration::from_millis(n));
        let mut moments = Moments::default();
        moments.add(ms(10), ms(60), ms(160));
        moments.add(ms(20), ms(110), ms(260));
        let told = serde_json::to_value(Timings::new(&moments, 30, 5, 12)).expect("plain data");
        let expected = serde_json::json!({
            "cache_n": 5, "prompt_n": 25, "prompt_ms": 50.0, "prompt_per_second": 500.0, "predicted_n": 12,
            "predicted_ms": 200.0, "predicted_per_second": 50.0, "queue_ms": 10.0,
        });
        assert_eq!(told, expected);
        let nothing = serde_json::to_value(Timings::new(&Moments::default(), 3, 0, 0)).expect("plain data");
        assert_eq!(nothing, serde_json::json!({"cache_n": 0, "prompt_n": 3, "predicted_n": 0}));
    }
}
