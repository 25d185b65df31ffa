//! What the paper executor reads and which token follows from it: digests of slots, and the sampling
//! parameters that decide among the tokens. Does not know batches and the cache.

use throng_core::batch::{ScheduledSequence, SequenceError};
use throng_core::constraint::{TokenConstraint, TokenMask};
use throng_core::request::{AdapterId, SamplingParams, TokenId};

use super::PaperToken;
use crate::paper_states::{Seen, mix};

/// What decides, beside what was read, which token is chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) sampling: &'a SamplingParams,
    pub(super) constraint: Option<&'a dyn TokenConstraint>,
    pub(super) adapter: Option<AdapterId>,
    /// Which continuation of the request.
    pub(super) index: u32,
    pub(super) n_prompt: usize,
    pub(super) vocabulary_size: u32,
}

impl<'a> Rules<'a> {
    pub(super) fn of_sequence(scheduled: &'a ScheduledSequence, vocabulary_size: u32) -> Self {
        let (index, n_prompt) = (scheduled.id.index, scheduled.n_prompt as usize);
        let constraint = scheduled.constraint.as_deref();
        let adapter = scheduled.adapter;
        Self { sampling: &scheduled.sampling, constraint, adapter, index, n_prompt, vocabulary_size }
    }

    /// The token at `position` after `seen`, under those rules that decide what may be chosen at all.
    /// `history` and `output` are read where there are rules for them.
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

    /// The same with a mask that was evaluated before.
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
pub(super) fn digest(before: u64, token: TokenId, adapter: Option<AdapterId>) -> u64 {
    let slot = mix(before, 1 + u64::from(token));
    adapter.map_or(slot, |adapter| mix(slot, 1 + u64::from(adapter.0)))
}
