//! Judges whether a new version is worse than the old one, by the outcomes of both in one stage. Does not
//! know stages.

use super::plan::Plan;
use crate::time::Nanos;

/// Reason why a new version was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Requests of the new version fail more often.
    Failures,
    /// First tokens of the new version take longer.
    SlowFirstTokens,
    /// Further tokens of the new version take longer.
    SlowTokens,
    /// A golden prompt had a wrong answer.
    Golden,
    /// The operator rolled it back.
    Operator,
}

impl Cause {
    /// Name in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::SlowFirstTokens => "slow first tokens",
            Self::SlowTokens => "slow tokens",
            Self::Golden => "golden mismatch",
            Self::Operator => "operator",
        }
    }
}

/// End of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was answered, or its client disconnected.
    Answered(Times),
    /// The request failed for a reason that is not the client's.
    Failed,
}

/// Durations of an answer; `None` if not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Time until its first token.
    pub first_token: Option<Nanos>,
    /// Mean time between two tokens.
    pub per_token: Option<Nanos>,
}

/// A geometric mean, which one answer of a thousand times the usual time changes little.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum_of_logarithms: f64,
    n: u64,
}

impl Mean {
    fn note(&mut self, time: Option<Nanos>) {
        if let Some(time) = time {
            self.sum_of_logarithms += (time.0.max(1) as f64).ln();
            self.n += 1;
        }
    }

    /// Mean in nanoseconds, if it has at least `n` values.
    fn of_at_least(&self, n: u32) -> Option<f64> {
        (self.n >= u64::from(n)).then(|| (self.sum_of_logarithms / self.n as f64).exp())
    }
}

/// Outcomes of one version.
#[derive(Debug, Default)]
pub(super) struct Seen {
    n_ended: u64,
    n_failed: u64,
    first_token: Mean,
    per_token: Mean,
}

impl Seen {
    pub fn note(&mut self, outcome: Outcome) {
        self.n_ended += 1;
        match outcome {
            Outcome::Failed => self.n_failed += 1,
            Outcome::Answered(times) => {
                self.first_token.note(times.first_token);
                self.per_token.note(times.per_token);
            }
        }
    }

    pub fn n_ended(&self) -> u64 {
        self.n_ended
    }
}

/// Reason why the new version must be rolled back, if there is one.
pub(super) fn judge(plan: &Plan, old: &Seen, new: &Seen) -> Option<Cause> {
    if new.n_failed >= u64::from(plan.min_failures) {
        // new.n_failed / new.n_ended > old.n_failed / old.n_ended + excess / 100, without division.
        let (n_old, n_new) = (u128::from(old.n_ended.max(1)), u128::from(new.n_ended));
        let own = u128::from(new.n_failed) * 100 * n_old;
        let allowed = u128::from(old.n_failed) * 100 * n_new
            + u128::from(plan.max_failure_excess_percent) * n_old * n_new;
        if own > allowed {
            return Some(Cause::Failures);
        }
    }
    let is_slower = |old: &Mean, new: &Mean, min_excess: f64| {
        let both = old.of_at_least(plan.min_outcomes).zip(new.of_at_least(plan.min_outcomes));
        both.is_some_and(|(old, new)| {
            new * 100.0 > old * f64::from(plan.max_slowness_percent) && new - old > min_excess
        })
    };
    let min_excess = plan.min_excess.0 as f64;
    if is_slower(&old.first_token, &new.first_token, min_excess) {
        return Some(Cause::SlowFirstTokens);
    }
    is_slower(&old.per_token, &new.per_token, min_excess / 100.0).then_some(Cause::SlowTokens)
}
