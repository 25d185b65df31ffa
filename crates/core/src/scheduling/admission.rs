//! Refuses requests that can never run, and bounds the waiting ones. Does not know when requests run.

use crate::request::{Request, TokenId};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_table::blocks_for;
use crate::scheduling::executor::{ExecutorCapacity, MAX_STEPS_IN_FLIGHT};

/// Reason why a request may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A request has a prompt of at least one token and at least one continuation that runs.
    #[error("the request has no prompt or asks for no continuation")]
    Empty,
    /// A prompt token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary_size} tokens")]
    InvalidToken {
        /// Id of the token.
        token: TokenId,
        /// Size of the vocabulary; token ids are below it.
        vocabulary_size: u32,
    },
    /// The prompt, or the output so far, leaves no room for an output token.
    #[error("the prompt needs {n_tokens} tokens of context, the limit is {limit}")]
    TooLong {
        /// Prompt tokens, plus one for the output if an output is requested, or the longest output so far.
        n_tokens: usize,
        /// Maximum number of tokens of a sequence.
        limit: usize,
    },
    /// The whole KV cache is too small for the prompt.
    #[error("the prompt needs {needed_blocks} KV blocks, there are {n_blocks}")]
    NeverFits {
        /// Number of blocks that these tokens need.
        needed_blocks: usize,
        /// Number of blocks of the KV cache.
        n_blocks: usize,
    },
    /// The prompt has spans or positions that the executor does not read, or that do not fit it.
    #[error("the prompt has parts that the model does not read")]
    UnreadableMedia,
    /// Too many requests or prompt tokens wait already.
    #[error("the queue is full: {n_requests} requests, {n_tokens} prompt tokens")]
    QueueFull {
        /// Number of waiting requests.
        n_requests: usize,
        /// Number of their prompt tokens.
        n_tokens: usize,
    },
}

/// Bounds on requests that can run at all, from the executor's capacity.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    capacity: ExecutorCapacity,
}

impl Admission {
    /// Creates the admission to an executor of this capacity.
    pub fn new(capacity: ExecutorCapacity) -> Self {
        Self { capacity }
    }

    /// Maximum number of tokens of one sequence: the smaller of what the model allows and what the whole
    /// pool holds. So every admitted sequence can run to its end, alone if need be.
    pub fn max_sequence_tokens(&self) -> usize {
        (self.capacity.max_sequence_tokens as usize).min(self.capacity.n_blocks as usize * BLOCK_TOKENS)
    }

    /// Maximum number of steps in flight on the executor.
    pub fn max_steps_in_flight(&self) -> usize {
        (self.capacity.max_steps_in_flight as usize).clamp(1, MAX_STEPS_IN_FLIGHT)
    }

    /// Number of steps over which the running sequences are divided.
    pub fn n_stages(&self) -> usize {
        (self.capacity.n_stages as usize).clamp(1, self.max_steps_in_flight())
    }

    /// Whether all tokens of a sequence are computed in one step.
    pub fn takes_whole_prompts(&self) -> bool {
        self.capacity.takes_whole_prompts
    }

    /// Whether all tokens of a span of a prompt are computed in one step.
    pub fn keeps_media_whole(&self) -> bool {
        self.capacity.keeps_media_whole
    }

    /// Maximum tokens of a span. A span that is computed in one step may have as many as the step has beside
    /// one token of each other sequence, so that others cannot keep it waiting.
    fn longest_span(&self) -> u32 {
        let ExecutorCapacity { max_batch_tokens, max_batch_sequences, .. } = self.capacity;
        if self.keeps_media_whole() { max_batch_tokens.saturating_sub(max_batch_sequences) } else { u32::MAX }
    }

    /// Whether `token` is in the vocabulary.
    pub fn is_token(&self, token: TokenId) -> bool {
        token < self.capacity.vocabulary_size
    }

    /// Whether `request` can run on an idle engine.
    ///
    /// # Errors
    /// The reason why it never can.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        if request.prompt.is_empty() || request.continuations().next().is_none() {
            return Err(Refusal::Empty);
        }
        if let Some(media) = &request.media {
            let longest = self.longest_span();
            let is_read = self.capacity.takes_media && media.fits(request.prompt.len());
            if !is_read || media.spans.iter().any(|span| span.len > longest) {
                return Err(Refusal::UnreadableMedia);
            }
        }
        let longest_output = request.continuations().map(|(_, output)| output.len()).max().unwrap_or(0);
        let n_first = usize::from(request.sampling.max_tokens > 0);
        let n_tokens = request.prompt.len() + longest_output.max(n_first);
        let most = self.capacity.max_sequence_tokens as usize;
        let limit = match self.takes_whole_prompts() {
            true => most.min(self.capacity.max_batch_tokens as usize + n_first),
            false => most,
        };
        if n_tokens > limit {
            return Err(Refusal::TooLong { n_tokens, limit });
        }
        let (needed_blocks, n_blocks) = (blocks_for(n_tokens), self.capacity.n_blocks as usize);
        if needed_blocks > n_blocks {
            return Err(Refusal::NeverFits { needed_blocks, n_blocks });
        }
        let vocabulary_size = self.capacity.vocabulary_size;
        let outputs = request.continuations().flat_map(|(_, output)| output);
        match request.prompt.iter().chain(outputs).find(|&&token| !self.is_token(token)) {
            Some(&token) => Err(Refusal::InvalidToken { token, vocabulary_size }),
            None => Ok(()),
        }
    }
}

/// Counts the requests that wait for their first step, against a bound.
#[derive(Debug, Clone, Copy)]
pub struct QueueBound {
    max_requests: usize,
    max_tokens: usize,
    n_requests: usize,
    n_tokens: usize,
}

impl QueueBound {
    /// Creates an empty queue of at most `max_requests` requests with `max_tokens` prompt tokens in all.
    pub fn new(max_requests: usize, max_tokens: usize) -> Self {
        Self { max_requests, max_tokens, n_requests: 0, n_tokens: 0 }
    }

    /// Whether a request with a prompt of `prompt_tokens` tokens may enter. A request longer than the bound
    /// still enters an empty queue.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`] with the number of waiting requests and tokens.
    pub fn check(&self, prompt_tokens: usize) -> Result<(), Refusal> {
        let full = self.n_requests >= self.max_requests
            || (self.n_requests > 0 && self.n_tokens + prompt_tokens > self.max_tokens);
        if full {
            return Err(Refusal::QueueFull { n_requests: self.n_requests, n_tokens: self.n_tokens });
        }
        Ok(())
    }

    /// Enters a request with a prompt of `prompt_tokens` tokens.
    ///
    /// # Errors
    /// Errors of [`Self::check`].
    pub fn enter(&mut self, prompt_tokens: usize) -> Result<(), Refusal> {
        self.check(prompt_tokens)?;
        self.n_requests += 1;
        self.n_tokens += prompt_tokens;
        Ok(())
    }

    /// Removes a request from the queue: it runs, or it ended before.
    pub fn leave(&mut self, prompt_tokens: usize) {
        self.n_requests -= 1;
        self.n_tokens -= prompt_tokens;
    }

    /// Number of waiting requests.
    pub fn n_requests(&self) -> usize {
        self.n_requests
    }

    /// Number of their prompt tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::prompt_media::{ContentDigest, PromptMedia, PromptSpan, SpanKind};
    use crate::request::{RequestId, SamplingParams};

    #[test]
    fn an_image_enters_where_it_is_read_and_fits_its_prompt() {
        let capacity = ExecutorCapacity {
            n_blocks: 4,
            max_batch_tokens: 64,
            max_batch_sequences: 1,
            max_sequence_tokens: 64,
            vocabulary_size: 10,
            n_state_slots: 0,
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
            takes_media: true,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let check = |takes_media, len| {
            let span = PromptSpan { start: 2, len, digest: ContentDigest([1; 32]), kind: SpanKind::Image };
            let media = PromptMedia { spans: vec![span], ..PromptMedia::default() };
            let text = Request::plain(RequestId(1), vec![1; 8], SamplingParams::default());
            let admission = Admission::new(ExecutorCapacity { takes_media, ..capacity });
            assert_eq!(admission.check(&text), Ok(()));
            admission.check(&Request { media: Some(Arc::new(media)), ..text })
        };
        assert_eq!(check(true, 6), Ok(()));
        assert_eq!(check(true, 7), Err(Refusal::UnreadableMedia), "it ends after the prompt");
        assert_eq!(check(false, 6), Err(Refusal::UnreadableMedia));
    }
}
