//! Events, loads and errors as they cross between processes, in both directions. Does not know requests and sockets.

use std::time::Duration;

use super::{
    Load, ReplicaError, ReplicaErrorKind, ReplicaEvent, Status, StepTokens, Timing, TokenReport, Totals,
};

/// An event as it is sent.
pub(crate) fn sent_event(event: ReplicaEvent) -> throng_wire::Event {
    match event {
        ReplicaEvent::Prompt { cached_tokens, logprobs } => {
            let logprobs = logprobs.iter().map(sent_report).collect();
            throng_wire::Event::Prompt { cached_tokens, logprobs }
        }
        ReplicaEvent::Token { index, report } => {
            throng_wire::Event::Token { index, report: sent_report(&report) }
        }
        ReplicaEvent::Finished { index, reason, timing } => {
            throng_wire::Event::Finished { index, reason: reason.into(), timing: sent_timing(&timing) }
        }
        ReplicaEvent::Failed(error) => throng_wire::Event::Failed { error: sent_error(error) },
    }
}

/// An event that was received; `None` for what is not for a reader.
pub(crate) fn received_event(event: throng_wire::Event) -> Option<ReplicaEvent> {
    Some(match event {
        throng_wire::Event::Prompt { cached_tokens, logprobs } => ReplicaEvent::Prompt {
            cached_tokens,
            logprobs: logprobs.into_iter().map(received_report).collect(),
        },
        throng_wire::Event::Token { index, report } => {
            ReplicaEvent::Token { index, report: received_report(report) }
        }
        throng_wire::Event::Finished { index, reason, timing } => {
            ReplicaEvent::Finished { index, reason: reason.into(), timing: received_timing(&timing) }
        }
        throng_wire::Event::Failed { error } => ReplicaEvent::Failed(received_error(error)),
        throng_wire::Event::Accepted | throng_wire::Event::Unknown => return None,
    })
}

fn sent_report(report: &TokenReport) -> throng_wire::Report {
    throng_wire::Report::new(report.chosen, &report.top)
}

fn received_report(report: throng_wire::Report) -> TokenReport {
    let (chosen, top) = report.parts();
    TokenReport { chosen, top }
}

fn sent_timing(timing: &Timing) -> throng_wire::Timing {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    throng_wire::Timing {
        first_step: timing.first_step.map(ns),
        first_token: timing.first_token.map(ns),
        last_token: timing.last_token.map(ns),
        end: ns(timing.end),
        n_output: timing.n_output,
    }
}

fn received_timing(timing: &throng_wire::Timing) -> Timing {
    let time = Duration::from_nanos;
    Timing {
        first_step: timing.first_step.map(time),
        first_token: timing.first_token.map(time),
        last_token: timing.last_token.map(time),
        end: time(timing.end),
        n_output: timing.n_output,
    }
}

/// An error as it is sent.
pub(crate) fn sent_error(error: ReplicaError) -> throng_wire::WireError {
    let kind = match error.kind {
        ReplicaErrorKind::Refused(refusal) => refusal.into(),
        ReplicaErrorKind::QueuedTooLong => throng_wire::ErrorKind::QueuedTooLong,
        ReplicaErrorKind::Draining => throng_wire::ErrorKind::Draining,
        ReplicaErrorKind::Unhealthy => throng_wire::ErrorKind::Unhealthy,
        ReplicaErrorKind::Stopped => throng_wire::ErrorKind::Stopped,
        ReplicaErrorKind::NothingAllowed => throng_wire::ErrorKind::NothingAllowed,
        ReplicaErrorKind::ConstraintTooComplex => throng_wire::ErrorKind::ConstraintTooComplex,
        // The rest is decided in front of replicas, never by one.
        ReplicaErrorKind::Failed
        | ReplicaErrorKind::Overloaded { .. }
        | ReplicaErrorKind::DeadlineTooShort { .. }
        | ReplicaErrorKind::TimedOut => throng_wire::ErrorKind::Failed,
    };
    throng_wire::WireError { kind, retryable: error.retryable, message: error.message }
}

/// An error that was received.
pub(crate) fn received_error(error: throng_wire::WireError) -> ReplicaError {
    let kind = match error.kind {
        throng_wire::ErrorKind::QueuedTooLong => ReplicaErrorKind::QueuedTooLong,
        throng_wire::ErrorKind::Draining => ReplicaErrorKind::Draining,
        throng_wire::ErrorKind::Unhealthy => ReplicaErrorKind::Unhealthy,
        throng_wire::ErrorKind::Stopped => ReplicaErrorKind::Stopped,
        throng_wire::ErrorKind::NothingAllowed => ReplicaErrorKind::NothingAllowed,
        throng_wire::ErrorKind::ConstraintTooComplex => ReplicaErrorKind::ConstraintTooComplex,
        kind => kind.refusal().map_or(ReplicaErrorKind::Failed, ReplicaErrorKind::Refused),
    };
    ReplicaError { kind, retryable: error.retryable, message: error.message }
}

/// A status as it is sent.
pub(crate) fn sent_status(status: Status, load: &Load, refuses: Option<ReplicaError>) -> throng_wire::Status {
    let health = match status {
        Status::Ready => throng_wire::Health::Ready,
        Status::Stalled => throng_wire::Health::Stalled,
        Status::Lost => throng_wire::Health::Lost,
    };
    throng_wire::Status { health, load: sent_load(load), refuses: refuses.map(sent_error), cache: None }
}

/// The health in a status that was received.
pub(crate) fn received_health(health: throng_wire::Health) -> Status {
    match health {
        throng_wire::Health::Ready => Status::Ready,
        throng_wire::Health::Stalled => Status::Stalled,
        throng_wire::Health::Lost => Status::Lost,
    }
}

fn sent_load(load: &Load) -> throng_wire::Load {
    let Load {
        n_running,
        n_waiting,
        n_paused,
        n_queued_tokens,
        machine,
        total_blocks,
        used_blocks,
        totals,
        step_tokens,
    } = *load;
    throng_wire::Load {
        n_running: n_running as u64,
        n_waiting: n_waiting as u64,
        n_paused: n_paused as u64,
        n_queued_tokens,
        machine: machine.map(Into::into),
        total_blocks: total_blocks as u64,
        used_blocks: used_blocks as u64,
        totals: throng_wire::Totals {
            steps: totals.steps,
            prompt_tokens: totals.prompt_tokens,
            output_tokens: totals.output_tokens,
            cache_query_tokens: totals.cache_query_tokens,
            cache_hit_tokens: totals.cache_hit_tokens,
            preemptions: totals.preemptions,
            drafts: totals.drafts,
            draft_tokens: totals.draft_tokens,
            accepted_draft_tokens: totals.accepted_draft_tokens,
            failed_requests: totals.failed_requests,
            executor_restarts: totals.executor_restarts,
        },
        step_tokens: throng_wire::StepTokens {
            bounds: step_tokens.bounds,
            counts: step_tokens.counts,
            sum: step_tokens.sum,
        },
    }
}

/// A load that was received.
pub(crate) fn received_load(load: &throng_wire::Load) -> Load {
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let throng_wire::Load { totals, step_tokens, .. } = load;
    Load {
        n_running: size(load.n_running),
        n_waiting: size(load.n_waiting),
        n_paused: size(load.n_paused),
        n_queued_tokens: load.n_queued_tokens,
        machine: load.machine.map(Into::into),
        total_blocks: size(load.total_blocks),
        used_blocks: size(load.used_blocks),
        totals: Totals {
            steps: totals.steps,
            prompt_tokens: totals.prompt_tokens,
            output_tokens: totals.output_tokens,
            cache_query_tokens: totals.cache_query_tokens,
            cache_hit_tokens: totals.cache_hit_tokens,
            preemptions: totals.preemptions,
            drafts: totals.drafts,
            draft_tokens: totals.draft_tokens,
            accepted_draft_tokens: totals.accepted_draft_tokens,
            failed_requests: totals.failed_requests,
            executor_restarts: totals.executor_restarts,
        },
        step_tokens: StepTokens {
            bounds: step_tokens.bounds,
            counts: step_tokens.counts,
            sum: step_tokens.sum,
        },
    }
}
