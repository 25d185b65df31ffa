//! Beam search in its plainest form, to compare with: all beams with all their tokens, all continuations of a
//! vocabulary, sorted. Follows `GenerationMixin._beam_search` of `transformers`. Does not know where
//! log-probabilities come from.

use throng_core::request::{BeamSearch, EarlyStopping, FinishReason, SamplingParams, TokenId};
use throng_core::scheduling::batch::TokenLogprob;

/// A token and its reported alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperToken {
    /// The chosen token.
    pub chosen: TokenLogprob,
    /// The requested number of alternatives.
    pub top: Vec<TokenLogprob>,
}

/// A beam that has finished.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceBeam {
    /// Output tokens of the beam.
    pub tokens: Vec<PaperToken>,
    /// The sum of the log-probabilities of its tokens.
    pub logprob: f64,
    /// Score divided by a power of the length.
    pub score: f64,
    /// Reason why it ended.
    pub reason: FinishReason,
}

/// The finished beams, the best first. `next` returns all tokens of the vocabulary with their
/// log-probabilities after an output, the most likely first; a beam has at most `n_most` output tokens.
pub fn reference_beam_search(
    search: &BeamSearch,
    sampling: &SamplingParams,
    n_most: usize,
    mut next: impl FnMut(&[TokenId]) -> Vec<TokenLogprob>,
) -> Vec<ReferenceBeam> {
    let width = search.width as usize;
    let n_most = n_most.min(sampling.max_tokens as usize);
    let score = |logprob: f64, n_tokens: usize| logprob / (n_tokens as f64).powf(search.length_penalty);
    let is_end = |token| sampling.eos_token_ids.contains(&token) || sampling.stop_token_ids.contains(&token);
    let mut beams: Vec<(Vec<PaperToken>, f64)> = vec![(Vec::new(), 0.0)];
    let mut finished: Vec<ReferenceBeam> = Vec::new();
    for n_tokens in 1..=n_most {
        let nexts: Vec<Vec<TokenLogprob>> = beams.iter().map(|(tokens, _)| next(&ids(tokens))).collect();
        let mut continued = Vec::new();
        for (beam_idx, (all, (_, logprob))) in nexts.iter().zip(&beams).enumerate() {
            let too_early = n_tokens <= sampling.min_tokens as usize;
            let allowed = all.iter().filter(|token| !(too_early && is_end(token.token)));
            continued.extend(allowed.map(|&token| (beam_idx, token, logprob + f64::from(token.logprob))));
        }
        continued.sort_by(|a, b| b.2.total_cmp(&a.2));
        let mut next_beams = Vec::new();
        for (rank, (beam_idx, newest, logprob)) in continued.into_iter().enumerate() {
            let reason = match sampling.finish_at(newest.token, n_tokens as u32) {
                None if n_tokens == n_most => Some(FinishReason::Length),
                reason => reason,
            };
            let tokens = || {
                let newest = report(sampling.logprobs, newest, &nexts[beam_idx]);
                [&beams[beam_idx].0[..], &[newest]].concat()
            };
            match reason {
                Some(reason) if rank < width => {
                    let score = score(logprob, n_tokens);
                    finished.push(ReferenceBeam { tokens: tokens(), logprob, score, reason });
                }
                None if next_beams.len() < width => next_beams.push((tokens(), logprob)),
                _ => {}
            }
        }
        beams = next_beams;
        finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        finished.truncate(width);
        let Some((_, best)) = beams.first() else { break };
        let can_improve = match search.early_stopping {
            EarlyStopping::WhenFull => false,
            EarlyStopping::WhenUnableToImprove if search.length_penalty > 0.0 => {
                finished.last().is_some_and(|worst| score(*best, n_most) > worst.score)
            }
            _ => finished.last().is_some_and(|worst| score(*best, n_tokens) > worst.score),
        };
        if finished.len() == width && !can_improve {
            break;
        }
    }
    finished
}

fn ids(tokens: &[PaperToken]) -> Vec<TokenId> {
    tokens.iter().map(|token| token.chosen.token).collect()
}

/// Report of a token, if log-probabilities of this number of further tokens are reported.
fn report(n_top: Option<u32>, token: TokenLogprob, all: &[TokenLogprob]) -> PaperToken {
    match n_top {
        Some(n) => PaperToken { chosen: token, top: all[..all.len().min(n as usize)].to_vec() },
        None => {
            PaperToken { chosen: TokenLogprob { token: token.token, logprob: 0.0, rank: 0 }, top: Vec::new() }
        }
    }
}
