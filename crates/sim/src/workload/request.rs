//! Requests without text: lengths, and which parts of prompts are equal.

use std::sync::Arc;

use throng_core::engine::END;
use throng_core::request::TokenId;
use throng_core::time::Timestamp;

/// Part of a prompt or an output. Spans of equal content have equal tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Identity of the content.
    pub content: u64,
    /// Number of its tokens.
    pub n_tokens: u32,
}

/// A request as a client sends it, with the output that the model will generate.
#[derive(Debug, Clone, PartialEq)]
pub struct SimRequest {
    /// Number of its tenant.
    pub tenant: u32,
    /// Priority among the tenant's requests; smaller is more urgent.
    pub priority: i32,
    /// The prompt. Prompts that begin with equal spans share a prefix.
    pub prompt: Arc<[Span]>,
    /// Span of the output.
    pub output: Span,
    /// Maximum number of output tokens that the client allows.
    pub max_tokens: u32,
    /// Whether the model ends the output; otherwise `max_tokens` does, and the output has that length.
    pub stops: bool,
}

/// A request and when its client sends it.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedRequest {
    /// Time of sending.
    pub at: Timestamp,
    /// The request, with its output.
    pub request: SimRequest,
    /// Number by which the workload recognises its end.
    pub tag: u64,
}

/// The end of a request, for its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRequest {
    /// [`TimedRequest::tag`].
    pub tag: u64,
    /// Time at which the client saw the end.
    pub at: Timestamp,
    /// Number of output tokens that it got.
    pub n_output: u32,
    /// Whether it got the whole output.
    pub is_whole: bool,
}

impl SimRequest {
    /// A request of the first tenant: `output` tokens end the answer of a prompt.
    pub fn new(prompt: impl Into<Arc<[Span]>>, output: Span) -> Self {
        Self {
            tenant: 0,
            priority: 0,
            prompt: prompt.into(),
            output,
            max_tokens: output.n_tokens,
            stops: true,
        }
    }

    /// Number of prompt tokens.
    pub fn n_prompt_tokens(&self) -> u32 {
        self.prompt.iter().map(|span| span.n_tokens).fold(0, u32::saturating_add)
    }

    /// The tokens of its prompt, for a vocabulary of that size.
    pub fn prompt_tokens(&self, vocabulary_size: u32) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(self.n_prompt_tokens() as usize);
        for span in &*self.prompt {
            tokens.extend((0..span.n_tokens).map(|offset| token_of(span.content, offset, vocabulary_size)));
        }
        tokens
    }

    /// Token `index` of its output, counted from 0; the last one is [`END`] where the model ends the output.
    pub fn output_token(&self, index: u32, vocabulary_size: u32) -> TokenId {
        if self.stops && index + 1 >= self.output.n_tokens {
            return END;
        }
        token_of(self.output.content, index, vocabulary_size)
    }
}

/// Token `offset` of a content; never [`END`] where the vocabulary has another.
#[inline]
pub fn token_of(content: u64, offset: u32, vocabulary_size: u32) -> TokenId {
    let mixed = mix(content ^ u64::from(offset).wrapping_mul(GOLDEN));
    1 + ((u128::from(mixed) * u128::from(vocabulary_size.saturating_sub(1))) >> 64) as TokenId
}

/// The identity of content number `index` of a kind, different from all others for each seed.
pub fn content_id(seed: u64, kind: u64, index: u64) -> u64 {
    mix(mix(seed ^ kind.wrapping_mul(GOLDEN)).wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// Step of SplitMix64, whose finisher mixes the numbers here.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_spans_give_equal_tokens_and_the_end_comes_once() {
        let span = |content, n_tokens| Span { content, n_tokens };
        let one = SimRequest::new([span(1, 20), span(2, 5)], span(7, 3));
        let other = SimRequest::new([span(1, 20), span(3, 5)], span(8, 3));
        let (a, b) = (one.prompt_tokens(100), other.prompt_tokens(100));
        assert_eq!((a.len(), one.n_prompt_tokens()), (25, 25));
        assert!(a[..20] == b[..20] && a[20..] != b[20..]);
        assert!(a.iter().chain(&b).all(|token| (1..100).contains(token)));
        let output: Vec<TokenId> = (0..3).map(|index| one.output_token(index, 100)).collect();
        assert!(output[0] != END && output[1] != END && output[2] == END);
    }

    #[test]
    fn a_vocabulary_of_one_token_is_no_fault() {
        assert_eq!(token_of(3, 4, 1), 1);
    }
}
