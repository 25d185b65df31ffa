//! Options of a generation: how to sample, when to stop, what to report. Holds what the client said, each
//! value checked for itself. Does not know prompts and models.

use throng_core::fleet::overload::ServiceClass;
use throng_core::request::{EarlyStopping, Priority, SamplingParams, TokenId};
use throng_text::grammar::ConstraintSpec;

use crate::error::{ApiError, ConstraintParam};
use crate::field::ReadOptions;
use crate::ignored::IgnoredParameters;

/// What a request asks of its outputs' form.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputConstraint {
    /// The parameter that says so, for errors.
    pub param: String,
    /// What it says.
    pub spec: ConstraintSpec,
}

impl OutputConstraint {
    /// Where it stood, for errors that show while outputs are made.
    pub fn blamed(&self) -> ConstraintParam {
        ConstraintParam::new(&self.param, &self.spec)
    }
}

/// The names of parameters in an API, for errors.
#[derive(Debug, Clone, Copy)]
pub struct ParamNames {
    /// The prompt or the conversation.
    pub prompt: &'static str,
    /// The most output tokens.
    pub max_tokens: &'static str,
    /// The number of alternatives reported for each output token.
    pub logprobs: &'static str,
}

impl Default for ParamNames {
    fn default() -> Self {
        Self { prompt: "prompt", max_tokens: "max_tokens", logprobs: "logprobs" }
    }
}

/// Options of a generation, `None` where the client said nothing.
#[derive(Debug, Clone, Default)]
pub struct GenerationOptions {
    /// The names of parameters in the API that the request came by.
    pub names: ParamNames,
    /// Most output tokens of a client that does not say; `None`: what is left of the context.
    pub default_max_tokens: Option<u32>,
    /// Whether a `max_tokens` above what is left of the context means as many as fit. Others are refused.
    pub may_end_with_context: bool,
    /// The model's name, not empty, without control characters, at most 512 bytes.
    pub model: Option<String>,
    /// Whether to answer token by token.
    pub stream: Option<bool>,
    /// How to report usage while streaming.
    pub stream_options: Option<StreamOptions>,
    /// How many continuations, 1 to 128.
    pub n: Option<i64>,
    /// How many continuations are generated, of which the `n` best are given; at least `n`, at most 128. With
    /// beam search: how many beams.
    pub best_of: Option<i64>,
    /// Whether to search for the most likely continuations.
    pub use_beam_search: Option<bool>,
    /// How the length of a beam counts, -100 to 100.
    pub length_penalty: Option<f32>,
    /// When a beam search ends.
    pub early_stopping: Option<EarlyStopping>,
    /// The most output tokens; 0 computes only the prompt.
    pub max_tokens: Option<i64>,
    /// No end before this many output tokens.
    pub min_tokens: Option<i64>,
    /// The most guessed tokens verified in a step; 0: none.
    pub max_draft_tokens: Option<i64>,
    /// 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Above 0 to 1.
    pub top_p: Option<f32>,
    /// 0 and -1 keep all tokens.
    pub top_k: Option<i64>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Above 0 to 100.
    pub repetition_penalty: Option<f32>,
    /// The key of the random numbers.
    pub seed: Option<i64>,
    /// Added to the logits of tokens; ids unique, values -100 to 100.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The only tokens that may be chosen; sorted, unique, not empty.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Words that must not appear, none of them empty.
    pub bad_words: Vec<String>,
    /// Texts that end a continuation, none of them empty.
    pub stop: Vec<String>,
    /// Tokens that end a continuation.
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the stop text is part of the answer.
    pub include_stop_str_in_output: Option<bool>,
    /// Do not end at the model's end tokens.
    pub ignore_eos: Option<bool>,
    /// Whether special tokens have no text; true unless said.
    pub skip_special_tokens: Option<bool>,
    /// Whether neighbouring special tokens are set apart by spaces; true unless said.
    pub spaces_between_special_tokens: Option<bool>,
    /// Keep only this many prompt tokens; -1: as many as fit.
    pub truncate_prompt_tokens: Option<i64>,
    /// Which side of the prompt truncation takes away.
    pub truncation_side: TruncationSide,
    /// How many likely tokens to report at each output token; -1: all. Each endpoint reads its own spelling.
    pub logprobs: Option<i64>,
    /// How many likely tokens to report at each prompt token; -1: all.
    pub prompt_logprobs: Option<i64>,
    /// Report token ids beside the text.
    pub return_token_ids: Option<bool>,
    /// Whether a request that names no model is for the only one.
    pub takes_only_model: bool,
    /// Tell where the time of the answer went.
    pub include_timings: Option<bool>,
    /// Name tokens in log-probabilities `token_id:ID`.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Smaller goes first; 0 unless said.
    pub priority: Option<i64>,
    /// How urgent it is, if the body says so.
    pub service_class: Option<ServiceClass>,
    /// The client's id for the request, printable ASCII, at most 128 bytes; part of the answer's id.
    pub request_id: Option<String>,
    /// Keeps cached prefixes apart; not empty.
    pub cache_salt: Option<String>,
    /// The end user that the request is made for.
    pub user: Option<String>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
    /// Most tokens of reasoning; -1: no bound.
    pub thinking_token_budget: Option<i64>,
    /// Whether [`Self::thinking_token_budget`] has no effect on a model that does not think, instead of being
    /// refused.
    pub thinks_if_it_can: bool,
    /// What a parameter asks of the output's form: not more than one does.
    pub(crate) constraint: Option<OutputConstraint>,
}

/// How usage is reported while streaming.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// One more chunk at the end, with the usage of the whole request.
    pub include_usage: bool,
    /// Usage so far in every chunk.
    pub continuous_usage_stats: bool,
    /// The answer tells where its time went, as [`GenerationOptions::include_timings`].
    pub include_timings: bool,
}

/// Which side of a prompt truncation takes away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning goes.
    #[default]
    Left,
    /// The end goes.
    Right,
}

impl GenerationOptions {
    /// Whether the answer tells where its time went.
    pub fn reports_timings(&self) -> bool {
        self.include_timings.unwrap_or(self.stream_options().include_timings)
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or_default()
    }

    /// Whether to answer token by token.
    pub fn is_streaming(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// How usage is reported while streaming; all false when not streaming.
    pub fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    /// How many continuations of each prompt.
    pub fn n(&self) -> u32 {
        self.n.map_or(1, |n| n as u32)
    }

    /// Whether the same request has the same answer: nothing is drawn, or from a seed that the client chose.
    pub fn is_deterministic(&self, sampling: &SamplingParams) -> bool {
        !sampling.draws() || self.seed.is_some()
    }

    /// Which request goes first.
    pub fn priority(&self) -> Priority {
        Priority(self.priority.unwrap_or(0) as i32)
    }

    /// Whether special tokens have no text.
    pub fn skips_special_tokens(&self) -> bool {
        self.skip_special_tokens.unwrap_or(true)
    }

    /// Whether token ids are reported beside the text.
    pub fn returns_token_ids(&self) -> bool {
        self.return_token_ids.unwrap_or(false)
    }

    /// Takes in which parameters of the body were ignored. A priority that is more urgent than a client may
    /// ask for is raised and named among them, and so are the sampling parameters of a beam search.
    pub(crate) fn settle(&mut self, ignored: IgnoredParameters, options: &ReadOptions) {
        self.ignored = ignored;
        let most_urgent = i64::from(options.most_urgent_priority);
        if self.priority.unwrap_or(0) < most_urgent && self.priority.replace(most_urgent).is_some() {
            self.ignored.add("priority");
        }
        self.ignore_sampling_of_beams();
    }

    /// Keeps what a parameter says about the form of the output.
    ///
    /// # Errors
    /// `mutually_exclusive` where another parameter says something about it too.
    pub(crate) fn constrain(&mut self, param: String, spec: ConstraintSpec) -> Result<(), ApiError> {
        match &self.constraint {
            Some(other) => Err(ApiError::mutually_exclusive(param, &other.param)),
            None => {
                self.constraint = Some(OutputConstraint { param, spec });
                Ok(())
            }
        }
    }

    /// Most tokens of reasoning.
    pub fn thinking_budget(&self) -> Option<u32> {
        self.thinking_token_budget.and_then(|n| u32::try_from(n).ok())
    }

    /// What is asked of the form of the output.
    pub fn constraint(&self) -> Option<&OutputConstraint> {
        self.constraint.as_ref()
    }

    /// Whether its outputs have no form that must be compiled.
    pub fn has_free_output(&self) -> bool {
        self.constraint.is_none() && self.thinking_budget().is_none()
    }

    /// Checks what one parameter alone cannot tell. `may_be_prompt_only` allows no output tokens.
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

/// The error of a minimum above the maximum.
pub(crate) fn min_tokens_above(min_tokens: i64, max_tokens: i64) -> ApiError {
    let reason = format!("'min_tokens' ({min_tokens}) must not be above 'max_tokens' ({max_tokens}).");
    ApiError::invalid_value("min_tokens", reason)
}
