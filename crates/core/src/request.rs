//! Requests for the engine: token ids and numbers. Does not know text.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::constraint::TokenConstraint;
use crate::exact;
use crate::prompt_media::PromptMedia;
pub use crate::token::TokenId;

/// Id of a request, unique within an engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Id of a continuation of a request: `index` runs from 0 to the request's `n` − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// Request of the continuation.
    pub request: RequestId,
    /// Index among its `n` continuations; also the `sequence` part of the random numbers' key.
    pub index: u32,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.request.0, self.index)
    }
}

/// A tenant, the unit of fairness, limits and cached prefixes. The empty name is the only tenant of a server
/// without keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub Arc<str>);

impl TenantId {
    /// The tenant of a server without keys.
    pub fn anonymous() -> Self {
        Self(Arc::from(""))
    }
}

/// Rank among a tenant's requests when not all can run, smaller numbers first (as in vLLM); 0 by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(pub i32);

/// A set of low-rank weights that is added to the model's own (LoRA), by its number in the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u32);

/// SHA-256 of all numbers of an adapter: equal in all processes for equal adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterDigest(pub [u8; 32]);

/// Adapter of a request, with its number in the executor and the digest of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adapter {
    /// Number in the executors of this process.
    pub id: AdapterId,
    /// Digest of the content.
    pub digest: AdapterDigest,
}

impl Adapter {
    /// Creates an adapter with a number but no known content: the names of its blocks are valid in this
    /// process only.
    pub fn numbered(id: AdapterId) -> Self {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&id.0.to_le_bytes());
        Self { id, digest: AdapterDigest(digest) }
    }
}

/// Number of another engine, whose blocks this one may ask for, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// Another engine that is said to have the beginning of a prompt in its cache. It may have dropped it since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHolder {
    /// The engine.
    pub peer: PeerId,
    /// Number of full blocks of the prompt that it has.
    pub n_blocks: u32,
}

/// Maximum number of prefixes of a request that are kept.
pub const MAX_CACHE_MARKS: usize = 4;

/// Prefix whose blocks a client asks to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMark {
    /// Number of tokens of the prefix. [`CacheMark::WHOLE`] includes the output.
    pub n_tokens: u32,
    /// Time after each use for which the blocks are kept, in seconds.
    pub keep_s: u32,
}

impl CacheMark {
    /// Number of tokens of a prefix that covers the prompt and the output.
    pub const WHOLE: u32 = u32::MAX;
}

/// A client's request, immutable once submitted.
#[derive(Debug, Clone)]
pub struct Request {
    /// Id of the request, unique within the engine.
    pub id: RequestId,
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Further separates cached prefixes within the tenant (the API's `cache_salt`).
    pub cache_salt: Option<Arc<str>>,
    /// Prefixes that the client asks to keep cached, at most [`MAX_CACHE_MARKS`]. They change no output.
    pub cache_marks: Vec<CacheMark>,
    /// Tokens of the prompt, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Parts of the prompt beside its tokens; `None` for text only.
    pub media: Option<Arc<PromptMedia>>,
    /// Empty for a new request. A resumed request has an entry for each continuation: the output tokens that
    /// were generated before, from which it continues, or `None` if the continuation has ended and does not
    /// run again. They are output in every respect (penalties, `min_tokens`, `max_tokens`, random numbers,
    /// timeline), but events report only new tokens and nothing about the prompt.
    pub outputs_so_far: Vec<Option<Arc<[TokenId]>>>,
    /// Number of continuations, at least 1. All share the prompt's blocks.
    pub n: u32,
    /// Urgency among the requests of a tenant.
    pub priority: Priority,
    /// Parameters of sampling and of the ends of continuations.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the output tokens of each continuation, if any. Applies before all of `sampling`.
    pub constraint: Option<Arc<dyn TokenConstraint>>,
    /// The adapter that computes prompt and output; `None` for the model alone.
    pub adapter: Option<Adapter>,
    /// Another engine from which the beginning of the prompt may be taken over.
    pub holder: Option<BlockHolder>,
}

/// Beam search instead of sampling: of all continuations of the beams by one token, the most likely ones are
/// the next beams. The request's `n` continuations are the best of the finished beams, the best first.
/// Choosing, length and stopping are those of `transformers` (`GenerationMixin._beam_search`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BeamSearch {
    /// Number of beams, and of finished beams that are kept. At least the request's `n`.
    pub width: u32,
    /// A finished beam of `l` output tokens, its end token included, has the score `log-probability /
    /// l^length_penalty`.
    #[serde(with = "exact")]
    pub length_penalty: f64,
    /// Condition for an end of the search before `max_tokens`.
    pub early_stopping: EarlyStopping,
}

/// Condition for the end of a beam search with `width` finished beams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStopping {
    /// Ends as soon as the requested number of beams have finished.
    WhenFull,
    /// Ends when the best beam, if it ended here, would not be better than the worst finished one.
    #[default]
    WhenUnlikelyToImprove,
    /// Ends when no continuation of the best beam can be better than the worst finished one.
    WhenUnableToImprove,
}

impl Request {
    /// Creates a request with one continuation of a prompt, for the anonymous tenant and with nothing
    /// beyond sampling.
    pub fn plain(id: RequestId, prompt: impl Into<Arc<[TokenId]>>, sampling: SamplingParams) -> Self {
        Self {
            id,
            tenant: TenantId::anonymous(),
            cache_salt: None,
            cache_marks: Vec::new(),
            prompt: prompt.into(),
            media: None,
            outputs_so_far: Vec::new(),
            n: 1,
            priority: Priority::default(),
            sampling: Arc::new(sampling),
            constraint: None,
            adapter: None,
            holder: None,
        }
    }

    /// Whether its prompt was computed and reported before, and its continuations continue from existing
    /// output.
    pub fn is_resumed(&self) -> bool {
        !self.outputs_so_far.is_empty()
    }

    /// The output tokens from which continuation `index` continues; `None` if it does not run.
    pub fn output_so_far(&self, index: u32) -> Option<&[TokenId]> {
        if !self.is_resumed() {
            return Some(&[]);
        }
        self.outputs_so_far.get(index as usize)?.as_deref()
    }

    /// The continuations that run, with the output from which each continues.
    pub fn continuations(&self) -> impl Iterator<Item = (u32, &[TokenId])> {
        (0..self.n).filter_map(|index| Some((index, self.output_so_far(index)?)))
    }

    /// Beam search of the request, if it has one. A request without output tokens has none.
    pub fn beam_search(&self) -> Option<BeamSearch> {
        self.sampling.beams.filter(|_| self.sampling.max_tokens > 0)
    }

    /// Number of sequences that it may have: their indices are below this.
    pub fn n_sequences(&self) -> u32 {
        self.beam_search().map_or(self.n, |search| search.width)
    }

    /// Number of tokens with which the request counts while it waits for its first step: its prompt and all
    /// outputs so far.
    pub fn n_queued_tokens(&self) -> usize {
        self.prompt.len() + self.continuations().map(|(_, output)| output.len()).sum::<usize>()
    }
}

/// Parameters of sampling and of the ends of continuations.
///
/// The order in which they apply, after the request's constraint, is that of vLLM: `allowed_token_ids`,
/// `bad_words`, `min_tokens`, `logit_bias`, the penalties, `temperature`, `min_p`, `top_k`, `top_p`.
/// Log-probabilities are those of the model before any of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Divides the logits; below 1e-5 the most likely token is taken (ties: the smallest id).
    #[serde(with = "exact")]
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probabilities reach `top_p`; 1.0 keeps all. (0, 1].
    #[serde(with = "exact")]
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the most likely one; 0.0 keeps all. [0, 1].
    #[serde(with = "exact")]
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of every token in prompt or output (CTRL,
    /// arXiv:1909.05858); 1.0 changes nothing. > 0.
    #[serde(with = "exact")]
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token in the output. [-2, 2].
    #[serde(with = "exact")]
    pub presence_penalty: f32,
    /// Subtracted from the logit of every token in the output, times its count there. [-2, 2].
    #[serde(with = "exact")]
    pub frequency_penalty: f32,
    /// Offsets added to the logits of these tokens. Ids unique and inside the vocabulary.
    #[serde(with = "exact")]
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that can be chosen; when absent, all. Sorted, unique, not empty, inside the vocabulary.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Token sequences that must not be completed; each has at least one token.
    pub bad_words: Vec<Vec<TokenId>>,
    /// No `eos_token_ids` or `stop_token_ids` before this many output tokens.
    pub min_tokens: u32,
    /// The continuation ends with [`FinishReason::Length`] after this many output tokens. 0: only the prompt
    /// is computed (for its log-probabilities).
    pub max_tokens: u32,
    /// End tokens of the model; choosing one ends the continuation unless `ignore_eos`.
    pub eos_token_ids: Vec<TokenId>,
    /// Whether continuations go on after `eos_token_ids`.
    pub ignore_eos: bool,
    /// Tokens that end the continuation when chosen.
    pub stop_token_ids: Vec<TokenId>,
    /// Key of the random numbers, with the sequence index and the position.
    pub seed: u64,
    /// Number of most likely tokens whose log-probabilities are reported with each output token; `None` for
    /// no report.
    pub logprobs: Option<u32>,
    /// Number of most likely tokens whose log-probabilities are reported with each prompt token but the
    /// first; `None` for no report.
    pub prompt_logprobs: Option<u32>,
    /// Beam search in place of sampling. Of these parameters, only `min_tokens` and those for ends and
    /// reports then apply; the others and the request's constraint do not.
    pub beams: Option<BeamSearch>,
    /// Maximum number of drafts of a continuation in one step, within the scheduler's own limit; 0 for
    /// none. The chosen tokens do not depend on it.
    pub max_draft_tokens: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            min_tokens: 0,
            max_tokens: 16,
            eos_token_ids: Vec::new(),
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            seed: 0,
            logprobs: None,
            prompt_logprobs: None,
            beams: None,
            max_draft_tokens: u32::MAX,
        }
    }
}

impl SamplingParams {
    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-5
    }

    /// Whether tokens are sampled at random, so that the output depends on the seed.
    pub fn draws(&self) -> bool {
        !self.is_greedy() && self.beams.is_none() && self.max_tokens > 0
    }

    /// Whether choosing a token reads the tokens before it (a penalty or `bad_words`), so that the batch must
    /// carry the whole history.
    pub fn reads_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.bad_words.is_empty()
    }

    /// Whether choosing `token` could end the continuation.
    pub fn is_end(&self, token: TokenId) -> bool {
        self.eos_token_ids.contains(&token) || self.stop_token_ids.contains(&token)
    }

    /// Reason why `token` as output number `n_output` (counted from 1) ends the continuation, if it does.
    pub fn finish_at(&self, token: TokenId, n_output: u32) -> Option<FinishReason> {
        if !self.ignore_eos && self.eos_token_ids.contains(&token) {
            return Some(FinishReason::Stop { token: None });
        }
        if self.stop_token_ids.contains(&token) {
            return Some(FinishReason::Stop { token: Some(token) });
        }
        (n_output >= self.max_tokens).then_some(FinishReason::Length)
    }
}

/// Defaults from a model's makers (`generation_config.json`), for parameters that a request leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationDefaults {
    /// Default of [`SamplingParams::temperature`].
    #[serde(with = "exact")]
    pub temperature: Option<f32>,
    /// Default of [`SamplingParams::top_k`].
    pub top_k: Option<u32>,
    /// Default of [`SamplingParams::top_p`].
    #[serde(with = "exact")]
    pub top_p: Option<f32>,
    /// Default of [`SamplingParams::min_p`].
    #[serde(with = "exact")]
    pub min_p: Option<f32>,
    /// Default of [`SamplingParams::repetition_penalty`].
    #[serde(with = "exact")]
    pub repetition_penalty: Option<f32>,
    /// Bound of the output length for requests without one (`max_new_tokens`).
    pub max_tokens: Option<u32>,
}

/// Reason why a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "snake_case")]
pub enum FinishReason {
    /// The model or a stop token of the request ended it.
    Stop {
        /// The token of the request's `stop_token_ids`; `None` for the model's end token.
        token: Option<TokenId>,
    },
    /// The output reached `max_tokens` or the context is full.
    Length,
    /// The client disconnected or cancelled.
    Abort,
    /// The step that computed it failed, or a newer build reported a reason that is unknown here.
    #[serde(other)]
    Error,
}
