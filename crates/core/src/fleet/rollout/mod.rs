//! Moves an alias's requests to a new version of a model by stages, and rolls back at once when it fails more
//! often, is slower, or answers a golden prompt wrongly. The caller reports outcomes and times. Does not know
//! models and requests.

mod judgement;
mod plan;

use std::sync::Arc;

pub use judgement::{Cause, Outcome, Times};
use judgement::{Seen, judge};
pub use plan::{InvalidPlan, MAX_STAGES, Plan, Stage};

use crate::time::Timestamp;

/// Version of the model that serves a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The version that had all requests before.
    Old,
    /// The version that is rolled out.
    New,
}

/// Progress of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The new version has the share of this stage.
    Running {
        /// Index of the stage, from zero.
        stage: usize,
    },
    /// The new version has all requests.
    Completed,
    /// The old version has all requests again, for this reason.
    RolledBack(Cause),
}

/// A roll-out, which no longer changes once it is completed or rolled back.
#[derive(Debug)]
pub struct Rollout {
    plan: Arc<Plan>,
    progress: Progress,
    /// Time at which the stage began.
    since: Timestamp,
    /// Whether the new version's golden answers were right at least once.
    is_proven: bool,
    /// Outcomes of the versions in this stage.
    old: Seen,
    new: Seen,
}

impl Rollout {
    /// Creates the roll-out in its first stage.
    pub fn new(plan: Arc<Plan>, now: Timestamp) -> Self {
        let (old, new) = Default::default();
        Self { plan, progress: Progress::Running { stage: 0 }, since: now, is_proven: false, old, new }
    }

    /// Progress of the roll-out.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Share of requests, in percent, for the new version: 0 before its golden answers were right once, if
    /// the plan has golden prompts.
    pub fn percent(&self) -> u32 {
        match self.progress {
            Progress::Running { .. } if self.plan.has_golden && !self.is_proven => 0,
            Progress::Running { stage } => self.plan.stages.get(stage).map_or(100, |stage| stage.percent),
            Progress::Completed => 100,
            Progress::RolledBack(_) => 0,
        }
    }

    /// The version that serves a request at `point` of the whole range of `u64` (a hash of its session). The
    /// new version has the end of the range: a session that it serves stays with it while its share grows.
    pub fn version_at(&self, point: u64) -> Version {
        let place = (u128::from(point) * 100) >> 64;
        if place >= u128::from(100 - self.percent()) { Version::New } else { Version::Old }
    }

    /// Notes the outcome of a request.
    pub fn ended(&mut self, version: Version, outcome: Outcome, now: Timestamp) {
        match version {
            Version::Old => self.old.note(outcome),
            Version::New => self.new.note(outcome),
        }
        self.look(now);
    }

    /// Notes whether the golden answers of the new version were right.
    pub fn golden(&mut self, is_right: bool, now: Timestamp) {
        if !is_right {
            self.roll_back(Cause::Golden);
            return;
        }
        if !std::mem::replace(&mut self.is_proven, true) {
            // Its share begins now.
            self.since = now;
        }
        self.look(now);
    }

    /// Rolls back at the operator's request.
    pub fn abort(&mut self) {
        self.roll_back(Cause::Operator);
    }

    /// Judges the outcomes, and begins the next stage when it is time.
    pub fn look(&mut self, now: Timestamp) {
        let Progress::Running { stage } = self.progress else { return };
        if let Some(cause) = judge(&self.plan, &self.old, &self.new) {
            self.roll_back(cause);
            return;
        }
        let Some(current) = self.plan.stages.get(stage) else { return };
        let is_over = now.since(self.since) >= current.hold;
        // Without requests nothing is known: it waits, also for the old version's, as long as that has some.
        let n_needed = u64::from(self.plan.min_outcomes.max(self.plan.min_failures));
        let is_compared = current.percent == 100 || self.old.n_ended() >= n_needed;
        let is_known = self.new.n_ended() >= n_needed && is_compared && self.percent() > 0;
        if is_over && is_known {
            let is_last = stage + 1 == self.plan.stages.len();
            self.progress =
                if is_last { Progress::Completed } else { Progress::Running { stage: stage + 1 } };
            self.since = now;
            (self.old, self.new) = Default::default();
        }
    }

    fn roll_back(&mut self, cause: Cause) {
        if let Progress::Running { .. } = self.progress {
            self.progress = Progress::RolledBack(cause);
        }
    }
}
