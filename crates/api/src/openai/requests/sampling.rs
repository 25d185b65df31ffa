//! From what a client said to what the engine does: a generation request, the model's facts and the length of
//! the prompt give sampling parameters. Does not know text: words become tokens through a closure.

use throng_core::request::{GenerationDefaults, SamplingParams, TokenId};

use super::generation_fields::GENERATION_FIELDS;
use super::generation_request::{GenerationRequest, TruncationSide, min_tokens_above};
use crate::error::ApiError;
use crate::field::{Kind, Range};

/// What a request is checked against.
#[derive(Debug, Clone, Copy)]
pub struct ModelLimits {
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Most alternatives reported for a token; `None`: the whole vocabulary.
    pub max_logprobs: Option<u32>,
}

/// Takes out every recommended value that a request could not have either, and gives the parameters' names
/// with it.
pub fn drop_invalid(defaults: &mut GenerationDefaults) -> Vec<(&'static str, f64)> {
    let mut dropped = Vec::new();
    let numbers: [(_, &mut Option<f32>); 4] = [
        ("temperature", &mut defaults.temperature),
        ("top_p", &mut defaults.top_p),
        ("min_p", &mut defaults.min_p),
        ("repetition_penalty", &mut defaults.repetition_penalty),
    ];
    for (name, slot) in numbers {
        dropped.extend(slot.take_if(|value| !may_be(name, f64::from(*value))).map(|v| (name, v.into())));
    }
    for (name, slot) in [("top_k", &mut defaults.top_k), ("max_tokens", &mut defaults.max_tokens)] {
        dropped.extend(slot.take_if(|value| !may_be(name, f64::from(*value))).map(|v| (name, v.into())));
    }
    dropped
}

/// Whether a request may give the parameter this value.
fn may_be(name: &str, value: f64) -> bool {
    let kind = GENERATION_FIELDS.iter().find(|field| field.name == name).map(|field| &field.kind);
    match kind {
        Some(Kind::Number(range, _)) => range.contains(value),
        Some(Kind::Integer(min, max, _)) => Range::closed(*min as f64, *max as f64).contains(value),
        _ => true,
    }
}

/// The facts of the model that serves the request.
#[derive(Debug, Clone, Copy)]
pub struct ModelFacts<'a> {
    /// What the request is checked against.
    pub limits: ModelLimits,
    /// What holds where the client says nothing.
    pub defaults: &'a GenerationDefaults,
    /// The model's end tokens.
    pub eos_token_ids: &'a [TokenId],
}

/// Makes tokens of a word, without special tokens.
pub type EncodeWord<'f> = &'f mut dyn FnMut(&str) -> Result<Vec<TokenId>, ApiError>;

impl GenerationRequest {
    /// Checks what needs the model but not the prompt; cheap, so before anything is tokenized.
    ///
    /// # Errors
    /// `invalid_token`, `integer_above_max_value`.
    pub fn check(&self, limits: &ModelLimits) -> Result<(), ApiError> {
        let size = limits.vocabulary_size;
        let check_list = |name: &str, tokens: &[TokenId]| match tokens.iter().position(|t| *t >= size) {
            Some(idx) => Err(ApiError::invalid_token(format!("{name}[{idx}]"), Some(size))),
            None => Ok(()),
        };
        check_list("stop_token_ids", &self.stop_token_ids)?;
        check_list("allowed_token_ids", self.allowed_token_ids.as_deref().unwrap_or_default())?;
        if let Some((token, _)) = self.logit_bias.iter().find(|(token, _)| *token >= size) {
            return Err(ApiError::invalid_token(format!("logit_bias.{token}"), Some(size)));
        }
        n_alternatives(self.logprobs, self.logprobs_param, limits)?;
        n_alternatives(self.prompt_logprobs, "prompt_logprobs", limits)?;
        Ok(())
    }

    /// What `truncate_prompt_tokens` leaves of a prompt.
    pub fn truncated<'p>(&self, prompt: &'p [TokenId], limits: &ModelLimits) -> &'p [TokenId] {
        let available = i64::from(limits.max_model_len) - self.max_tokens.unwrap_or(1);
        let keep = match self.truncate_prompt_tokens {
            None => return prompt,
            Some(-1) => available.max(1),
            Some(keep) => keep,
        };
        let n_surplus = prompt.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
        match self.truncation_side {
            TruncationSide::Left => &prompt[n_surplus..],
            TruncationSide::Right => &prompt[..prompt.len() - n_surplus],
        }
    }

    /// How many output tokens a prompt of `n_prompt_tokens` may get. `default` is what the endpoint gives a
    /// client that does not say; `None`: what is left of the context. `prompt_param` and `max_tokens_param`
    /// are where the client put the two.
    ///
    /// # Errors
    /// `context_length_exceeded`.
    pub fn output_tokens(
        &self,
        n_prompt_tokens: usize,
        facts: &ModelFacts<'_>,
        default: Option<u32>,
        prompt_param: &str,
        max_tokens_param: &str,
    ) -> Result<u32, ApiError> {
        let max_len = facts.limits.max_model_len;
        let room = u32::try_from(n_prompt_tokens).ok().and_then(|n| max_len.checked_sub(n));
        let is_prompt_only = self.max_tokens == Some(0);
        let Some(room) = room.filter(|room| *room > 0 || is_prompt_only) else {
            return Err(ApiError::prompt_too_long(prompt_param, n_prompt_tokens, max_len));
        };
        match self.max_tokens {
            Some(asked) if asked > i64::from(room) => {
                let asked = u32::try_from(asked).unwrap_or(u32::MAX);
                Err(ApiError::output_too_long(max_tokens_param, n_prompt_tokens, asked, max_len))
            }
            Some(asked) => Ok(asked as u32),
            None => {
                Ok([default, facts.defaults.max_tokens].into_iter().flatten().fold(room, u32::min).max(1))
            }
        }
    }

    /// The sampling parameters. `seed` is a fresh random number for a client that gives none; `max_tokens`
    /// comes from [`Self::output_tokens`].
    ///
    /// # Errors
    /// What [`Self::check`] finds, `invalid_value` for a `min_tokens` above `max_tokens`, or what
    /// `encode_word` gives for one of `bad_words`.
    pub fn sampling_params(
        &self,
        facts: &ModelFacts<'_>,
        max_tokens: u32,
        seed: u64,
        encode_word: EncodeWord<'_>,
    ) -> Result<SamplingParams, ApiError> {
        self.check(&facts.limits)?;
        let min_tokens = self.min_tokens.unwrap_or(0);
        if min_tokens > i64::from(max_tokens) {
            return Err(min_tokens_above(min_tokens, i64::from(max_tokens)));
        }
        let defaults = facts.defaults;
        let top_k = self.top_k.map(|k| u32::try_from(k).unwrap_or(0));
        let params = SamplingParams {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_k: top_k.or(defaults.top_k).unwrap_or(0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.clone(),
            allowed_token_ids: self.allowed_token_ids.clone(),
            bad_words: self.encode_bad_words(facts.limits.vocabulary_size, encode_word)?,
            min_tokens: min_tokens as u32,
            max_tokens,
            eos_token_ids: facts.eos_token_ids.to_vec(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop_token_ids: self.stop_token_ids.clone(),
            seed: self.seed.map_or(seed, i64::cast_unsigned),
            logprobs: n_alternatives(self.logprobs, self.logprobs_param, &facts.limits)?
                .or(self.needs_logprobs().then_some(0)),
            beams: self.beam_search(max_tokens)?,
            prompt_logprobs: n_alternatives(self.prompt_logprobs, "prompt_logprobs", &facts.limits)?,
            max_draft_tokens: self.max_draft_tokens.map_or(u32::MAX, |n| n as u32),
        };
        check_choice(&params, facts.limits.vocabulary_size)?;
        Ok(params)
    }

    /// Each word as it is tokenized at the start of a text and after a space (as vLLM does): the second only
    /// where it is another sequence of the same length, not merely the first behind a token for the space.
    fn encode_bad_words(
        &self,
        vocabulary_size: u32,
        encode: EncodeWord<'_>,
    ) -> Result<Vec<Vec<TokenId>>, ApiError> {
        let mut sequences = Vec::new();
        for (idx, word) in self.bad_words.iter().enumerate() {
            let bare = encode(word.trim_start())?;
            let spaced = encode(&format!(" {}", word.trim_start()))?;
            if bare.is_empty() || bare.iter().chain(&spaced).any(|token| *token >= vocabulary_size) {
                let reason = "This word has no tokens in the model's vocabulary.";
                return Err(ApiError::invalid_value(format!("bad_words[{idx}]"), reason));
            }
            if spaced.len() == bare.len() && spaced != bare {
                sequences.push(spaced);
            }
            sequences.push(bare);
        }
        Ok(sequences)
    }
}

/// Refuses parameters that could leave no token to choose, at whatever place in the answer: one that is
/// allowed must be neither the last of a bad word nor, where there is a minimum length, one that ends the
/// answer.
///
/// # Errors
/// `invalid_value` that names `allowed_token_ids`, `bad_words` or `min_tokens`.
fn check_choice(params: &SamplingParams, vocabulary_size: u32) -> Result<(), ApiError> {
    let mut banned: Vec<TokenId> = params.bad_words.iter().filter_map(|word| word.last().copied()).collect();
    if params.min_tokens > 0 {
        banned.extend(params.eos_token_ids.iter().chain(&params.stop_token_ids));
    }
    banned.retain(|token| *token < vocabulary_size);
    banned.sort_unstable();
    banned.dedup();
    let leaves_one = match &params.allowed_token_ids {
        Some(allowed) => allowed.iter().any(|token| banned.binary_search(token).is_err()),
        None => banned.len() < vocabulary_size as usize,
    };
    if leaves_one {
        return Ok(());
    }
    let param = match () {
        () if params.allowed_token_ids.is_some() => "allowed_token_ids",
        () if params.bad_words.is_empty() => "min_tokens",
        () => "bad_words",
    };
    let reason = "No token is left that may be chosen: each allowed one ends a word of 'bad_words', or ends the answer \
                  before 'min_tokens'.";
    Err(ApiError::invalid_value(param, reason))
}

/// Checks a prompt in tokens; `param` is where it stands.
///
/// # Errors
/// `empty_array`, `invalid_token`.
pub fn check_prompt(prompt: &[TokenId], limits: &ModelLimits, param: &str) -> Result<(), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::empty_array(param));
    }
    if prompt.iter().any(|token| *token >= limits.vocabulary_size) {
        return Err(ApiError::invalid_token(param, Some(limits.vocabulary_size)));
    }
    Ok(())
}

fn n_alternatives(asked: Option<i64>, param: &str, limits: &ModelLimits) -> Result<Option<u32>, ApiError> {
    let max = limits.max_logprobs.unwrap_or(limits.vocabulary_size);
    match asked {
        None => Ok(None),
        Some(-1) if max >= limits.vocabulary_size => Ok(Some(limits.vocabulary_size)),
        Some(asked) if asked < 0 => Err(ApiError::integer_below_min_value(param, 0)),
        Some(asked) if asked > i64::from(max) => {
            Err(ApiError::integer_above_max_value(param, i64::from(max)))
        }
        Some(asked) => Ok(Some(asked as u32)),
    }
}
