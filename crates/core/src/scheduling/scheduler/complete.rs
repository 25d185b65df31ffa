//! Completing a step: its results are noted, published and reported, and ended sequences release their
//! blocks. Does not know how the step ran.

use super::plain::PlainCursor;
use super::{Emit, Event, Failure, Scheduler, Step, StepShape};
use crate::request::{FinishReason, RequestId, SequenceId, TokenId};
use crate::scheduling::batch::{ScheduledBatch, ScheduledSequence, SequenceError, StepOutput};
use crate::scheduling::sequence::{Rank, StepCounts};
use crate::time::{Nanos, Timestamp};

/// Warm-up passes of the draft model that the step-time model ignores.
const N_WARM_UP_PASSES: u64 = 4;

/// A sequence with the executor's answer.
struct Answer<'a> {
    batch: &'a ScheduledBatch,
    scheduled: &'a ScheduledSequence,
    output: &'a StepOutput,
    sequence_idx: usize,
}

impl Answer<'_> {
    /// Checks that the answer has all results that the sequence needs.
    fn check(&self) -> Result<(), SequenceError> {
        if self.sequence_idx >= self.output.n_sequences() {
            return Err(SequenceError::NoToken);
        }
        if let Some(error) = self.output.error(self.sequence_idx) {
            return Err(error);
        }
        let asked_prompt = match self.scheduled.sampling.prompt_logprobs {
            // The log-probability of a prompt token comes from the position before it.
            Some(_) => (self.scheduled.n_prompt.saturating_sub(self.scheduled.start + 1) as usize)
                .min(self.scheduled.n_tokens()),
            None => 0,
        };
        let n_sampled = self.output.sampled(self.sequence_idx).len();
        let is_left_out = self.is_left_out();
        let complete = self.output.prompt(self.sequence_idx).len() >= asked_prompt
            && (self.scheduled.sample && !is_left_out) == (n_sampled > 0)
            && (!is_left_out || self.scheduled.may_be_left_out())
            && self.output.own_drafts(self.sequence_idx).len() <= self.scheduled.n_to_draft
            && n_sampled <= self.drafts().len() + 1
            && self.accepted().zip(self.drafts()).all(|(token, &draft)| token == draft);
        if complete { Ok(()) } else { Err(SequenceError::NoToken) }
    }

    /// Whether it got no token because its masks were not there.
    fn is_left_out(&self) -> bool {
        self.output.is_left_out(self.sequence_idx)
    }

    /// Number of known tokens whose computation counts: without the sequence's masks, all except the last.
    fn n_settled(&self) -> usize {
        self.scheduled.n_known() - usize::from(self.is_left_out())
    }

    /// The drafts that were verified: those of the batch, or those that the executor made.
    fn drafts(&self) -> &[TokenId] {
        match self.output.own_drafts(self.sequence_idx) {
            [] => self.batch.drafts(self.scheduled),
            made => made,
        }
    }

    /// Output tokens that equal their drafts: all but the last.
    fn accepted(&self) -> impl Iterator<Item = TokenId> {
        let sampled = self.output.sampled(self.sequence_idx);
        let n_accepted = sampled.len().saturating_sub(1);
        sampled.take(n_accepted).map(|token| token.chosen.token)
    }
}

impl Scheduler {
    /// Ends a step that ran. A sequence without its token, or with an error, ends its request and no other;
    /// results for a sequence that has ended meanwhile are dropped.
    pub fn complete(&mut self, step: Step, output: &StepOutput, now: Timestamp, emit: &mut Emit<'_>) {
        self.pool.set_now(now);
        self.observe_time(&step, output, now);
        self.end_step(&step, now);
        let (batch, number, mut cursor) = (step.batch, step.number, PlainCursor::default());
        self.note_encodings(&batch, output);
        self.has_ending = false;
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            self.complete_plain((&batch, number), sequence_idx, output, &mut cursor, now, emit);
            let Some(i) = self.find_in_step(scheduled.id, number, cursor.guess) else { continue };
            cursor.guess = i + 1;
            self.running[i].leave_step(number);
            let answer = Answer { batch: &batch, scheduled, output, sequence_idx };
            match self.apply_sequence(i, &answer, now, emit) {
                Ok(ending) => {
                    self.has_ending |= ending.is_some();
                    self.running[i].state.ending = ending;
                }
                Err(error) => self.failed.push((scheduled.id.request, Failure::Sequence(error))),
            }
        }
        self.complete_plain((&batch, number), usize::MAX, output, &mut cursor, now, emit);
        self.retire_ended(now, emit);
        self.fail_requests(now, emit);
        self.advance_beams(now, emit);
    }

    /// Ends a step that failed as a whole, or was lost: the requests with a share in it fail, the others do
    /// not.
    pub fn fail(&mut self, step: Step, now: Timestamp, emit: &mut Emit<'_>) {
        self.end_step(&step, now);
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_in_step(step.number)) {
            sequence.leave_step(step.number);
            self.failed.push((sequence.request.id, Failure::Step));
        }
        self.fail_requests(now, emit);
        drop(step);
    }

    /// Ends a step that was lost with a process: its shares are computed again. A request fails when it was
    /// in many such steps, in case it is the reason.
    pub fn lose(&mut self, step: Step, now: Timestamp, emit: &mut Emit<'_>) {
        self.end_step(&step, now);
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_in_step(step.number)) {
            sequence.leave_step(step.number);
            let id = sequence.request.id;
            if self.requests.get_mut(&id).is_some_and(|progress| progress.losses.are_too_many(now)) {
                self.failed.push((id, Failure::Step));
            }
        }
        self.fail_requests(now, emit);
        drop(step);
    }

    /// Ends a step that did not run because the one before it failed as a whole: its shares are computed
    /// again.
    pub fn discard(&mut self, step: Step, now: Timestamp) {
        self.end_step(&step, now);
        for sequence in &mut self.running {
            sequence.leave_step(step.number);
        }
        drop(step);
    }

    /// Index of the running sequence that has a share in step `number`. They mostly stand in the batch's
    /// order: the search begins at `guess`.
    fn find_in_step(&self, id: SequenceId, number: u64, guess: usize) -> Option<usize> {
        let mut places = (guess..self.running.len()).chain(0..guess.min(self.running.len()));
        places.find(|&i| self.running[i].id() == id && self.running[i].is_in_step(number))
    }

    /// Learns the duration of the target model's pass and of each pass of the draft model. The former does
    /// not include drafts that the executor did not make.
    fn observe_time(&mut self, step: &Step, output: &StepOutput, now: Timestamp) {
        let mut shape = step.shape;
        for (sequence_idx, scheduled) in step.batch.sequences().iter().enumerate() {
            if scheduled.n_to_draft > 0 && sequence_idx < output.n_sequences() {
                let n_made = output.own_drafts(sequence_idx).len();
                let end = scheduled.start as usize + scheduled.n_tokens() + n_made;
                shape = shape.minus(StepShape::of_sequence(end, scheduled.n_to_draft.saturating_sub(n_made)));
            }
        }
        self.counters.encoded_media += u64::from(output.media.n_encoded);
        self.counters.known_media += u64::from(output.media.n_known);
        let mut took = now.since(step.started.max(self.last_step_ended));
        took = Nanos(took.0.saturating_sub(output.media.took.0));
        for pass in &output.draft_passes {
            let shape = StepShape { n_tokens: pass.n_tokens, n_attended: pass.n_attended };
            if self.n_draft_passes >= N_WARM_UP_PASSES {
                self.draft_time.observe(shape, pass.took);
            }
            self.n_draft_passes += 1;
            took = Nanos(took.0.saturating_sub(pass.took.0));
        }
        if shape.n_tokens > 0 {
            self.step_time.observe(shape, took);
        }
        let has_pass = !output.draft_passes.is_empty();
        self.n_steps_without_pass = if has_pass { 0 } else { self.n_steps_without_pass + 1 };
    }

    fn end_step(&mut self, step: &Step, now: Timestamp) {
        assert_eq!(step.number, self.counters.steps, "a step that is not the oldest in flight");
        self.counters.steps += 1;
        self.last_step_ended = now;
    }

    /// Notes one sequence's result. Returns the reason if the sequence has ended.
    fn apply_sequence(
        &mut self,
        i: usize,
        answer: &Answer<'_>,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) -> Result<Option<FinishReason>, SequenceError> {
        let scheduled = answer.scheduled;
        answer.check()?;
        if scheduled.start < scheduled.n_prompt {
            self.counters.prompt_tokens +=
                u64::from((scheduled.n_prompt - scheduled.start).min(answer.n_settled() as u32));
            let cached_tokens = self.running[i].timeline.cached_tokens;
            self.note_prompt(answer, cached_tokens, emit);
        }
        if self.report_beam(i, answer.output, answer.sequence_idx) {
            let sequence = &mut self.running[i];
            let step = StepCounts { n_known: scheduled.n_known(), ..StepCounts::default() };
            sequence.advance(step, &mut self.pool);
            sequence.publish(&mut self.pool);
            return Ok(None);
        }
        if answer.is_left_out() {
            self.leave_out(i, answer, now);
            return Ok(None);
        }
        let (reason, n_pushed) = self.push_tokens(i, answer, now, emit);
        let (n_made, n_accepted) = (answer.drafts().len(), n_pushed.min(answer.accepted().count()));
        if !answer.output.own_drafts(answer.sequence_idx).is_empty() {
            self.counters.drafts += 1;
            self.counters.draft_tokens += n_made as u64;
        }
        self.counters.accepted_draft_tokens += n_accepted as u64;
        let drafts = self.usable_drafts(answer.output.drafts(answer.sequence_idx));
        let sequence = &mut self.running[i];
        let n_drafts = scheduled.n_drafts + scheduled.n_to_draft;
        assert_eq!(
            scheduled.start as usize,
            sequence.n_computed(),
            "a share that does not go on from the last one"
        );
        let n_known = scheduled.n_known();
        let step = StepCounts { n_known, n_drafts, n_made, n_accepted, n_pushed };
        sequence.advance(step, &mut self.pool);
        sequence.publish(&mut self.pool);
        // In flight, it has its drafts already, or its token is carried.
        if !sequence.is_in_flight() {
            sequence.set_drafts(if scheduled.sample { drafts } else { &[] });
        }
        let only_prompt = sequence.request.sampling.max_tokens == 0;
        let is_done = only_prompt && sequence.n_computed() == sequence.tokens().len();
        if scheduled.sample && reason.is_none() {
            self.continue_masks(i, now);
        }
        Ok(reason.or(is_done.then_some(FinishReason::Length)))
    }

    /// Notes that a sequence got no token because its masks were not ready: its last token is computed again
    /// with the same drafts.
    fn leave_out(&mut self, i: usize, answer: &Answer<'_>, now: Timestamp) {
        let (scheduled, sequence) = (answer.scheduled, &mut self.running[i]);
        let n_drafts = scheduled.n_drafts + scheduled.n_to_draft;
        self.counters.left_out += 1;
        let step = StepCounts { n_known: answer.n_settled(), n_drafts, ..StepCounts::default() };
        sequence.advance(step, &mut self.pool);
        sequence.publish(&mut self.pool);
        sequence.set_drafts(answer.batch.drafts(scheduled));
        sequence.await_masks(scheduled.masks.as_ref(), now);
    }

    /// Appends the output tokens up to the one that ends the sequence. Returns the reason of the end, if
    /// there is one, and the number of tokens appended.
    fn push_tokens(
        &mut self,
        i: usize,
        answer: &Answer<'_>,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) -> (Option<FinishReason>, usize) {
        let limit = self.admission.max_sequence_tokens();
        let sequence = &mut self.running[i];
        let mut n_pushed = 0;
        for token in answer.output.sampled(answer.sequence_idx) {
            sequence.push(token.chosen.token, now);
            n_pushed += 1;
            self.counters.output_tokens += 1;
            self.waiting.charge_output(&sequence.request.tenant);
            emit(Event::Token { sequence: answer.scheduled.id, token });
            if let Some(reason) = sequence.ending(limit) {
                return (Some(reason), n_pushed);
            }
        }
        (None, n_pushed)
    }

    /// Reports the sequence's results for the prompt, if no other sequence has reported them.
    fn note_prompt(&mut self, answer: &Answer<'_>, cached_tokens: u32, emit: &mut Emit<'_>) {
        let scheduled = answer.scheduled;
        let request = scheduled.id.request;
        let Some(progress) = self.requests.get_mut(&request).filter(|p| !p.prompt_done) else { return };
        let (start, end) = (scheduled.start as usize, scheduled.start as usize + answer.n_settled());
        if scheduled.sampling.prompt_logprobs.is_some() {
            // After a preemption the beginning is computed again but not reported again.
            for token in answer.output.prompt(answer.sequence_idx).skip(progress.n_prompt_reported - start) {
                emit(Event::PromptToken { request, token });
                progress.n_prompt_reported += 1;
            }
        }
        if end < scheduled.n_prompt as usize {
            return;
        }
        progress.prompt_done = true;
        emit(Event::PromptDone { request, cached_tokens });
    }

    /// Removes the ended sequences.
    fn retire_ended(&mut self, now: Timestamp, emit: &mut Emit<'_>) {
        if !self.has_ending {
            return self.report_ended(emit);
        }
        let leaving = self.running.extract_if(.., |sequence| sequence.state.ending.is_some());
        for sequence in leaving {
            let reason = sequence.state.ending.unwrap_or(FinishReason::Error);
            self.ended.push(sequence.finish(reason, &mut self.pool, now));
        }
        self.report_ended(emit);
    }

    /// Reports the ended sequences.
    pub(super) fn report_ended(&mut self, emit: &mut Emit<'_>) {
        let mut ended = std::mem::take(&mut self.ended);
        for sequence in ended.drain(..) {
            self.retire(sequence, emit);
        }
        self.ended = ended;
    }

    /// Ends the requests that failed, with all their continuations.
    pub(super) fn fail_requests(&mut self, now: Timestamp, emit: &mut Emit<'_>) {
        let mut failed = std::mem::take(&mut self.failed);
        for (request, failure) in failed.drain(..) {
            self.fail_request(request, failure, now, emit);
        }
        self.failed = failed;
    }

    fn fail_request(&mut self, request: RequestId, failure: Failure, now: Timestamp, emit: &mut Emit<'_>) {
        // Two sequences of one request may have failed.
        let Some(progress) = self.requests.remove(&request) else { return };
        for sequence in self.running.extract_if(.., |sequence| sequence.request.id == request) {
            sequence.finish(FinishReason::Error, &mut self.pool, now);
        }
        for index in 0..progress.request.n_sequences() {
            let rank = Rank { priority: self.priority(&progress.request), arrival: progress.arrival, index };
            self.waiting.remove(&progress.request.tenant, rank);
            self.paused.remove(&SequenceId { request, index });
            self.idle_beams.remove(&SequenceId { request, index });
        }
        emit(Event::Failed { request, failure });
    }
}
