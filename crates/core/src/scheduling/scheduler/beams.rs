//! Beam search over steps: each beam is a sequence, which waits for the others after each token; once all
//! beams have their next tokens, the sequences are redistributed among the new beams. Does not choose
//! beams.

use super::{Emit, Event, Scheduler};
use crate::request::{FinishReason, Request, RequestId, SequenceId};
use crate::scheduling::batch::StepOutput;
use crate::scheduling::beam_search::{Beams, NextBeam};
use crate::scheduling::sequence::{Running, Sequence, Waiting};
use crate::time::Timestamp;
use crate::timeline::Timeline;

/// Beam search of a request.
#[derive(Debug)]
pub(super) struct BeamProgress {
    pub(super) beams: Beams,
    /// Timeline of the request as a whole; its tokens are those of a beam.
    timeline: Option<Timeline>,
}

impl BeamProgress {
    /// Begins the beam search of a request, if it has one. A sequence has at most `max_sequence_tokens`
    /// tokens.
    pub(super) fn new(request: &Request, max_sequence_tokens: usize) -> Option<Self> {
        let n_most = max_sequence_tokens.saturating_sub(request.prompt.len());
        let beams = Beams::new(request.beam_search()?, &request.sampling, n_most);
        Some(Self { beams, timeline: None })
    }
}

impl Scheduler {
    /// Notes a step's result for running sequence `i`; `false` if that is not a beam.
    pub(super) fn report_beam(&mut self, i: usize, output: &StepOutput, sequence_idx: usize) -> bool {
        let sequence = &self.running[i];
        let id = sequence.id();
        let Some(search) = self.requests.get_mut(&id.request).and_then(|p| p.beams.as_mut()) else {
            return false;
        };
        if let Some(token) = output.sampled(sequence_idx).next() {
            search.timeline.get_or_insert(sequence.timeline);
            search.beams.report(id.index, token.top);
            if search.beams.is_step_complete() {
                self.complete_beams.push(id.request);
            }
            self.counters.output_tokens += 1;
            self.waiting.charge_output(&sequence.request.tenant);
        }
        true
    }

    /// Whether a sequence is a beam that waits for the other beams and has nothing to compute.
    pub(super) fn awaits_beams(&self, id: SequenceId) -> bool {
        let search = self.requests.get(&id.request).and_then(|progress| progress.beams.as_ref());
        search.is_some_and(|search| search.beams.has_reported(id.index))
    }

    /// Queues a sequence that has released its blocks, or keeps it aside if it waits for other beams.
    pub(super) fn wait_again(&mut self, sequence: Sequence<Waiting>) {
        if self.awaits_beams(sequence.id()) {
            self.idle_beams.insert(sequence.id(), sequence);
        } else {
            self.waiting.put_back(sequence);
        }
    }

    /// Index of the last running sequence that only waits for other beams.
    pub(super) fn last_idle_running(&self) -> Option<usize> {
        let is_idle = |s: &Sequence<Running>| {
            s.n_missing() == 0 && s.awaits_masks_since().is_none() && !s.is_restoring()
        };
        self.running.iter().rposition(is_idle)
    }

    /// Advances the searches whose last beam the step completed.
    pub(super) fn advance_beams(&mut self, now: Timestamp, emit: &mut Emit<'_>) {
        let mut complete = std::mem::take(&mut self.complete_beams);
        for request in complete.drain(..) {
            // Gone if it was aborted or another of its sequences failed.
            let Some(progress) = self.requests.get_mut(&request) else { continue };
            let Some(search) = &mut progress.beams else { continue };
            if let Some(timeline) = &mut search.timeline {
                timeline.note_token(now);
            }
            let before: Vec<u32> = search.beams.indices().collect();
            let next = search.beams.advance();
            match search.beams.is_done() {
                true => self.end_beams(request, now, emit),
                false => self.divide_sequences(request, &before, &next, now),
            }
        }
        self.complete_beams = complete;
    }

    /// Redistributes the sequences of the beams `before` among the beams `next`. Beams whose index is not
    /// their parent's come first, while the parent still has only the common tokens.
    fn divide_sequences(&mut self, request: RequestId, before: &[u32], next: &[NextBeam], now: Timestamp) {
        for beam in next.iter().filter(|beam| beam.index != beam.parent) {
            match before.contains(&beam.index) {
                true => self.replace_beam(request, beam),
                false => self.add_beam(request, beam),
            }
        }
        for beam in next.iter().filter(|beam| beam.index == beam.parent) {
            let id = SequenceId { request, index: beam.index };
            if let Some(i) = self.running_idx(id) {
                self.running[i].push_beam_token(beam.token);
            } else if let Some(mut sequence) = self.idle_beams.remove(&id) {
                sequence.push_beam_token(beam.token);
                self.waiting.put_back(sequence);
            }
        }
        for &index in before.iter().filter(|&&index| next.iter().all(|beam| beam.index != index)) {
            self.drop_beam(SequenceId { request, index }, now);
        }
    }

    /// Turns a beam that ends into one that continues. If both run, it keeps its place and takes its parent's
    /// blocks; otherwise it waits, and finds the blocks in the cache.
    fn replace_beam(&mut self, request: RequestId, beam: &NextBeam) {
        let id = SequenceId { request, index: beam.index };
        let parent = SequenceId { request, index: beam.parent };
        match (self.running_idx(id), self.running_idx(parent)) {
            (Some(i), Some(parent)) => {
                if let Ok([sequence, parent]) = self.running.get_disjoint_mut([i, parent]) {
                    sequence.continue_running_beam(parent, beam.token, &mut self.pool);
                }
            }
            (running, _) => {
                let sequence = match running {
                    Some(i) => {
                        self.counters.preemptions += 1;
                        Some(self.running.remove(i).preempt(&mut self.pool))
                    }
                    None => self.idle_beams.remove(&id),
                };
                let Some(mut sequence) = sequence else { return };
                match self.running_idx(parent) {
                    Some(parent) => sequence.continue_beam(&self.running[parent], beam.token),
                    None => sequence.continue_beam(&self.idle_beams[&parent], beam.token),
                }
                self.waiting.put_back(sequence);
            }
        }
    }

    /// Adds a sequence for a beam.
    fn add_beam(&mut self, request: RequestId, beam: &NextBeam) {
        let parent = SequenceId { request, index: beam.parent };
        let fork = match self.running_idx(parent) {
            Some(i) => self.running[i].fork_beam(beam.index, beam.token),
            None => self.idle_beams[&parent].fork_beam(beam.index, beam.token),
        };
        self.waiting.put_back(fork);
        if let Some(progress) = self.requests.get_mut(&request) {
            progress.n_live += 1;
        }
    }

    /// Ends a sequence that is no longer a beam.
    fn drop_beam(&mut self, id: SequenceId, now: Timestamp) {
        if let Some(i) = self.running_idx(id) {
            self.running.remove(i).finish(FinishReason::Abort, &mut self.pool, now);
        } else {
            self.idle_beams.remove(&id);
        }
        if let Some(progress) = self.requests.get_mut(&id.request) {
            progress.n_live -= 1;
        }
    }

    /// Reports the best beams as the request's continuations and removes the request.
    fn end_beams(&mut self, request: RequestId, now: Timestamp, emit: &mut Emit<'_>) {
        let Some(progress) = self.requests.remove(&request) else { return };
        for sequence in self.running.extract_if(.., |sequence| sequence.request.id == request) {
            sequence.finish(FinishReason::Abort, &mut self.pool, now);
        }
        self.idle_beams.retain(|id, _| id.request != request);
        let Some(BeamProgress { beams, timeline: Some(timeline) }) = progress.beams else { return };
        let mut finished: Vec<_> = beams.finished().map(Some).collect();
        for (index, so_far) in progress.request.continuations() {
            let sequence = SequenceId { request, index };
            // Where the vocabulary is smaller than the number of beams, there may be too few.
            let (tokens, reason) = finished
                .get_mut(index as usize)
                .and_then(Option::take)
                .unwrap_or_else(|| (Vec::new(), FinishReason::Length));
            let timeline = Timeline { output_tokens: tokens.len() as u32, finished: Some(now), ..timeline };
            for token in tokens.into_iter().skip(so_far.len()) {
                emit(Event::Token { sequence, token });
            }
            emit(Event::Finished { sequence, reason, timeline });
        }
    }

    fn running_idx(&self, id: SequenceId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id() == id)
    }
}
