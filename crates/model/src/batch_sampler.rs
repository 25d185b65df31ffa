//! Answers the logits of many positions on all of a backend's host threads, except those that the device has
//! answered. An answer depends on the logits, parameters and history of its position only, not on the thread
//! that computes it. Does not know where logits come from.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throng_core::constraint::ConstraintError;
use throng_core::request::TokenId;
use throng_core::scheduling::batch::{
    ChosenToken, ScheduledBatch, ScheduledSequence, SequenceError, StepOutput, TokenLogprob,
};
use throng_core::scheduling::masks::{EvaluatedMasks, MaskPace, SequenceMasks};

use crate::backend::{Backend, NO_TOKEN, SampledRows};
use crate::sampler::{Sampler, SamplingInput};

/// Part of a forward pass that a step waits for masks where it holds up other tenants.
const PART_OF_PASS: u32 = 4;

/// Minimum of the waiting time between checks.
const LEAST_PATIENCE: Duration = Duration::from_micros(500);

/// Time for which a step waits for masks if all its sequences need masks and belong to one tenant.
const MOST_PATIENCE: Duration = Duration::from_millis(50);

/// Maximum time that a step waits for the masks of a sequence that cannot be left out.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Purpose of the logits after one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) sequence_idx: usize,
    /// The prompt token whose log-probability is reported; `None` in a row whose token is sampled.
    pub(crate) next_prompt_token: Option<TokenId>,
    /// Number of the row's drafts before the token to choose.
    pub(crate) n_drafts_before: usize,
}

/// Indices of sequences that fail for reasons found before the forward pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failed<'a> {
    /// Sequences whose adapter does not exist.
    pub(crate) unknown_adapter: &'a [usize],
    /// A picture of these sequences is missing or unreadable.
    pub(crate) unreadable_media: &'a [usize],
}

/// Rows of logits that are answered together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedRows<'a> {
    pub(crate) batch: &'a ScheduledBatch,
    pub(crate) wanted: &'a [Wanted],
    /// Sequences that fail with any logits.
    pub(crate) failed: Failed<'a>,
    /// Whether the device has sampled each row's token.
    pub(crate) on_device: &'a [bool],
}

/// The samplers and the answers that wait to be returned in order. Buffers are reused from step to step.
#[derive(Debug)]
pub(crate) struct BatchSampler {
    /// Samplers, one for each thread.
    samplers: Vec<Mutex<Sampler>>,
    /// Slots for answers, one for each row of logits.
    slots: Vec<Mutex<Slot>>,
}

#[derive(Debug)]
struct Slot {
    chosen: Result<TokenLogprob, NotChosen>,
    top: Vec<TokenLogprob>,
}

/// Reason why no token was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotChosen {
    /// The masks were not ready in time.
    LeftOut,
    Failed(SequenceError),
}

impl From<SequenceError> for NotChosen {
    fn from(error: SequenceError) -> Self {
        Self::Failed(error)
    }
}

impl From<ConstraintError> for NotChosen {
    fn from(error: ConstraintError) -> Self {
        Self::Failed(error.into())
    }
}

/// Time for which a step waits at its end for unfinished masks, after a forward pass of this duration.
pub(crate) fn mask_patience(batch: &ScheduledBatch, forward_pass: Duration) -> Duration {
    if batch.has_others() { (forward_pass / PART_OF_PASS).max(LEAST_PATIENCE) } else { MOST_PATIENCE }
}

impl BatchSampler {
    /// Creates a sampler for this number of rows of logits at a time, on this number of threads.
    pub(crate) fn new(max_rows: usize, n_threads: usize) -> Self {
        let slot = || Mutex::new(Slot { chosen: Err(NotChosen::LeftOut), top: Vec::new() });
        Self {
            samplers: (0..n_threads).map(|_| Mutex::default()).collect(),
            slots: std::iter::repeat_with(slot).take(max_rows).collect(),
        }
    }

    /// Takes the answers of the device.
    pub(crate) fn take_sampled(&self, on_device: &[bool], sampled: &SampledRows) {
        let slots = self.slots.iter().zip(on_device).filter(|&(_, &is_sampled)| is_sampled);
        for ((slot, _), ChosenToken { chosen, top }) in slots.zip(sampled.iter()) {
            let mut slot = lock(slot);
            slot.top.clear();
            slot.top.extend_from_slice(top);
            let is_chosen = chosen.token != NO_TOKEN;
            slot.chosen = if is_chosen { Ok(chosen) } else { Err(SequenceError::InvalidLogits.into()) };
        }
    }

    /// Samples from the rows of `logits`, `[wanted, vocabulary]`, for which the device has not sampled. Rows
    /// whose masks are not ready after `patience` are left out.
    pub(crate) fn sample<B: Backend>(
        &self,
        backend: &B,
        WantedRows { batch, wanted, on_device, .. }: WantedRows<'_>,
        patience: Duration,
        logits: &mut [f32],
    ) {
        let vocabulary = logits.len() / wanted.len();
        let rows = wanted.iter().zip(logits.chunks_exact_mut(vocabulary)).zip(&self.slots).zip(on_device);
        let rows = Mutex::new(rows.filter(|&(_, &is_sampled)| !is_sampled).map(|(row, _)| row));
        let (without_masks, deadline) = (Mutex::new(Vec::new()), Instant::now() + patience);
        backend.host_threads().run(&|thread_idx| {
            let mut sampler = lock(&self.samplers[thread_idx]);
            loop {
                let next = lock(&rows).next();
                let Some(((wanted, logits), slot)) = next else { break };
                match masks_of(batch, wanted, vocabulary as u32) {
                    Ok(masks) => lock(slot).fill(&mut sampler, |sampler| {
                        choose(sampler, batch, masks.as_deref(), wanted, logits)
                    }),
                    Err(pending) => lock(&without_masks).push((wanted, logits, slot, pending)),
                }
            }
            // Last, so that nobody's masks keep a processor from other rows.
            loop {
                let next = lock(&without_masks).pop();
                let Some((wanted, logits, slot, masks)) = next else { break };
                let masks = wait_for(masks, &batch.sequences()[wanted.sequence_idx], deadline);
                lock(slot).fill(&mut sampler, |sampler| {
                    let masks = masks?;
                    choose(sampler, batch, Some(&masks), wanted, logits)
                });
            }
        });
    }

    /// Writes the answers of all rows, sequence by sequence in the batch's order: of a sequence's output
    /// tokens, those up to the first that differs from the draft in its place.
    pub(crate) fn tell(
        &self,
        WantedRows { batch, wanted, failed, .. }: WantedRows<'_>,
        output: &mut StepOutput,
    ) {
        for (wanted, slot) in wanted.iter().zip(&self.slots) {
            begin_sequences(failed, wanted.sequence_idx + 1, output);
            let scheduled = &batch.sequences()[wanted.sequence_idx];
            if output.error(wanted.sequence_idx).is_some() || !is_reached(batch, scheduled, wanted, output) {
                continue;
            }
            let slot = lock(slot);
            slot.tell(wanted, output);
            if let (Ok(chosen), None, Some(masks)) = (slot.chosen, wanted.next_prompt_token, &scheduled.masks)
                && wanted.n_drafts_before == masks.n_drafts()
                && let Some(masks) = masks.get()
            {
                masks.forced_after(chosen.token).iter().for_each(|&token| output.push_draft(token));
            }
        }
    }
}

/// Adds empty results to `output` until it has `n_sequences`.
pub(crate) fn begin_sequences(failed: Failed<'_>, n_sequences: usize, output: &mut StepOutput) {
    while output.n_sequences() < n_sequences {
        let sequence_idx = output.n_sequences();
        output.begin_sequence();
        if failed.unknown_adapter.contains(&sequence_idx) {
            output.fail_sequence(SequenceError::UnknownAdapter);
        } else if failed.unreadable_media.contains(&sequence_idx) {
            output.fail_sequence(SequenceError::UnreadableMedia);
        }
    }
}

/// Whether the drafts before the wanted token were accepted, so that it is the next one of its row.
fn is_reached(
    batch: &ScheduledBatch,
    scheduled: &ScheduledSequence,
    wanted: &Wanted,
    output: &StepOutput,
) -> bool {
    let n_before = wanted.n_drafts_before;
    let told = output.sampled(wanted.sequence_idx);
    told.len() == n_before
        && told.last().map(|t| t.chosen.token) == batch.drafts(scheduled)[..n_before].last().copied()
}

impl Slot {
    /// Keeps what `choose` returns for one row of logits. An error or a panic fails the row's sequence and no
    /// other.
    fn fill(
        &mut self,
        sampler: &mut Sampler,
        choose: impl FnOnce(&mut Sampler) -> Result<ChosenToken<'_>, NotChosen>,
    ) {
        self.top.clear();
        // Unwind safe: after a panic the sampler's buffers are replaced, and the slot's list is not read.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let ChosenToken { chosen, top } = choose(&mut *sampler)?;
            self.top.extend_from_slice(top);
            Ok(chosen)
        }));
        self.chosen = answered.unwrap_or_else(|_| {
            *sampler = Sampler::new();
            Err(SequenceError::SamplerPanicked.into())
        });
    }

    fn tell(&self, wanted: &Wanted, output: &mut StepOutput) {
        match (self.chosen, wanted.next_prompt_token) {
            (Ok(chosen), Some(_)) => output.push_prompt(chosen, &self.top),
            (Ok(chosen), None) => output.push_sampled(chosen, &self.top),
            // The tokens before stand; the next step comes to this position again, without drafts before it.
            (Err(_), None) if wanted.n_drafts_before > 0 => {}
            (Err(NotChosen::LeftOut), _) => output.leave_out_sequence(),
            (Err(NotChosen::Failed(error)), _) => output.fail_sequence(error),
        }
    }
}

/// The masks of a row's token, if it needs any; evaluated by this call if no thread evaluates them.
///
/// # Errors
/// Masks that another thread still evaluates.
fn masks_of<'b>(
    batch: &'b ScheduledBatch,
    wanted: &Wanted,
    vocabulary_size: u32,
) -> Result<Option<Arc<EvaluatedMasks>>, &'b Arc<SequenceMasks>> {
    let scheduled = &batch.sequences()[wanted.sequence_idx];
    let Some(masks) = scheduled.masks.as_ref().filter(|_| wanted.next_prompt_token.is_none()) else {
        return Ok(None);
    };
    if !masks.is_queued() {
        masks.evaluate(vocabulary_size, || MaskPace::Continue);
    }
    masks.get().map(Some).ok_or(masks)
}

/// Masks that another thread evaluates.
fn wait_for(
    masks: &SequenceMasks,
    scheduled: &ScheduledSequence,
    deadline: Instant,
) -> Result<Arc<EvaluatedMasks>, NotChosen> {
    let can_wait_long = !masks.is_queued() || !scheduled.may_be_left_out();
    let patience =
        if can_wait_long { LONGEST_WAIT } else { deadline.saturating_duration_since(Instant::now()) };
    match masks.wait(patience) {
        Some(masks) => Ok(masks),
        None if can_wait_long => Err(ConstraintError::LimitExceeded.into()),
        None => masks.get_or_await().ok_or(NotChosen::LeftOut),
    }
}

fn choose<'a>(
    sampler: &'a mut Sampler,
    batch: &ScheduledBatch,
    masks: Option<&EvaluatedMasks>,
    wanted: &Wanted,
    logits: &mut [f32],
) -> Result<ChosenToken<'a>, NotChosen> {
    let scheduled = &batch.sequences()[wanted.sequence_idx];
    if let Some(token) = wanted.next_prompt_token {
        return Ok(sampler.logprobs(logits, token, scheduled.sampling.prompt_logprobs.unwrap_or(0))?);
    }
    let mask = masks.map(|masks| masks.after(wanted.n_drafts_before)).transpose()?;
    let input = SamplingInput { mask, ..sampling_input(batch, wanted) };
    Ok(sampler.sample(logits, &input)?)
}

/// Sampling input for the token after a row, without the mask.
pub(crate) fn sampling_input<'a>(batch: &'a ScheduledBatch, wanted: &Wanted) -> SamplingInput<'a> {
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

/// Panics are caught before a lock is dropped, so data under a lock is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_choosing_fails_its_row_only() {
        let mut sampler = Sampler::new();
        let mut slot = Slot { chosen: Err(NotChosen::LeftOut), top: Vec::new() };
        let chosen = TokenLogprob { token: 7, logprob: 0.0, rank: 1 };
        for panics in [false, true, false] {
            slot.fill(&mut sampler, |_| {
                assert!(!panics, "this row's fault");
                Ok(ChosenToken { chosen, top: &[] })
            });
            let failed = Err(NotChosen::Failed(SequenceError::SamplerPanicked));
            assert_eq!(slot.chosen, if panics { failed } else { Ok(chosen) });
        }
    }
}
