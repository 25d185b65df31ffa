//! The health of one replica: its state, and the outcomes and delays of its latest attempts. Does not know
//! the other replicas.

use super::config::HealthConfig;
use crate::time::{Nanos, Timestamp};

/// State of a replica in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The replica has not answered a probe since it was found, or since its connection was lost.
    Starting,
    /// The replica gets requests.
    Ready,
    /// Finishes its requests and gets none.
    Draining,
    /// Failed or was slow; gets no requests until a probe succeeds.
    Ejected,
}

impl State {
    /// All states of a replica.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ready, Self::Draining, Self::Ejected];

    /// Name in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
        }
    }
}

/// Reason why a replica was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Consecutive attempts failed.
    ConsecutiveFailures,
    /// Too many of the latest attempts failed.
    FailureRate,
    /// Much slower than the other replicas.
    Slow,
    /// The replica's step counter stood still while it had work.
    Stalled,
    /// A probe failed.
    FailedProbe,
}

impl Cause {
    /// Name in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConsecutiveFailures => "consecutive failures",
            Self::FailureRate => "failure rate",
            Self::Slow => "slow",
            Self::Stalled => "stalled",
            Self::FailedProbe => "failed probe",
        }
    }
}

/// Outcomes of attempts in one span of time.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    n_ended: u32,
    n_failed: u32,
}

/// Health of one replica.
#[derive(Debug)]
pub(super) struct Record {
    pub state: State,
    pub cause: Option<Cause>,
    /// Time at which the next probe is due; meaningless while one runs.
    pub probe_at: Timestamp,
    /// The number of the running probe; the results of other probes are void.
    pub probe: Option<u64>,
    /// Duration of the latest probe that was answered.
    pub probe_delay: Option<Nanos>,
    n_consecutive_failures: u32,
    /// Number of the current span, its counts, and the counts of the span before it.
    spans: (u64, Counts, Counts),
    /// Moving average of delays, in nanoseconds, and the number of delays in it.
    delay: (f64, u32),
    /// Ejections since the replica was last ready for as long as the longest ejection.
    n_ejections: u32,
    ready_since: Timestamp,
    steps: StepWatch,
}

/// The longest time between two heartbeats that counts as silence of the steps. A longer gap means that the
/// judging process itself did not run, and perhaps not the replica either.
const MAX_HEARTBEAT_GAP: Nanos = Nanos::from_ms(1_000);

/// Time for which the step counter has not changed although there was work.
#[derive(Debug)]
struct StepWatch {
    n_steps: u64,
    silence: Nanos,
    heard: Timestamp,
}

impl StepWatch {
    fn new(now: Timestamp) -> Self {
        Self { n_steps: 0, silence: Nanos(0), heard: now }
    }

    fn hear(&mut self, n_steps: u64, has_work: bool, now: Timestamp) {
        if has_work && n_steps == self.n_steps {
            self.silence.0 += now.since(self.heard).min(MAX_HEARTBEAT_GAP).0;
        } else {
            (self.n_steps, self.silence) = (n_steps, Nanos(0));
        }
        self.heard = now;
    }
}

impl Record {
    /// Creates the record of a new replica: its first probe is due at once.
    pub fn new(now: Timestamp) -> Self {
        Self {
            state: State::Starting,
            cause: None,
            probe_at: now,
            probe: None,
            probe_delay: None,
            n_consecutive_failures: 0,
            spans: Default::default(),
            delay: (0.0, 0),
            n_ejections: 0,
            ready_since: now,
            steps: StepWatch::new(now),
        }
    }

    /// The mean delay, if it has at least `min_outcomes` delays.
    pub fn mean_delay(&self, min_outcomes: u32) -> Option<f64> {
        (self.delay.1 >= min_outcomes).then_some(self.delay.0)
    }

    pub fn succeed(&mut self, delay: Option<Nanos>, config: &HealthConfig, now: Timestamp) {
        self.n_consecutive_failures = 0;
        self.count(false, config, now);
        if let Some(delay) = delay {
            let (mean, n) = self.delay;
            let weight = 1.0 / f64::from((n + 1).min(config.min_outcomes.max(1)));
            self.delay = (mean + weight * (delay.0 as f64 - mean), n.saturating_add(1));
        }
    }

    /// Notes a failure; returns the reason if the replica must be ejected for it.
    pub fn fail(&mut self, config: &HealthConfig, now: Timestamp) -> Option<Cause> {
        self.n_consecutive_failures += 1;
        self.count(true, config, now);
        let (_, present, before) = self.spans;
        let (n_ended, n_failed) = (present.n_ended + before.n_ended, present.n_failed + before.n_failed);
        if self.n_consecutive_failures >= config.max_consecutive_failures {
            return Some(Cause::ConsecutiveFailures);
        }
        let is_too_often = n_failed >= config.min_failures
            && n_ended >= config.min_outcomes
            && u64::from(n_failed) * 100 > u64::from(n_ended) * u64::from(config.max_failure_percent);
        is_too_often.then_some(Cause::FailureRate)
    }

    /// Whether its steps stand still although it has work.
    pub fn is_stalled(
        &mut self,
        n_steps: u64,
        has_work: bool,
        config: &HealthConfig,
        now: Timestamp,
    ) -> bool {
        self.steps.hear(n_steps, has_work, now);
        self.steps.silence > config.max_step_silence
    }

    pub fn be_ready(&mut self, config: &HealthConfig, now: Timestamp) {
        self.state = State::Ready;
        self.cause = None;
        self.ready_since = now;
        self.probe_at = now + config.probe_interval;
        self.forget();
        (self.steps.silence, self.steps.heard) = (Nanos(0), now);
    }

    /// Ejects the replica, for twice as long as the last time if that was not long ago.
    pub fn eject(&mut self, cause: Cause, config: &HealthConfig, now: Timestamp) {
        if self.state == State::Ready && now.since(self.ready_since) >= config.max_ejection {
            self.n_ejections = 0;
        }
        let doubled = config.ejection.0.checked_shl(self.n_ejections.min(32)).unwrap_or(u64::MAX);
        self.n_ejections += 1;
        self.state = State::Ejected;
        self.cause = Some(cause);
        self.probe_at = now + Nanos(doubled.min(config.max_ejection.0));
        self.probe = None;
        self.forget();
    }

    /// Stops new requests; the result of a running probe no longer counts.
    pub fn drain(&mut self) {
        (self.state, self.probe) = (State::Draining, None);
    }

    /// Notes that the connection was lost or the replica started again: it must answer a probe first.
    pub fn start_again(&mut self, now: Timestamp) {
        (self.state, self.cause, self.probe_at, self.probe) = (State::Starting, None, now, None);
        self.probe_delay = None;
        self.forget();
    }

    fn forget(&mut self) {
        self.n_consecutive_failures = 0;
        self.spans = Default::default();
        self.delay = (0.0, 0);
    }

    fn count(&mut self, has_failed: bool, config: &HealthConfig, now: Timestamp) {
        let number = now.as_ns() / config.window.0.max(1);
        if number != self.spans.0 {
            let before = if number == self.spans.0 + 1 { self.spans.1 } else { Counts::default() };
            self.spans = (number, Counts::default(), before);
        }
        self.spans.1.n_ended += 1;
        self.spans.1.n_failed += u32::from(has_failed);
    }
}
