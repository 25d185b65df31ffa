//! A request that an upstream engine is answering: its usage, and its records at the end, however it ends.
//! Does not know bytes.

use std::sync::Arc;
use std::time::Duration;

use throng_core::request::FinishReason;
use throng_fleet::dispatch::Placement;
use throng_fleet::replica::Timing;
use throng_fleet::upstream::{EventKind, ReportedUsage, Usage, UsageCount};
use throng_store::Outcome;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::limits::Charge;
use throng_metering::metrics::ModelMetrics;
use throng_metering::observation::GenerationRecord;

/// Parts of a request that an engine has begun to answer.
pub(super) struct StartedUpstream {
    /// The caller of the request.
    pub caller: Arc<Caller>,
    /// Counters of the model.
    pub metrics: Arc<ModelMetrics>,
    /// Id of the model.
    pub model_id: Box<str>,
    /// Part of the request in the engine's load.
    pub placement: Placement,
    /// Charge of the limits and the ledger.
    pub charge: Charge,
    /// Token counts of the request.
    pub count: UsageCount,
    /// Time of its submission.
    pub began: Instant,
}

/// A request that an engine is answering. Dropping it ends the request.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    /// The caller of the request.
    pub caller: Arc<Caller>,
    /// Counters of the model.
    pub metrics: Arc<ModelMetrics>,
    model_id: Box<str>,
    /// `None` once the engine has failed.
    placement: Option<Placement>,
    charge: Charge,
    count: UsageCount,
    outcome: Outcome,
    n_choices: u64,
    n_ended: u64,
    at_length: bool,
    /// Time from the request's arrival to its submission.
    read: Duration,
    began: Instant,
    first_token: Option<Duration>,
    last_token: Option<Duration>,
}

impl ActiveRequest {
    /// Creates it for a request that has reached an engine, with `n_choices` choices.
    pub fn new(begun: StartedUpstream, n_choices: u64) -> Self {
        let StartedUpstream { caller, metrics, model_id, placement, mut charge, count, began } = begun;
        charge.begin(0);
        let read = began - caller.arrived;
        Self {
            caller,
            metrics,
            model_id,
            placement: Some(placement),
            charge,
            count,
            outcome: Outcome::Abort,
            n_choices,
            n_ended: 0,
            at_length: false,
            read,
            began,
            first_token: None,
            last_token: None,
        }
    }

    /// Notes an event of `n_bytes` bytes.
    pub fn note_event(&mut self, kind: &EventKind, n_bytes: usize) {
        let EventKind::Part { n_tokens, n_ended, at_length, usage, is_only_usage } = *kind else { return };
        self.count.bytes(n_bytes);
        if !is_only_usage {
            let now = self.began.elapsed();
            if let Some(before) = self.last_token {
                self.metrics.token_gap(now.saturating_sub(before));
            }
            self.first_token.get_or_insert(now);
            self.last_token = Some(now);
            self.count.part(n_tokens);
            self.charge.token();
            self.placement.iter_mut().for_each(Placement::token);
        }
        self.n_ended += u64::from(n_ended);
        self.at_length |= at_length;
        usage.into_iter().for_each(|usage| self.count.report(usage));
    }

    /// Notes a complete answer of `n_bytes` bytes with an estimated number of tokens.
    pub fn whole(&mut self, n_bytes: usize, n_tokens: u64, usage: Option<ReportedUsage>, at_length: bool) {
        self.count.bytes(n_bytes);
        self.count.whole(n_tokens);
        self.last_token = Some(self.began.elapsed());
        self.at_length = at_length;
        usage.into_iter().for_each(|usage| self.count.report(usage));
        self.placement.iter_mut().for_each(Placement::token);
        self.end();
    }

    /// Whether all choices have ended.
    pub fn all_ended(&self) -> bool {
        self.n_ended >= self.n_choices
    }

    /// Notes a successful end.
    pub fn end(&mut self) {
        self.outcome = if self.at_length { Outcome::Length } else { Outcome::Stop };
    }

    /// Notes that the engine has failed within its answer, for this reason.
    pub fn fail_within(&mut self, reason: &'static str) {
        let request = self.caller.id_text();
        tracing::warn!(request, reason, "an engine failed in the middle of an answer");
        self.fail();
    }

    /// Notes that the engine has failed.
    pub fn fail(&mut self) {
        self.outcome = Outcome::Error;
        self.placement.take().into_iter().for_each(Placement::failed);
    }

    /// Counts that the client's stream ended with an error.
    pub fn count_stream_error(&self) {
        self.metrics.stream_error();
    }

    /// Usage so far, as it is charged at the end.
    pub fn usage(&self) -> Usage {
        self.count.usage()
    }

    /// Times of the tokens.
    pub fn timing(&self) -> Timing {
        Timing {
            first_step: None,
            first_token: self.first_token,
            last_token: self.last_token,
            end: self.began.elapsed(),
            n_output: u32::try_from(self.count.usage().completion_tokens).unwrap_or(u32::MAX),
            pulled_tokens: 0,
        }
    }

    /// Charges the tokens used.
    fn settle(&mut self, usage: Usage) {
        self.charge.begin(usage.prompt_tokens);
        self.charge.prompt(usage.prompt_tokens, usage.cached_tokens);
        self.charge.answer_ended(usage.completion_tokens, self.count.n_parts());
        self.charge.end(self.outcome);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let (usage, outcome) = (self.count.usage(), self.outcome);
        if self.count.is_absurd() {
            let (request, model) = (self.caller.id_text(), &*self.model_id);
            tracing::warn!(
                request,
                model,
                "an engine reports more tokens than there can be: they are estimated"
            );
        }
        let timing = self.timing();
        let n_computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens) as usize;
        let metrics = &self.metrics;
        let reason = match outcome {
            Outcome::Stop => Some(FinishReason::Stop { token: None }),
            Outcome::Length => Some(FinishReason::Length),
            Outcome::Error => Some(FinishReason::Error),
            Outcome::Abort | Outcome::Interrupted => None,
        };
        match reason {
            Some(reason) => metrics.finished(reason, &timing, n_computed),
            None => metrics.aborted(),
        }
        let record = GenerationRecord::of_upstream(
            &self.model_id,
            self.n_choices as usize,
            [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens],
            self.read,
            &timing,
            outcome,
        );
        self.caller.record_generation(record);
        self.settle(usage);
    }
}
