//! Lets a device answer the rows of logits that it can, so that these need not reach the host. Does not know
//! how a device chooses.

use throng_core::scheduling::batch::ScheduledBatch;

use crate::backend::{Backend, SamplingRow, WantedToken};
use crate::batch_sampler::{Wanted, sampling_input};

/// Samples the rows of `logits` that the device supports, notes them in `on_device`, and returns their
/// number.
pub(crate) fn sample_on_device<B: Backend>(
    backend: &mut B,
    batch: &ScheduledBatch,
    wanted: &[Wanted],
    logits: &mut B::Buffer,
    on_device: &mut Vec<bool>,
) -> usize {
    let row = |(row_idx, wanted): (usize, &Wanted)| row_of(batch, wanted, row_idx);
    on_device.clear();
    on_device
        .extend(wanted.iter().enumerate().map(|each| row(each).is_some_and(|row| backend.samples(&row))));
    let n_sampled = on_device.iter().filter(|&&is_sampled| is_sampled).count();
    if n_sampled > 0 {
        let mut rows = wanted.iter().enumerate().filter(|(row_idx, _)| on_device[*row_idx]).filter_map(row);
        backend.sample(logits, &mut rows);
    }
    n_sampled
}

/// A row for the device; `None` for rows under a constraint, whose masks are on the host.
fn row_of<'a>(batch: &'a ScheduledBatch, wanted: &Wanted, row_idx: usize) -> Option<SamplingRow<'a>> {
    let scheduled = &batch.sequences()[wanted.sequence_idx];
    if let Some(token) = wanted.next_prompt_token {
        let logprobs = Some(scheduled.sampling.prompt_logprobs.unwrap_or(0));
        return Some(SamplingRow { row_idx, token: WantedToken::Prompt(token), logprobs });
    }
    let input = scheduled.constraint.is_none().then(|| sampling_input(batch, wanted))?;
    Some(SamplingRow { row_idx, token: WantedToken::Sampled(input), logprobs: scheduled.sampling.logprobs })
}
