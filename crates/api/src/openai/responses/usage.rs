//! The `usage` of answers and chunks. Does not know prices.

use serde::Serialize;

use crate::spec::StreamOptions;

/// Token counts of a request so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u64,
    /// Number of prompt tokens of images; absent without images.
    #[serde(skip_serializing_if = "Option::is_none")]
    image_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: u64,
}

impl Usage {
    /// Creates the usage of a request. `cached_tokens` of its `prompt_tokens` were found in the prefix
    /// cache.
    pub fn new(prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens, image_tokens: None },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: 0 },
        }
    }

    /// Adds the number of prompt tokens that represent images.
    pub fn with_images(mut self, image_tokens: u64) -> Self {
        self.prompt_tokens_details.image_tokens = (image_tokens > 0).then_some(image_tokens);
        self
    }

    /// Adds the number of reasoning tokens among the completion tokens.
    pub fn with_reasoning(self, reasoning_tokens: u64) -> Self {
        Self { completion_tokens_details: CompletionTokensDetails { reasoning_tokens }, ..self }
    }
}

/// The `usage` of a chunk: absent, null or an object.
pub type ChunkUsage = Option<Option<Usage>>;

impl StreamOptions {
    /// The `usage` of a chunk with a choice: absent unless requested, null if only the last chunk has it,
    /// and `so_far` if each chunk has it.
    pub fn chunk_usage(&self, so_far: impl FnOnce() -> Usage) -> ChunkUsage {
        match (self.continuous_usage_stats, self.include_usage) {
            (true, _) => Some(Some(so_far())),
            (false, true) => Some(None),
            (false, false) => None,
        }
    }
}
