//! Lets a device choose tokens, so that logits need not reach the host. Does not know how a device chooses.

use throng_core::batch::{ScheduledBatch, SequenceError, StepOutput, TokenLogprob};
use throng_core::request::TokenId;

use crate::backend::{Backend, BackendError, NO_TOKEN};
use crate::batch_sampler::{Wanted, begin_sequences, is_reached};
use crate::sampler::SamplingInput;

/// Lets the device choose the tokens, if it can for all of these rows of logits, and waits for them; the sequences in
/// `unknown` fail. `false`: nothing was chosen.
///
/// # Errors
/// When the device failed.
pub(crate) fn choose_on_device<B: Backend>(
    backend: &mut B,
    batch: &ScheduledBatch,
    (wanted, unknown): (&[Wanted], &[usize]),
    logits: &mut B::Buffer,
    chosen: &mut Vec<TokenId>,
    output: &mut StepOutput,
) -> Result<bool, BackendError> {
    // Log-probabilities and masks are the host's: their rows need the logits there.
    let needs_logits = |wanted: &Wanted| {
        let scheduled = &batch.sequences()[wanted.sequence_idx];
        wanted.next_prompt_token.is_some()
            || scheduled.sampling.logprobs.is_some()
            || scheduled.constraint.is_some()
    };
    let mut rows = wanted.iter().map(|wanted| sampling_input(batch, wanted));
    if wanted.iter().any(needs_logits) || !backend.choose(logits, &mut rows) {
        return Ok(false);
    }
    let ticket = backend.submit();
    chosen.clear();
    backend.collect(ticket, chosen)?;
    for (wanted, &token) in wanted.iter().zip(&*chosen) {
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
    Ok(true)
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
