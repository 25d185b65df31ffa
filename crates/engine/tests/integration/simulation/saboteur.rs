//! Bugs, planted around the core: each does to an input, to the effects, to the configuration or to the
//! executor what a mistake in the engine would have done.

use throng_core::request::FinishReason;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::{Nanos, Timestamp};
use throng_engine::{Effect, EngineConfig, Epoch, Input, StepDone, StreamEvent};

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A request is not paused although its reader is behind.
    LostPause,
    /// A request stays paused although its reader has caught up.
    LostResume,
    /// A step may take longer than its deadline.
    StepDeadlineNotChecked,
    /// A request may be paused for longer than its deadline.
    PauseDeadlineNotChecked,
    /// A drain waits for everything, whatever its deadline.
    DrainDeadlineNotChecked,
    /// Any number of requests may be paused.
    PausedNotBounded,
    /// An abort is applied twice: the end of a continuation is reported twice.
    AbortTwice,
    /// An abort is lost.
    AbortLost,
    /// The result of a step that was given up is taken for that of the step in flight.
    LateStepTakenAsCurrent,
    /// A step that failed is taken for one that succeeded.
    FailedStepTakenAsDone,
    /// What the executor before had in its cache is still looked for after it was replaced.
    CacheKeptAcrossExecutors,
    /// A new executor is used although it holds less.
    CapacityNotCompared,
    /// Executors are replaced however many hang.
    HangingNotCounted,
    /// A stream that failed is never closed.
    CloseLost,
    /// A stream is closed twice.
    CloseTwice,
    /// A request never leaves the queue's account.
    QueueLeak,
    /// Two readers get each other's events.
    SwappedStreams,
    /// A request is taken in although its id is in use.
    DuplicateTakenIn,
}

impl Bug {
    pub const ALL: [Self; 18] = [
        Self::LostPause,
        Self::LostResume,
        Self::StepDeadlineNotChecked,
        Self::PauseDeadlineNotChecked,
        Self::DrainDeadlineNotChecked,
        Self::PausedNotBounded,
        Self::AbortTwice,
        Self::AbortLost,
        Self::LateStepTakenAsCurrent,
        Self::FailedStepTakenAsDone,
        Self::CacheKeptAcrossExecutors,
        Self::CapacityNotCompared,
        Self::HangingNotCounted,
        Self::CloseLost,
        Self::CloseTwice,
        Self::QueueLeak,
        Self::SwappedStreams,
        Self::DuplicateTakenIn,
    ];

    /// The configuration as the core would follow it.
    pub fn spoil_config(self, config: EngineConfig) -> EngineConfig {
        match self {
            Self::PauseDeadlineNotChecked => EngineConfig { pause_timeout_ms: u64::MAX, ..config },
            Self::PausedNotBounded => EngineConfig { max_paused_requests: u32::MAX, ..config },
            Self::HangingNotCounted => EngineConfig { max_abandoned_threads: u32::MAX, ..config },
            _ => config,
        }
    }

    /// The input as the core would have read it; none when it is lost.
    pub fn spoil_input(self, input: Input, current: Epoch, capacity: ExecutorCapacity) -> Option<Input> {
        match (self, input) {
            (Self::LostPause, Input::ReaderBehind { .. })
            | (Self::LostResume, Input::ReaderCaughtUp(_))
            | (Self::AbortLost, Input::AbortSequence(_)) => None,
            (Self::DrainDeadlineNotChecked, Input::Drain { .. }) => Some(Input::Drain { deadline: None }),
            (Self::LateStepTakenAsCurrent, Input::StepDone(done)) => {
                Some(Input::StepDone(StepDone { epoch: current, ..done }))
            }
            (Self::FailedStepTakenAsDone, Input::StepDone(done)) => {
                Some(Input::StepDone(StepDone { result: Ok(()), ..done }))
            }
            (Self::CapacityNotCompared, Input::ExecutorMade { epoch, .. }) => {
                Some(Input::ExecutorMade { epoch, capacity })
            }
            (_, input) => Some(input),
        }
    }

    /// The time as the core would have looked at it when a step has this deadline.
    pub fn spoil_time(self, now: Timestamp, step_deadline: Option<Timestamp>) -> Timestamp {
        match step_deadline {
            Some(deadline) if self == Self::StepDeadlineNotChecked => now.min(deadline - Nanos(1)),
            _ => now,
        }
    }

    /// The effects as they would have been.
    pub fn spoil_effects(self, effects: &mut Vec<Effect>) {
        let is_abort = |effect: &Effect| {
            let Effect::Deliver { event, .. } = effect else { return false };
            matches!(event, StreamEvent::Finished { reason: FinishReason::Abort, .. })
        };
        match self {
            Self::AbortTwice => {
                if let Some(i) = effects.iter().position(is_abort) {
                    effects.insert(i + 1, effects[i].clone());
                }
            }
            Self::CloseLost => {
                effects.retain(|effect| !matches!(effect, Effect::Close { failure: Some(_), .. }));
            }
            Self::CloseTwice => {
                if let Some(i) = effects.iter().position(|effect| matches!(effect, Effect::Close { .. })) {
                    effects.insert(i + 1, effects[i].clone());
                }
            }
            Self::QueueLeak => effects.retain(|effect| !matches!(effect, Effect::LeaveQueue { .. })),
            Self::SwappedStreams => swap_streams(effects),
            Self::DuplicateTakenIn => {
                for effect in effects {
                    if let Effect::Refuse { request, .. } = *effect {
                        *effect = Effect::Accept(request);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The first two events of different requests change streams.
fn swap_streams(effects: &mut [Effect]) {
    let mut found = effects.iter_mut().filter_map(|effect| match effect {
        Effect::Deliver { request, event: StreamEvent::Token { .. } } => Some(request),
        _ => None,
    });
    let Some(first) = found.next() else { return };
    if let Some(second) = found.find(|second| **second != *first) {
        std::mem::swap(first, second);
    }
}
