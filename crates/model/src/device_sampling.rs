//! Lets a device choose tokens, so that logits need not reach the host. Does not know how a device chooses.

use throng_core::batch::{ScheduledBatch, SequenceError, StepOutput, TokenLogprob};
use throng_core::request::TokenId;

use crate::backend::{Backend, NO_TOKEN, Ticket};
use crate::batch_sampler::{Wanted, begin_sequences, is_reached};
use crate::sampler::SamplingInput;

/// Lets the device choose the tokens, if it can for all of these rows of logits, and ends the step there. `None`: nothing was
/// chosen.
pub(crate) fn choose_on_device<B: Backend>(
    backend: &mut B,
    batch: &ScheduledBatch,
    wanted: &[Wanted],
    logits: &mut B::Buffer,
) -> Option<Ticket> {
    let mut rows = wanted.iter().map(|wanted| sampling_input(batch, wanted));
    backend.choose(logits, &mut rows).then(|| backend.submit())
}

/// Whether the device may choose these tokens: log-probabilities and masks are the host's, their rows need the logits there.
pub(crate) fn may_choose_on_device(batch: &ScheduledBatch, wanted: &[Wanted]) -> bool {
    wanted.iter().all(|wanted| {
        let scheduled = &batch.sequences()[wanted.sequence_idx];
        wanted.next_prompt_token.is_none()
            && scheduled.sampling.logprobs.is_none()
            && scheduled.constraint.is_none()
    })
}

/// Tells the tokens that the device chose, one for each wanted row; the sequences in `unknown` fail.
pub(crate) fn tell_chosen(
    batch: &ScheduledBatch,
    (wanted, unknown): (&[Wanted], &[usize]),
    chosen: &[TokenId],
    output: &mut StepOutput,
) {
    for (wanted, &token) in wanted.iter().zip(chosen) {
        begin_sequences(unknown, wanted.sequence_idx + 1, output);
        let scheduled = &batch.sequences()[wanted.sequence_idx];
        if output.error(wanted.sequence_idx).is_some() || !is_reached(batch, scheduled, wanted, output) {
            continue;
        }
        match token {
            // The tokens before stand; the next step comes to this position again, without drafts before it.
            NO_TOKEN if wanted.n_drafts_before > 0 => {}
            NO_TOKEN => output.fail_sequence(SequenceError::InvalidLogits),
            _ => output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]),
        }
    }
}

/// How the token after a row is chosen.
fn sampling_input<'a>(batch: &'a ScheduledBatch, wanted: &Wanted) -> SamplingInput<'a> {
    let scheduled = &batch.sequences()[wanted.sequence_idx];
    let n_before = wanted.n_drafts_before;
    SamplingInput {
        params: &scheduled.sampling,
        mask: None,
        history: batch.history(scheduled, n_before),
        n_prompt: scheduled.n_prompt,
        sequence_index: scheduled.id.index,
        position: scheduled.start + (scheduled.n_known() + n_before) as u32,
    }
}
