//! Failover of one request over several replicas: the output that was passed on, whether another replica may
//! continue after a failure, and the rest of the request. Has no clock.

use std::sync::Arc;
use std::time::Duration;

use super::tried::{Retry, Tried};
use crate::fleet::replica::{ResumedContinuation, StreamEvent, Timing};
use crate::fleet::routing::ReplicaId;
use crate::request::{SamplingParams, TokenId};

/// Maximum number of replicas that may end under one request, each after a token of it. They do not count
/// as tried: processes end for reasons of their own, and a stream may outlive many.
const MAX_REPLICAS_OUTLIVED: usize = 16;

/// The progress of a request over its replicas. Times are since its arrival.
#[derive(Debug)]
pub struct Failover {
    /// The replicas that the request was submitted to, but for those that ended after a token.
    tried: Tried,
    n_outlived: usize,
    /// Whether a token has arrived since the last submission of the request.
    has_progressed: bool,
    is_prompt_reported: bool,
    continuations: Vec<Progress>,
    /// Time at which the request was submitted to its present replica.
    submitted: Duration,
}

/// Output of one continuation that has been passed on.
#[derive(Debug)]
struct Progress {
    index: u32,
    output: Vec<TokenId>,
    first_token: Option<Duration>,
    is_aborted: bool,
    has_ended: bool,
}

/// The rest of a request whose prompt has been computed and reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Rest {
    /// Sampling parameters, without reports of the prompt.
    pub sampling: Arc<SamplingParams>,
    /// The continuations that have not ended.
    pub continuations: Vec<ResumedContinuation>,
}

impl Failover {
    /// Creates the progress of a request of `n_continuations` that was submitted to the last of `tried`.
    pub fn new(n_continuations: u32, tried: Tried) -> Self {
        let progress = |index| Progress {
            index,
            output: Vec::new(),
            first_token: None,
            is_aborted: false,
            has_ended: false,
        };
        Self {
            tried,
            n_outlived: 0,
            has_progressed: false,
            is_prompt_reported: false,
            continuations: (0..n_continuations).map(progress).collect(),
            submitted: Duration::ZERO,
        }
    }

    /// Notes that the request was submitted to its replica only at `now`.
    pub fn submitted_at(&mut self, now: Duration) {
        self.submitted = now;
    }

    /// Output tokens of all continuations so far.
    pub fn n_output(&self) -> usize {
        self.continuations.iter().map(|continuation| continuation.output.len()).sum()
    }

    /// Notes that `replica` has failed, because it `has_ended` or for another reason. A stream whose replica
    /// has ended is always moved. A replica that fails before the first token may fail for many requests, so
    /// another attempt is then a retry.
    pub fn failed(&mut self, replica: ReplicaId, has_ended: bool, now: Duration) -> Retry {
        self.submitted = now;
        let has_progressed = std::mem::take(&mut self.has_progressed);
        if has_progressed && has_ended && self.n_outlived < MAX_REPLICAS_OUTLIVED {
            self.n_outlived += 1;
            self.tried.outlive(replica);
        } else if has_ended {
            self.tried.end(replica);
        }
        if has_progressed || has_ended { Retry::Free } else { Retry::Paid }
    }

    /// Whether a request may wait for a replica to come back after one has ended. A request that is pinned to
    /// a replica ends with it, and one that another model can answer goes to that model unless output has
    /// been passed on.
    pub fn may_wait(&self, has_ended: bool, is_pinned: bool, is_last_resort: bool) -> bool {
        has_ended && !is_pinned && (self.n_output() > 0 || is_last_resort)
    }

    /// Takes out the replicas that were tried, to try others.
    pub fn take_tried(&mut self) -> Tried {
        std::mem::take(&mut self.tried)
    }

    /// Puts back the replicas that were tried.
    pub fn set_tried(&mut self, tried: Tried) {
        self.tried = tried;
    }

    /// The rest of the request, for the next replica; `None` if no token has been reported and the whole
    /// request with `sampling` is submitted again.
    pub fn rest(&self, sampling: &Arc<SamplingParams>) -> Option<Rest> {
        if !self.is_prompt_reported {
            return None;
        }
        let live = self.continuations.iter().filter(|continuation| !continuation.has_ended);
        let resumed =
            live.map(|live| ResumedContinuation { index: live.index, output: live.output[..].into() });
        let mut sampling = sampling.clone();
        if sampling.prompt_logprobs.is_some() {
            Arc::make_mut(&mut sampling).prompt_logprobs = None;
        }
        Some(Rest { sampling, continuations: resumed.collect() })
    }

    /// Notes an event that arrived at `now`, and returns it with the times of the whole request; `None` if it
    /// was passed on before.
    pub fn note<E>(&mut self, event: StreamEvent<E>, now: Duration) -> Option<StreamEvent<E>> {
        match event {
            StreamEvent::Prompt { .. } => {
                (!std::mem::replace(&mut self.is_prompt_reported, true)).then_some(event)
            }
            StreamEvent::Token { index, ref report } => {
                let continuation = self.live(index)?;
                continuation.output.push(report.chosen.token);
                continuation.first_token.get_or_insert(now);
                self.has_progressed = true;
                Some(event)
            }
            StreamEvent::Finished { index, reason, timing } => {
                let delay = self.submitted;
                let continuation = self.live(index)?;
                continuation.has_ended = true;
                let timing = whole_timing(timing, delay, continuation.first_token);
                Some(StreamEvent::Finished { index, reason, timing })
            }
            StreamEvent::Failed { .. } => Some(event),
        }
    }

    /// Whether all continuations have ended.
    pub fn has_ended(&self) -> bool {
        self.continuations.iter().all(|continuation| continuation.has_ended)
    }

    /// Notes that a continuation needs no more tokens.
    pub fn abort(&mut self, index: u32) {
        if let Some(continuation) = self.live(index) {
            continuation.is_aborted = true;
        }
    }

    /// Continuations that were aborted and have not ended; they are aborted on the next replica too.
    pub fn aborted(&self) -> impl Iterator<Item = u32> {
        let aborted = self.continuations.iter().filter(|c| c.is_aborted && !c.has_ended);
        aborted.map(|continuation| continuation.index)
    }

    fn live(&mut self, index: u32) -> Option<&mut Progress> {
        let continuation = self.continuations.get_mut(index as usize)?;
        (!continuation.has_ended).then_some(continuation)
    }
}

/// The times of a continuation whose last replica was tried `delay` after the request arrived and measured
/// `timing`. Its first token was passed on after `first_token`, possibly from another replica.
fn whole_timing(timing: Timing, delay: Duration, first_token: Option<Duration>) -> Timing {
    if delay.is_zero() {
        return timing;
    }
    let timing = timing.delayed_by(delay);
    match first_token {
        Some(first) if first <= delay => Timing {
            first_step: None,
            first_token: Some(first),
            last_token: timing.last_token.or(Some(first)),
            ..timing
        },
        _ => timing,
    }
}
