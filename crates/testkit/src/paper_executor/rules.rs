//! Inputs of the paper executor and the choice of tokens: digests of slots, and the sampling parameters that
//! decide among the tokens. Does not know batches and the cache.

use throng_core::constraint::{TokenConstraint, TokenMask};
use throng_core::prompt_media::{PromptMedia, RotaryPosition};
use throng_core::request::{AdapterId, SamplingParams, TokenId};
use throng_core::scheduling::batch::{ScheduledSequence, SequenceError};

use super::PaperToken;
use crate::paper_states::{Seen, mix};

/// State that decides, beside the tokens, which slots a sequence has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Computed<'a> {
    pub(super) adapter: Option<AdapterId>,
    pub(super) media: Option<&'a PromptMedia>,
}

/// State, beside the tokens read, on which the chosen token depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) sampling: &'a SamplingParams,
    pub(super) constraint: Option<&'a dyn TokenConstraint>,
    pub(super) computed: Computed<'a>,
    /// Index of the continuation in the request.
    pub(super) index: u32,
    pub(super) n_prompt: usize,
    pub(super) vocabulary_size: u32,
}

impl<'a> Rules<'a> {
    pub(super) fn of_sequence(scheduled: &'a ScheduledSequence, vocabulary_size: u32) -> Self {
        let (index, n_prompt) = (scheduled.id.index, scheduled.n_prompt as usize);
        let constraint = scheduled.constraint.as_deref();
        let computed = Computed { adapter: scheduled.adapter, media: scheduled.media.as_deref() };
        Self { sampling: &scheduled.sampling, constraint, computed, index, n_prompt, vocabulary_size }
    }

    /// The token at `position` after `seen`, under the rules that restrict the choice. `history` and `output`
    /// are read if there are rules for them.
    pub(super) fn choose(
        &self,
        seen: Seen,
        (position, history, output): (usize, &[TokenId], &[TokenId]),
    ) -> Result<PaperToken, SequenceError> {
        let mut mask = TokenMask::new(self.vocabulary_size);
        match self.constraint {
            Some(constraint) => constraint.mask(output, &mut mask)?,
            None => mask.allow_all(),
        }
        self.choose_masked(seen, (position, history), &mask)
    }

    /// Chooses a token with a mask that was evaluated before.
    pub(super) fn choose_masked(
        &self,
        seen: Seen,
        (position, history): (usize, &[TokenId]),
        mask: &TokenMask,
    ) -> Result<PaperToken, SequenceError> {
        let (sampling, vocabulary_size) = (self.sampling, self.vocabulary_size);
        let mut key = seen.0;
        if !sampling.is_greedy() {
            key = [sampling.seed, u64::from(self.index), position as u64].into_iter().fold(key, mix);
        }
        if sampling.reads_history() {
            key = history.iter().fold(key, |key, &token| mix(key, u64::from(token)));
        }
        let allowed = sampling.allowed_token_ids.as_deref();
        let n_candidates = allowed.map_or(u64::from(vocabulary_size), |allowed| allowed.len() as u64);
        let too_early = position.saturating_sub(self.n_prompt) < sampling.min_tokens as usize;
        let ends =
            |token| sampling.eos_token_ids.contains(&token) || sampling.stop_token_ids.contains(&token);
        let too_early = too_early && !(self.constraint.is_some() && mask.tokens().all(ends));
        let is_banned = |token| {
            let completes = |word: &Vec<TokenId>| {
                word.split_last().is_some_and(|(last, rest)| *last == token && history.ends_with(rest))
            };
            !mask.contains(token) || (too_early && ends(token)) || sampling.bad_words.iter().any(completes)
        };
        let candidates = (0..n_candidates).map(|i| {
            let i = (key % n_candidates + i) % n_candidates;
            allowed.map_or(i as TokenId, |allowed| allowed[i as usize])
        });
        let token = candidates.into_iter().find(|&token| !is_banned(token));
        let token = token.ok_or(SequenceError::NothingAllowed)?;
        Ok(seen.report(token, sampling.logprobs, vocabulary_size))
    }
}

/// The slot of a token. An adapter computes other keys and values at every position.
pub(super) fn digest(before: u64, (position, token): (usize, TokenId), computed: Computed<'_>) -> u64 {
    let slot = mix(before, 1 + u64::from(token));
    let slot = computed.adapter.map_or(slot, |adapter| mix(slot, 1 + u64::from(adapter.0)));
    let Some(media) = computed.media else { return slot };
    let position = position as u32;
    let of_span = media.span_at(position).map_or(slot, |span| {
        let numbers = [span.start, span.len, span.kind as u32].map(u64::from);
        numbers.into_iter().chain(span.digest.0.map(u64::from)).fold(slot, mix)
    });
    match media.rotary_position(position) {
        text if text == RotaryPosition::of_text(position) => of_span,
        other => other.0.into_iter().map(u64::from).fold(of_span, mix),
    }
}
