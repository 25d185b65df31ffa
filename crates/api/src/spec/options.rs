//! Options of a generation: sampling, stopping, reports. Holds the client's values, each checked by itself.
//! Does not know prompts and models.

use throng_core::fleet::overload::ServiceClass;
use throng_core::request::{EarlyStopping, Priority, SamplingParams, TokenId};
use throng_text::grammar::ConstraintSpec;

use crate::error::{ApiError, ConstraintParam};
use crate::field::ReadOptions;
use crate::ignored::IgnoredParameters;

/// A constraint that a request puts on its outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputConstraint {
    /// Parameter of the constraint, for errors.
    pub param: String,
    /// Specification of the constraint.
    pub spec: ConstraintSpec,
}

impl OutputConstraint {
    /// The constraint's parameter and kind, for errors during generation.
    pub fn blamed(&self) -> ConstraintParam {
        ConstraintParam::new(&self.param, &self.spec)
    }
}

/// Names of parameters in an API, for errors.
#[derive(Debug, Clone, Copy)]
pub struct ParamNames {
    /// Name of the prompt or conversation parameter.
    pub prompt: &'static str,
    /// Name of the output token limit.
    pub max_tokens: &'static str,
    /// Name of the number of alternatives reported for each output token.
    pub logprobs: &'static str,
}

impl Default for ParamNames {
    fn default() -> Self {
        Self { prompt: "prompt", max_tokens: "max_tokens", logprobs: "logprobs" }
    }
}

/// Options of a generation; `None` for options that the client did not set.
#[derive(Debug, Clone, Default)]
pub struct GenerationOptions {
    /// Names of parameters in the request's API.
    pub names: ParamNames,
    /// Output token limit without `max_tokens`; `None`: the rest of the context.
    pub default_max_tokens: Option<u32>,
    /// Whether to reduce a `max_tokens` above the rest of the context instead of refusing it.
    pub may_end_with_context: bool,
    /// Name of the model: not empty, without control characters, at most 512 bytes.
    pub model: Option<String>,
    /// Whether to stream the answer.
    pub stream: Option<bool>,
    /// Options for reporting usage in a stream.
    pub stream_options: Option<StreamOptions>,
    /// Number of continuations in the answer, 1 to 128.
    pub n: Option<i64>,
    /// Number of generated continuations, of which the answer has the `n` best; at least `n`, at most 128.
    /// With beam search: number of beams.
    pub best_of: Option<i64>,
    /// Whether to search for the most likely continuations with beam search.
    pub use_beam_search: Option<bool>,
    /// Exponent of a beam's length in its score, -100 to 100.
    pub length_penalty: Option<f32>,
    /// Condition for the end of a beam search.
    pub early_stopping: Option<EarlyStopping>,
    /// Output token limit; 0 computes only the prompt.
    pub max_tokens: Option<i64>,
    /// Minimum number of output tokens.
    pub min_tokens: Option<i64>,
    /// Maximum number of draft tokens verified in a step; 0: none.
    pub max_draft_tokens: Option<i64>,
    /// Sampling temperature, 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus sampling threshold, above 0, at most 1.
    pub top_p: Option<f32>,
    /// Number of most likely tokens to sample from; 0 and -1: all tokens.
    pub top_k: Option<i64>,
    /// Minimum probability relative to the likeliest token, 0 to 1.
    pub min_p: Option<f32>,
    /// Penalty for tokens that have occurred, -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Penalty for each occurrence of a token, -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Penalty that scales the logits of tokens that have occurred, above 0, at most 100.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    pub seed: Option<i64>,
    /// Values added to the logits of tokens; ids unique, values -100 to 100.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that sampling is restricted to; sorted, unique, not empty.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Words that must not occur in the output; none is empty.
    pub bad_words: Vec<String>,
    /// Stop strings; none is empty.
    pub stop: Vec<String>,
    /// Stop tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the stop string is part of the answer.
    pub include_stop_str_in_output: Option<bool>,
    /// Whether to continue after the model's end tokens.
    pub ignore_eos: Option<bool>,
    /// Whether to leave out special tokens from the text; default true.
    pub skip_special_tokens: Option<bool>,
    /// Whether to separate adjacent special tokens by spaces; default true.
    pub spaces_between_special_tokens: Option<bool>,
    /// Number of prompt tokens to keep; -1: the number that fits.
    pub truncate_prompt_tokens: Option<i64>,
    /// Side of the prompt that truncation removes.
    pub truncation_side: TruncationSide,
    /// Number of alternatives to report for each output token; -1: all. Endpoints have different names for
    /// it.
    pub logprobs: Option<i64>,
    /// Number of alternatives to report for each prompt token; -1: all.
    pub prompt_logprobs: Option<i64>,
    /// Whether to report token ids beside the text.
    pub return_token_ids: Option<bool>,
    /// Whether a request without a model name goes to the only served model.
    pub takes_only_model: bool,
    /// Whether to report timings of the answer.
    pub include_timings: Option<bool>,
    /// Whether to write tokens in log-probabilities as `token_id:ID`.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Priority; smaller values are served first. Default 0.
    pub priority: Option<i64>,
    /// Service class, if the body has one.
    pub service_class: Option<ServiceClass>,
    /// The client's id of the request: printable ASCII, at most 128 bytes. Part of the answer's id.
    pub request_id: Option<String>,
    /// Salt of the prefix cache, which is shared only by requests with the same salt; not empty.
    pub cache_salt: Option<String>,
    /// Name of the requests that begin alike, as the client says; not empty.
    pub prompt_cache_key: Option<String>,
    /// Time in seconds for which the blocks of prompt and output are kept after each use.
    pub keep_cached_s: Option<u32>,
    /// End user of the request.
    pub user: Option<String>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
    /// Maximum number of reasoning tokens; -1: no limit.
    pub thinking_token_budget: Option<i64>,
    /// Whether to ignore [`Self::thinking_token_budget`] for a model without reasoning instead of refusing
    /// it.
    pub thinks_if_it_can: bool,
    /// Constraint on outputs; at most one parameter may set it.
    pub(crate) constraint: Option<OutputConstraint>,
}

/// Options for reporting usage in a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether to add a last chunk with the usage of the whole request.
    pub include_usage: bool,
    /// Whether each chunk has the usage so far.
    pub continuous_usage_stats: bool,
    /// Whether to report timings, like [`GenerationOptions::include_timings`].
    pub include_timings: bool,
}

/// Side of a prompt that truncation removes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// Text is removed at the start.
    #[default]
    Left,
    /// Text is removed at the end.
    Right,
}

impl GenerationOptions {
    /// Whether the answer reports timings.
    pub fn reports_timings(&self) -> bool {
        self.include_timings.unwrap_or(self.stream_options().include_timings)
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    /// Whether to stream the answer.
    pub fn is_streaming(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Options for reporting usage in a stream; all false without streaming.
    pub fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    /// Number of continuations of each prompt in the answer.
    pub fn n(&self) -> u32 {
        self.n.map_or(1, |n| n as u32)
    }

    /// Whether repeating the request gives the same answer: sampling is greedy, or the client set a seed.
    pub fn is_deterministic(&self, sampling: &SamplingParams) -> bool {
        !sampling.draws() || self.seed.is_some()
    }

    /// Priority of the request.
    pub fn priority(&self) -> Priority {
        Priority(self.priority.unwrap_or(0) as i32)
    }

    /// Whether special tokens are left out from the text.
    pub fn skips_special_tokens(&self) -> bool {
        self.skip_special_tokens.unwrap_or(true)
    }

    /// Whether token ids are reported beside the text.
    pub fn returns_token_ids(&self) -> bool {
        self.return_token_ids.unwrap_or(false)
    }

    /// Sets the ignored parameters. Limits the priority to the most urgent one of clients and adds it to
    /// the ignored parameters if that changes it; also adds the sampling parameters of a beam search.
    pub(crate) fn settle(&mut self, ignored: IgnoredParameters, options: &ReadOptions) {
        self.ignored = ignored;
        let most_urgent = i64::from(options.most_urgent_priority);
        if self.priority.unwrap_or(0) < most_urgent && self.priority.replace(most_urgent).is_some() {
            self.ignored.add("priority");
        }
        self.ignore_sampling_of_beams();
    }

    /// Sets the constraint on outputs.
    ///
    /// # Errors
    /// `mutually_exclusive` if another parameter has set one.
    pub(crate) fn constrain(&mut self, param: String, spec: ConstraintSpec) -> Result<(), ApiError> {
        match &self.constraint {
            Some(other) => Err(ApiError::mutually_exclusive(param, &other.param)),
            None => {
                self.constraint = Some(OutputConstraint { param, spec });
                Ok(())
            }
        }
    }

    /// Maximum number of reasoning tokens; `None`: no limit.
    pub fn thinking_budget(&self) -> Option<u32> {
        self.thinking_token_budget.and_then(|n| u32::try_from(n).ok())
    }

    /// Constraint on outputs.
    pub fn constraint(&self) -> Option<&OutputConstraint> {
        self.constraint.as_ref()
    }

    /// Whether outputs need no compiled constraint.
    pub fn has_free_output(&self) -> bool {
        self.constraint.is_none() && self.thinking_budget().is_none()
    }

    /// Checks combinations of parameters. `may_be_prompt_only` permits zero output tokens.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub(crate) fn check_together(&self, may_be_prompt_only: bool) -> Result<(), ApiError> {
        if self.model.is_none() && !self.takes_only_model {
            return Err(ApiError::missing_required_parameter("model"));
        }
        if self.stream_options.is_some() && !self.is_streaming() {
            let reason = "'stream_options' is only allowed when 'stream' is true.";
            return Err(ApiError::invalid_value("stream_options", reason));
        }
        if self.prompt_logprobs.is_some() && self.is_streaming() {
            let reason = "'prompt_logprobs' is not available when 'stream' is true.";
            return Err(ApiError::invalid_value("prompt_logprobs", reason));
        }
        if self.max_tokens == Some(0) && !may_be_prompt_only && self.prompt_logprobs.is_none() {
            return Err(ApiError::integer_below_min_value(self.names.max_tokens, 1));
        }
        if let (Some(min), Some(max)) = (self.min_tokens, self.max_tokens)
            && min > max
        {
            return Err(min_tokens_above(min, max));
        }
        self.check_several()
    }
}

/// The error of `min_tokens` above `max_tokens`.
pub(crate) fn min_tokens_above(min_tokens: i64, max_tokens: i64) -> ApiError {
    let reason = format!("'min_tokens' ({min_tokens}) must not be above 'max_tokens' ({max_tokens}).");
    ApiError::invalid_value("min_tokens", reason)
}
