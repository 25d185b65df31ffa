//! A roll-out of a new model behind an alias: runs the decisions of `throng_core` with a clock, and logs
//! them. Does not know requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use throng_core::fleet::rollout::{Outcome, Plan, Progress, Rollout, Times, Version};
use throng_core::time::{Nanos, Timestamp};
use tokio::time::Instant;

use throng_metering::metrics::AliasMetrics;
use throng_metering::observation::RequestReport;

/// A prompt with the expected continuation at temperature 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Golden {
    /// The prompt of a text completion: a text or token ids.
    pub prompt: Value,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// Field of a choice that is compared: `text` or `token_ids`.
    pub field: &'static str,
    /// Expected value.
    pub expected: Value,
}

/// A roll-out, running or ended.
#[derive(Debug)]
pub(crate) struct RunningRollout {
    /// Name of the alias.
    pub alias: String,
    /// Name of the new model.
    pub model: String,
    /// Golden prompts with the expected answers.
    pub golden: Vec<Golden>,
    decided: Mutex<Rollout>,
    origin: Instant,
    metrics: AliasMetrics,
}

/// Report to a roll-out about the end of a request.
#[derive(Debug)]
pub(crate) struct Ticket {
    rollout: Arc<RunningRollout>,
    version: Version,
}

/// State of a roll-out, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RolloutStatus {
    /// `running`, `completed` or `rolled back`.
    pub state: &'static str,
    /// Running stage, counted from zero.
    pub stage: Option<usize>,
    /// Percentage of requests for the new version.
    pub percent: u32,
    /// Reason why it was rolled back.
    pub cause: Option<&'static str>,
}

impl RunningRollout {
    /// Creates a roll-out that begins now, from a checked plan.
    pub fn new(
        (alias, model): (String, String),
        plan: Plan,
        golden: Vec<Golden>,
        metrics: &AliasMetrics,
    ) -> Self {
        tracing::warn!(alias, model, stages = ?plan.stages, "audit: a roll-out begins");
        let decided = Mutex::new(Rollout::new(Arc::new(plan), Timestamp::from_ns(0)));
        let this = Self { alias, model, golden, decided, origin: Instant::now(), metrics: metrics.clone() };
        this.metrics.rollout_percent(&this.alias, &this.model, this.status().percent);
        this
    }

    /// Ticket for a request at `point`; `None` once the roll-out has been rolled back.
    pub fn ticket_at(self: &Arc<Self>, point: u64) -> Option<Ticket> {
        let mut version = None;
        self.decide(|rollout, now| {
            rollout.look(now);
            let is_back = matches!(rollout.progress(), Progress::RolledBack(_));
            version = (!is_back).then(|| rollout.version_at(point));
        });
        Some(Ticket { rollout: self.clone(), version: version? })
    }

    /// Whether the roll-out is still running.
    pub fn is_running(&self) -> bool {
        matches!(self.lock().progress(), Progress::Running { .. })
    }

    /// Notes whether the golden answers of the new version were right.
    pub fn golden(&self, is_right: bool) {
        self.decide(|rollout, now| rollout.golden(is_right, now));
    }

    /// Rolls back at the operator's request.
    pub fn abort(&self) {
        self.decide(|rollout, _| rollout.abort());
    }

    /// State of the roll-out.
    pub fn status(&self) -> RolloutStatus {
        let rollout = self.lock();
        let (state, stage, cause) = match rollout.progress() {
            Progress::Running { stage } => ("running", Some(stage), None),
            Progress::Completed => ("completed", None, None),
            Progress::RolledBack(cause) => ("rolled back", None, Some(cause.name())),
        };
        RolloutStatus { state, stage, percent: rollout.percent(), cause }
    }

    /// Makes a decision and logs the changes.
    fn decide(&self, decide: impl FnOnce(&mut Rollout, Timestamp)) {
        let mut rollout = self.lock();
        let before = (rollout.progress(), rollout.percent());
        decide(&mut rollout, Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0));
        let (progress, percent) = (rollout.progress(), rollout.percent());
        drop(rollout);
        if before == (progress, percent) {
            return;
        }
        let (alias, model) = (&self.alias, &self.model);
        self.metrics.rollout_percent(alias, model, percent);
        match progress {
            Progress::Running { stage } => {
                tracing::warn!(alias, model, stage, percent, "audit: a roll-out goes on");
            }
            Progress::Completed => {
                self.metrics.rollout_ended(alias, model, "completed");
                tracing::warn!(alias, model, "audit: a roll-out is completed");
            }
            Progress::RolledBack(cause) => {
                self.metrics.rollout_ended(alias, model, cause.name());
                tracing::error!(alias, model, cause = cause.name(), "audit: a roll-out is rolled back");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rollout> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// The new model, if the request is sent to it.
    pub fn new_model(&self) -> Option<&str> {
        (self.version == Version::New).then_some(self.rollout.model.as_str())
    }

    /// Notes that the version could not answer.
    pub fn failed(self) {
        self.ended(Outcome::Failed);
    }

    /// Notes the end of the request. Errors of the request itself do not count against the version.
    pub fn over(self, report: &RequestReport) {
        let generation = report.generation.as_ref();
        let has_failed = report.status.is_some_and(|status| status >= 500)
            || generation.is_some_and(|generation| generation.outcome == "error");
        if has_failed {
            return self.ended(Outcome::Failed);
        }
        let Some(generation) = generation.filter(|generation| generation.cache != Some("hit")) else {
            return;
        };
        let n_tokens = generation.output_tokens / generation.n_choices.max(1) as u64;
        let n_gaps = u32::try_from(n_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let decode = generation.last_token.zip(generation.first_token);
        let decode = decode.map(|(last, first)| last.saturating_sub(first));
        let per_token = decode.filter(|_| n_gaps > 0).map(|decode: Duration| (decode / n_gaps).into());
        let first_token = generation.first_token.map(Nanos::from);
        self.ended(Outcome::Answered(Times { first_token, per_token }));
    }

    fn ended(self, outcome: Outcome) {
        self.rollout.decide(|rollout, now| rollout.ended(self.version, outcome, now));
    }
}
