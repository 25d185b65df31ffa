//! Converts options to the engine's sampling parameters, with the model's facts and the length of the
//! prompt. Does not know text: words become tokens through a closure.

use throng_core::request::{GenerationDefaults, SamplingParams, TokenId};

use super::options::{GenerationOptions, TruncationSide, min_tokens_above};
use crate::error::ApiError;

/// Limits of the model that a request is checked against.
#[derive(Debug, Clone, Copy)]
pub struct ModelLimits {
    /// Size of the vocabulary; token ids are below it.
    pub vocabulary_size: u32,
    /// Context length in tokens, of prompt and output together.
    pub max_model_len: u32,
    /// Maximum number of alternatives reported for a token; `None`: the whole vocabulary.
    pub max_logprobs: Option<u32>,
}

/// Facts about the model that serves the request.
#[derive(Debug, Clone, Copy)]
pub struct ModelFacts<'a> {
    /// Limits that the request is checked against.
    pub limits: ModelLimits,
    /// Default sampling settings.
    pub defaults: &'a GenerationDefaults,
    /// End tokens of the model.
    pub eos_token_ids: &'a [TokenId],
}

/// Tokenizes a word without special tokens.
pub type EncodeWord<'f> = &'f mut dyn FnMut(&str) -> Result<Vec<TokenId>, ApiError>;

impl GenerationOptions {
    /// Checks against the model alone. Cheap, so it runs before anything is tokenized.
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
        n_alternatives(self.logprobs, self.names.logprobs, limits)?;
        n_alternatives(self.prompt_logprobs, "prompt_logprobs", limits)?;
        Ok(())
    }

    /// The prompt, truncated by `truncate_prompt_tokens`.
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

    /// The output token limit for a prompt of `n_prompt_tokens`.
    ///
    /// # Errors
    /// `context_length_exceeded`.
    fn output_tokens(&self, n_prompt_tokens: usize, facts: &ModelFacts<'_>) -> Result<u32, ApiError> {
        let max_len = facts.limits.max_model_len;
        let room = u32::try_from(n_prompt_tokens).ok().and_then(|n| max_len.checked_sub(n));
        let is_prompt_only = self.max_tokens == Some(0);
        let Some(room) = room.filter(|room| *room > 0 || is_prompt_only) else {
            return Err(ApiError::prompt_too_long(self.names.prompt, n_prompt_tokens, max_len));
        };
        match self.max_tokens {
            Some(asked) if asked > i64::from(room) && self.may_end_with_context => Ok(room),
            Some(asked) if asked > i64::from(room) => {
                let asked = u32::try_from(asked).unwrap_or(u32::MAX);
                Err(ApiError::output_too_long(self.names.max_tokens, n_prompt_tokens, asked, max_len))
            }
            Some(asked) => Ok(asked as u32),
            None => Ok([self.default_max_tokens, facts.defaults.max_tokens]
                .into_iter()
                .flatten()
                .fold(room, u32::min)
                .max(1)),
        }
    }

    /// The sampling parameters for a prompt of `n_prompt_tokens`. `seed` is a new random number for
    /// requests without a seed.
    ///
    /// # Errors
    /// Errors of [`Self::check`], `context_length_exceeded`, `invalid_value` for a `min_tokens` above
    /// `max_tokens`, or errors of `encode_word` for one of `bad_words`.
    pub fn sampling_params(
        &self,
        n_prompt_tokens: usize,
        facts: &ModelFacts<'_>,
        seed: u64,
        encode_word: EncodeWord<'_>,
    ) -> Result<SamplingParams, ApiError> {
        self.check(&facts.limits)?;
        let max_tokens = self.output_tokens(n_prompt_tokens, facts)?;
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
            logprobs: n_alternatives(self.logprobs, self.names.logprobs, &facts.limits)?
                .or(self.needs_logprobs().then_some(0)),
            beams: self.beam_search(max_tokens)?,
            prompt_logprobs: n_alternatives(self.prompt_logprobs, "prompt_logprobs", &facts.limits)?,
            max_draft_tokens: self.max_draft_tokens.map_or(u32::MAX, |n| n as u32),
        };
        check_choice(&params, facts.limits.vocabulary_size)?;
        Ok(params)
    }

    /// Each word as tokenized at the start of a text and after a space, as in vLLM. The second form counts
    /// only if it differs but has the same length: a longer one is the first after a token for the space.
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

/// Refuses parameters that could leave no token to sample at some position. At least one allowed token must
/// not be the last of a bad word and, with a minimum length, must not end the answer.
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

/// Checks the tokens of a prompt. `param` is its parameter.
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
