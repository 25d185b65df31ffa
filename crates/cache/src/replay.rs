//! Replays a kept answer as if it were generated now. Does not know its tenant.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use throng_core::request::FinishReason;
use throng_core::scheduling::batch::TokenLogprob;
use throng_fleet::replica::{Generation, ReplicaEvent, Timing, TokenReport};

/// Events of a complete answer.
#[derive(Debug)]
pub(super) struct KeptAnswer {
    pub events: Box<[ReplicaEvent]>,
    /// Bytes of the events in memory.
    pub n_bytes: u64,
}

/// Bytes of an event in memory.
pub(super) fn event_bytes(event: &ReplicaEvent) -> usize {
    let of_report = |report: &TokenReport| report.top.capacity() * size_of::<TokenLogprob>();
    size_of::<ReplicaEvent>()
        + match event {
            ReplicaEvent::Prompt { logprobs, .. } => {
                logprobs.iter().map(of_report).sum::<usize>() + logprobs.len() * size_of::<TokenReport>()
            }
            ReplicaEvent::Token { report, .. } => of_report(report),
            ReplicaEvent::Finished { .. } | ReplicaEvent::Failed { .. } => 0,
        }
}

/// Replay of a kept answer for one reader.
#[derive(Debug)]
pub(super) struct Replay {
    answer: Arc<KeptAnswer>,
    n_read: usize,
    /// For each continuation, the number of tokens read, and whether the reader needs no more of them.
    continuations: Vec<(u32, bool)>,
}

impl Replay {
    /// Replays an answer with `n` continuations from its beginning.
    pub fn new(answer: Arc<KeptAnswer>, n: u32) -> Self {
        Self { answer, n_read: 0, continuations: vec![(0, false); n as usize] }
    }

    /// Translates an event for the reader, with durations of zero; `None` for a token that is not needed.
    fn told(&mut self, event: ReplicaEvent) -> Option<ReplicaEvent> {
        match event {
            ReplicaEvent::Token { index, .. } => {
                let (n_tokens, is_aborted) = self.continuations.get_mut(index as usize)?;
                *n_tokens += u32::from(!*is_aborted);
                (!*is_aborted).then_some(event)
            }
            ReplicaEvent::Finished { index, reason, timing } => {
                let (n_read, is_aborted) = self.continuations.get(index as usize).copied()?;
                let n_output = if is_aborted { n_read } else { timing.n_output };
                let reason = if is_aborted { FinishReason::Abort } else { reason };
                Some(ReplicaEvent::Finished { index, reason, timing: Timing::immediate(n_output) })
            }
            ReplicaEvent::Prompt { .. } | ReplicaEvent::Failed { .. } => Some(event),
        }
    }
}

impl Stream for Replay {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        loop {
            let Some(event) = self.answer.events.get(self.n_read).cloned() else { return Poll::Ready(None) };
            self.n_read += 1;
            if let Some(event) = self.told(event) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

impl Generation for Replay {
    fn abort_continuation(&mut self, index: u32) {
        if let Some((_, is_aborted)) = self.continuations.get_mut(index as usize) {
            *is_aborted = true;
        }
    }
}
