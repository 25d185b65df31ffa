//! The beams of one request: which ones continue, which have finished, and when the search is over. As in
//! `transformers` (`GenerationMixin._beam_search`). Does not know blocks, steps and time.

use std::ops::Range;
use std::sync::Arc;

use crate::request::{BeamSearch, EarlyStopping, FinishReason, SamplingParams, TokenId};
use crate::scheduling::batch::TokenLogprob;
use crate::scheduling::step_output::ChosenToken;

/// Index that represents no token, before the first one.
const NONE: u32 = u32::MAX;

/// The beams of one request. Each active beam is a sequence of the request; its tokens are kept here too, as
/// a tree, with their reports.
#[derive(Debug)]
pub struct Beams {
    search: BeamSearch,
    sampling: Arc<SamplingParams>,
    /// Sampling parameters of each step: the most likely tokens.
    step_sampling: Arc<SamplingParams>,
    /// Maximum number of output tokens.
    n_most: usize,
    /// Number of output tokens of each active beam.
    n_output: usize,
    /// Live beams, the most likely first.
    live: Vec<Beam>,
    /// Finished beams, the best first; at most the number of beams.
    finished: Vec<Finished>,
    /// Tokens of all beams, active, finished or dropped.
    tree: Vec<Node>,
    tops: Vec<TokenLogprob>,
}

/// An active beam.
#[derive(Debug)]
struct Beam {
    /// Index of its sequence within the request.
    index: u32,
    /// The sum of its tokens' log-probabilities.
    logprob: f64,
    /// Index of the beam's newest token in the tree.
    newest: u32,
    /// The most likely next tokens, once they are reported.
    next: Option<Vec<TokenLogprob>>,
}

#[derive(Debug)]
struct Finished {
    score: f64,
    newest: u32,
    reason: FinishReason,
}

#[derive(Debug)]
struct Node {
    before: u32,
    token: TokenLogprob,
    top: Range<usize>,
}

/// A beam and one of its next tokens.
#[derive(Debug)]
struct Candidate {
    /// Index of the beam among the active ones.
    beam_idx: usize,
    token: TokenLogprob,
    logprob: f64,
}

/// A beam of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextBeam {
    /// The index of its sequence.
    pub index: u32,
    /// The index of the sequence that it continues.
    pub parent: u32,
    /// Token that extends the beam.
    pub token: TokenId,
}

impl Beams {
    /// Begins a search: the prompt is the only beam, with index 0. A beam has at most `n_most` output
    /// tokens.
    pub fn new(search: BeamSearch, sampling: &Arc<SamplingParams>, n_most: usize) -> Self {
        let mut ends: Vec<TokenId> =
            sampling.eos_token_ids.iter().chain(&sampling.stop_token_ids).copied().collect();
        ends.sort_unstable();
        ends.dedup();
        // Enough for each beam to have `width` continuations that do not end.
        let n_candidates = search.width.saturating_mul(2).max(search.width.saturating_add(ends.len() as u32));
        let n_candidates = n_candidates.max(sampling.logprobs.unwrap_or(0));
        let step_sampling = SamplingParams {
            temperature: 0.0,
            logprobs: Some(n_candidates),
            prompt_logprobs: sampling.prompt_logprobs,
            max_tokens: sampling.max_tokens,
            beams: sampling.beams,
            ..SamplingParams::default()
        };
        Self {
            search,
            sampling: Arc::clone(sampling),
            step_sampling: Arc::new(step_sampling),
            n_most: n_most.min(sampling.max_tokens as usize),
            n_output: 0,
            live: vec![Beam { index: 0, logprob: 0.0, newest: NONE, next: None }],
            finished: Vec::new(),
            tree: Vec::new(),
            tops: Vec::new(),
        }
    }

    /// Sampling parameters of a step, which reports the most likely tokens.
    pub fn step_sampling(&self) -> &Arc<SamplingParams> {
        &self.step_sampling
    }

    /// Notes the most likely next tokens of the beam with this index.
    pub fn report(&mut self, index: u32, next: &[TokenLogprob]) {
        let beam = self.live.iter_mut().find(|beam| beam.index == index).expect("a beam of the search");
        beam.next = Some(next.to_vec());
    }

    /// Whether the next tokens of the beam with this index are reported, so that it waits for the others.
    pub fn has_reported(&self, index: u32) -> bool {
        self.live.iter().any(|beam| beam.index == index && beam.next.is_some())
    }

    /// Whether the next tokens of all beams are reported.
    pub fn is_step_complete(&self) -> bool {
        self.live.iter().all(|beam| beam.next.is_some())
    }

    /// Whether no beam is active.
    pub fn is_done(&self) -> bool {
        self.live.is_empty()
    }

    /// Indices of the active beams.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.live.iter().map(|beam| beam.index)
    }

    /// Chooses the beams of the next step, once [`Self::is_step_complete`]; none when the search is over. The
    /// first continuation of a beam keeps its index; the others take indices that become free, then unused
    /// ones.
    pub fn advance(&mut self) -> Vec<NextBeam> {
        self.n_output += 1;
        let candidates = self.candidates();
        let tops = self.keep_tops();
        let width = self.search.width as usize;
        let mut chosen = Vec::with_capacity(width);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            match self.ending(candidate.token.token) {
                None if chosen.len() < width => chosen.push(candidate),
                // As in transformers, an end counts only among the best candidates: not every unlikely end is kept.
                Some(reason) if rank < width => {
                    let newest = self.grow(&candidate, &tops);
                    self.finish(candidate.logprob, newest, reason);
                }
                _ => {}
            }
        }
        if chosen.first().is_none_or(|best| self.is_over(best.logprob)) {
            chosen.clear();
        }
        self.replace_live(&chosen, &tops)
    }

    /// The finished beams, the best first: their tokens with the reports, and the reason of the end.
    pub fn finished(&self) -> impl Iterator<Item = (Vec<ChosenToken<'_>>, FinishReason)> {
        self.finished.iter().map(|finished| (self.path(finished.newest), finished.reason))
    }

    /// All continuations, the most likely first; equally likely ones in the order of their beams and their
    /// tokens' ranks.
    fn candidates(&self) -> Vec<Candidate> {
        let too_early = self.n_output <= self.sampling.min_tokens as usize;
        let mut all = Vec::new();
        for (beam_idx, beam) in self.live.iter().enumerate() {
            let next = beam.next.iter().flatten().filter(|token| token.logprob.is_finite());
            let allowed = next.filter(|token| !(too_early && self.sampling.is_end(token.token)));
            all.extend(allowed.map(|&token| {
                let logprob = beam.logprob + f64::from(token.logprob);
                Candidate { beam_idx, token, logprob }
            }));
        }
        all.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        all
    }

    /// Keeps the most likely tokens that are reported beside the next token of each beam.
    fn keep_tops(&mut self) -> Vec<Range<usize>> {
        let n_top = self.sampling.logprobs.unwrap_or(0) as usize;
        let keep = |beam: &Beam| {
            let start = self.tops.len();
            self.tops.extend(beam.next.iter().flatten().take(n_top));
            start..self.tops.len()
        };
        self.live.iter().map(keep).collect()
    }

    /// Reason why the newest token ends a beam, if it does.
    fn ending(&self, token: TokenId) -> Option<FinishReason> {
        let by_request = self.sampling.finish_at(token, self.n_output as u32);
        by_request.or_else(|| (self.n_output >= self.n_most).then_some(FinishReason::Length))
    }

    /// Adds a token to the tree.
    fn grow(&mut self, candidate: &Candidate, tops: &[Range<usize>]) -> u32 {
        let token = match self.sampling.logprobs {
            Some(_) => candidate.token,
            None => TokenLogprob { token: candidate.token.token, logprob: 0.0, rank: 0 },
        };
        let before = self.live[candidate.beam_idx].newest;
        self.tree.push(Node { before, token, top: tops[candidate.beam_idx].clone() });
        self.tree.len() as u32 - 1
    }

    fn finish(&mut self, logprob: f64, newest: u32, reason: FinishReason) {
        let score = self.score(logprob, self.n_output);
        let place = self.finished.partition_point(|other| other.score >= score);
        self.finished.insert(place, Finished { score, newest, reason });
        self.finished.truncate(self.search.width as usize);
    }

    fn score(&self, logprob: f64, n_tokens: usize) -> f64 {
        logprob / (n_tokens as f64).powf(self.search.length_penalty)
    }

    /// Whether the search ends although beams are active, of which the best has this log-probability.
    fn is_over(&self, best_logprob: f64) -> bool {
        if self.finished.len() < self.search.width as usize {
            return false;
        }
        let n_tokens = match self.search.early_stopping {
            EarlyStopping::WhenFull => return true,
            EarlyStopping::WhenUnableToImprove if self.search.length_penalty > 0.0 => self.n_most,
            EarlyStopping::WhenUnableToImprove | EarlyStopping::WhenUnlikelyToImprove => self.n_output,
        };
        let worst = self.finished.last().map_or(f64::NEG_INFINITY, |finished| finished.score);
        self.score(best_logprob, n_tokens) <= worst
    }

    /// Makes the chosen continuations the active beams.
    fn replace_live(&mut self, chosen: &[Candidate], tops: &[Range<usize>]) -> Vec<NextBeam> {
        let mut kept = vec![false; self.live.len()];
        let is_first: Vec<bool> =
            chosen.iter().map(|candidate| !std::mem::replace(&mut kept[candidate.beam_idx], true)).collect();
        let mut freed: Vec<u32> =
            self.live.iter().zip(&kept).filter(|(_, kept)| !**kept).map(|(beam, _)| beam.index).collect();
        freed.sort_unstable();
        let unused = (0..self.search.width).filter(|index| self.live.iter().all(|beam| beam.index != *index));
        let unused: Vec<u32> = unused.collect();
        let mut free = freed.into_iter().chain(unused);
        let (mut live, mut next) = (Vec::with_capacity(chosen.len()), Vec::with_capacity(chosen.len()));
        for (candidate, is_first) in chosen.iter().zip(is_first) {
            let parent = self.live[candidate.beam_idx].index;
            let index = if is_first { parent } else { free.next().expect("as many indices as beams") };
            let newest = self.grow(candidate, tops);
            live.push(Beam { index, logprob: candidate.logprob, newest, next: None });
            next.push(NextBeam { index, parent, token: candidate.token.token });
        }
        self.live = live;
        next
    }

    fn path(&self, newest: u32) -> Vec<ChosenToken<'_>> {
        let mut tokens = Vec::new();
        let mut next = newest;
        while let Some(node) = self.tree.get(next as usize) {
            tokens.push(ChosenToken { chosen: node.token, top: &self.tops[node.top.clone()] });
            next = node.before;
        }
        tokens.reverse();
        tokens
    }
}
