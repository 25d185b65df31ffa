//! Turns texts into token ids that fit the model, as one request each. Does not know the meaning of
//! answers.

use std::borrow::Cow;
use std::sync::Arc;

use throng_core::request::{Priority, SamplingParams, TenantId, TokenId};
use throng_fleet::replica::{Continuations, ReplicaRequest};
use throng_http::memory::{MemoryBudget, Part};
use throng_text::{EncodeOptions, Tokenizer};

use crate::generation::{Abandoned, Prepared, text_error, tokenizer_of};
use crate::pooling_model::PoolingModel;
use crate::rejection::memory_full;
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_api::openai::pooling::PoolingOptions;
use throng_api::spec::{Prompt, check_prompt};

/// Bytes of a prompt from its admission to its end, beside its tokens.
const PROMPT_BYTES: usize = 512;

/// Source of one vector.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PooledInput<'a> {
    /// A single text.
    Text(&'a Prompt),
    /// Two texts, read together.
    Pair(&'a Prompt, &'a Prompt),
}

/// Texts of a request, and their parameter for errors.
#[derive(Debug)]
pub(crate) struct Inputs<'a> {
    /// Inputs, one for each vector.
    pub inputs: Vec<PooledInput<'a>>,
    /// Name of the parameter.
    pub param: &'static str,
    /// Prefix of each text without another one; token ids get none.
    pub before: &'a str,
}

/// Creates a request for each input.
///
/// # Errors
/// 400 for a text that the model does not support, 503 without memory.
pub(crate) fn prepare(
    model: &ModelEntry,
    pooling: &PoolingModel,
    inputs: &Inputs<'_>,
    options: &PoolingOptions,
    (tenant, memory, abandoned): (&TenantId, &Arc<MemoryBudget>, &Abandoned),
) -> Result<Prepared, ApiError> {
    let reader = Reader { model, pooling, param: inputs.param, before: inputs.before, options, abandoned };
    let sampling = Arc::new(SamplingParams {
        temperature: 0.0,
        max_tokens: 1,
        ignore_eos: true,
        logprobs: Some(0),
        ..Default::default()
    });
    let (mut held, mut n_held) = (memory.reservation(Part::Prompts), 0);
    let mut requests = Vec::with_capacity(inputs.inputs.len());
    for input in &inputs.inputs {
        abandoned.check()?;
        let tokens = reader.tokens(input)?;
        n_held += PROMPT_BYTES + 2 * std::mem::size_of_val(tokens.as_slice());
        held.cover(n_held).map_err(memory_full)?;
        requests.push(ReplicaRequest {
            tenant: tenant.clone(),
            cache_salt: None,
            session: None,
            cache_marks: Vec::new(),
            constraint: None,
            adapter: None,
            prompt: tokens.into(),
            media: None,
            priority: Priority::default(),
            sampling: Arc::clone(&sampling),
            continuations: Continuations::New { n: 1 },
            holder: None,
        });
    }
    Ok(Prepared::new(requests, vec![held]))
}

struct Reader<'a> {
    model: &'a ModelEntry,
    pooling: &'a PoolingModel,
    param: &'static str,
    before: &'a str,
    options: &'a PoolingOptions,
    abandoned: &'a Abandoned,
}

impl Reader<'_> {
    fn tokens(&self, input: &PooledInput<'_>) -> Result<Vec<TokenId>, ApiError> {
        let tokens = match input {
            PooledInput::Text(Prompt::Tokens(tokens)) => self.fitting(tokens.clone(), 0)?,
            PooledInput::Text(text) => {
                let [before, after] = match self.options.add_special_tokens {
                    Some(false) => [&[][..], &[]],
                    _ => tokenizer_of(self.model, self.param)?.around_one(),
                };
                let tokens = self.encoded(text, self.before)?;
                let tokens = self.fitting(tokens, before.len() + after.len())?;
                [before, &tokens, after].concat()
            }
            PooledInput::Pair(first, second) => self.pair(first, second)?,
        };
        check_prompt(&tokens, self.model.limits(), self.param)?;
        Ok(tokens)
    }

    /// Tokens of a pair in the model's format. Only the second text may be cut.
    fn pair(&self, first: &Prompt, second: &Prompt) -> Result<Vec<TokenId>, ApiError> {
        let frame = tokenizer_of(self.model, self.param)?.around_pair();
        let first = self.encoded(first, "")?;
        let second = self.fitting(self.encoded(second, "")?, first.len() + frame.n_special())?;
        let last_segment = self.pooling.n_segments.saturating_sub(1);
        let id = |(token, segment): (u32, u8)| {
            token + u32::from(segment).min(last_segment) * self.pooling.segment_stride
        };
        Ok(frame.join(&first, &second).into_iter().map(id).collect())
    }

    fn encoded(&self, text: &Prompt, before: &str) -> Result<Vec<TokenId>, ApiError> {
        let text = match text {
            Prompt::Tokens(tokens) => return Ok(tokens.clone()),
            Prompt::Infill(_) => return Err(ApiError::invalid_value(self.param, "It must be a text.")),
            Prompt::Text(text) if before.is_empty() => Cow::Borrowed(text.as_str()),
            Prompt::Text(text) => Cow::Owned(format!("{before}{text}")),
        };
        let tokenizer: &Tokenizer = tokenizer_of(self.model, self.param)?;
        // What is cut off has no tokens among those that are kept, of which none is longer than the longest.
        let text = match self.options.truncate_prompt_tokens {
            Some(_) => &text[..text.floor_char_boundary(tokenizer.max_text_bytes())],
            None => &*text,
        };
        let options = EncodeOptions { add_special_tokens: false, parse_special: true };
        let tokens = tokenizer.encode_unless(text, options, self.abandoned.flag());
        tokens.map_err(|error| text_error(&error, self.param, self.model))
    }

    /// The tokens, cut to the model's length beside `n_beside` others if requested.
    fn fitting(&self, mut tokens: Vec<TokenId>, n_beside: usize) -> Result<Vec<TokenId>, ApiError> {
        let max_model_len = self.model.limits().max_model_len;
        let most = max_model_len as usize;
        let limit = match self.options.truncate_prompt_tokens {
            Some(n) if n > most as i64 => {
                return Err(ApiError::integer_above_max_value("truncate_prompt_tokens", most as i64));
            }
            Some(n) if n >= 0 => n as usize,
            _ => most,
        };
        let n_tokens = tokens.len() + n_beside;
        if n_tokens > limit {
            if self.options.truncate_prompt_tokens.is_none() || n_beside >= limit {
                return Err(ApiError::prompt_too_long(self.param, n_tokens, max_model_len));
            }
            tokens.truncate(limit - n_beside);
        }
        Ok(tokens)
    }
}
