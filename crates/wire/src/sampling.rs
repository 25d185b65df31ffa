//! How tokens are chosen, as it crosses. Does not know what the parameters do.

use serde::{Deserialize, Serialize};
use throng_core::request::{self, BeamSearch, SamplingParams};

use crate::{F32, F64};

/// The parameters of `SamplingParams`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of `SamplingParams`")]
pub struct Sampling {
    pub temperature: F32,
    pub top_k: u32,
    pub top_p: F32,
    pub min_p: F32,
    pub repetition_penalty: F32,
    pub presence_penalty: F32,
    pub frequency_penalty: F32,
    pub logit_bias: Vec<(u32, F32)>,
    pub allowed_token_ids: Option<Vec<u32>>,
    pub bad_words: Vec<Vec<u32>>,
    pub min_tokens: u32,
    pub max_tokens: u32,
    pub eos_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub stop_token_ids: Vec<u32>,
    pub seed: u64,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
    pub beams: Option<Beams>,
    pub max_draft_tokens: u32,
}

/// A beam search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of `BeamSearch`")]
pub struct Beams {
    pub width: u32,
    pub length_penalty: F64,
    pub early_stopping: EarlyStopping,
}

/// When a beam search ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the core")]
pub enum EarlyStopping {
    WhenFull,
    WhenUnlikelyToImprove,
    WhenUnableToImprove,
}

impl Default for Sampling {
    fn default() -> Self {
        Self::from(&SamplingParams::default())
    }
}

impl From<&SamplingParams> for Sampling {
    fn from(params: &SamplingParams) -> Self {
        // By name, so that a new parameter is not forgotten.
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            allowed_token_ids,
            bad_words,
            min_tokens,
            max_tokens,
            eos_token_ids,
            ignore_eos,
            stop_token_ids,
            seed,
            logprobs,
            prompt_logprobs,
            beams,
            max_draft_tokens,
        } = params.clone();
        Self {
            temperature: temperature.into(),
            top_k,
            top_p: top_p.into(),
            min_p: min_p.into(),
            repetition_penalty: repetition_penalty.into(),
            presence_penalty: presence_penalty.into(),
            frequency_penalty: frequency_penalty.into(),
            logit_bias: logit_bias.into_iter().map(|(token, bias)| (token, bias.into())).collect(),
            allowed_token_ids,
            bad_words,
            min_tokens,
            max_tokens,
            eos_token_ids,
            ignore_eos,
            stop_token_ids,
            seed,
            logprobs,
            prompt_logprobs,
            beams: beams.map(Beams::from),
            max_draft_tokens,
        }
    }
}

impl From<Sampling> for SamplingParams {
    fn from(sampling: Sampling) -> Self {
        Self {
            temperature: sampling.temperature.into(),
            top_k: sampling.top_k,
            top_p: sampling.top_p.into(),
            min_p: sampling.min_p.into(),
            repetition_penalty: sampling.repetition_penalty.into(),
            presence_penalty: sampling.presence_penalty.into(),
            frequency_penalty: sampling.frequency_penalty.into(),
            logit_bias: sampling.logit_bias.into_iter().map(|(token, bias)| (token, bias.into())).collect(),
            allowed_token_ids: sampling.allowed_token_ids,
            bad_words: sampling.bad_words,
            min_tokens: sampling.min_tokens,
            max_tokens: sampling.max_tokens,
            eos_token_ids: sampling.eos_token_ids,
            ignore_eos: sampling.ignore_eos,
            stop_token_ids: sampling.stop_token_ids,
            seed: sampling.seed,
            logprobs: sampling.logprobs,
            prompt_logprobs: sampling.prompt_logprobs,
            beams: sampling.beams.map(BeamSearch::from),
            max_draft_tokens: sampling.max_draft_tokens,
        }
    }
}

impl From<BeamSearch> for Beams {
    fn from(search: BeamSearch) -> Self {
        let BeamSearch { width, length_penalty, early_stopping } = search;
        let early_stopping = match early_stopping {
            request::EarlyStopping::WhenFull => EarlyStopping::WhenFull,
            request::EarlyStopping::WhenUnlikelyToImprove => EarlyStopping::WhenUnlikelyToImprove,
            request::EarlyStopping::WhenUnableToImprove => EarlyStopping::WhenUnableToImprove,
        };
        Self { width, length_penalty: length_penalty.into(), early_stopping }
    }
}

impl From<Beams> for BeamSearch {
    fn from(beams: Beams) -> Self {
        let early_stopping = match beams.early_stopping {
            EarlyStopping::WhenFull => request::EarlyStopping::WhenFull,
            EarlyStopping::WhenUnlikelyToImprove => request::EarlyStopping::WhenUnlikelyToImprove,
            EarlyStopping::WhenUnableToImprove => request::EarlyStopping::WhenUnableToImprove,
        };
        Self { width: beams.width, length_penalty: beams.length_penalty.into(), early_stopping }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_cross_to_the_bit() {
        let params = SamplingParams {
            temperature: f32::MIN_POSITIVE,
            top_k: 7,
            top_p: 0.1,
            min_p: 1e-30,
            repetition_penalty: f32::MAX,
            presence_penalty: -0.0,
            frequency_penalty: -1.7,
            logit_bias: vec![(3, f32::NEG_INFINITY), (u32::MAX, 0.3)],
            allowed_token_ids: Some(vec![1, 2]),
            bad_words: vec![vec![1], vec![2, 3]],
            min_tokens: 4,
            max_tokens: u32::MAX,
            eos_token_ids: vec![5],
            ignore_eos: true,
            stop_token_ids: vec![6],
            seed: u64::MAX,
            logprobs: Some(0),
            prompt_logprobs: Some(20),
            beams: Some(BeamSearch {
                width: 4,
                length_penalty: 0.1,
                early_stopping: request::EarlyStopping::WhenUnableToImprove,
            }),
            max_draft_tokens: 0,
        };
        for params in [params, SamplingParams::default()] {
            let text = serde_json::to_string(&Sampling::from(&params)).expect("plain data");
            let back: Sampling = serde_json::from_str(&text).expect("what was written");
            // `{:?}` tells -0.0 from 0.0.
            assert_eq!(format!("{:?}", SamplingParams::from(back)), format!("{params:?}"), "{text}");
        }
        let missing: Sampling = serde_json::from_str(r#"{"max_tokens": 3, "new": 1}"#).expect("defaults");
        let expected = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
        assert_eq!(SamplingParams::from(missing), expected);
    }
}
