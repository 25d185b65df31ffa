//! A request while a foreign engine answers it: what it uses, and what is told of it at its end, however it ends. Does not know bytes.

use std::sync::Arc;
use std::time::Duration;

use throng_core::request::FinishReason;
use throng_store::Outcome;
use tokio::time::Instant;

use super::events::Seen;
use super::model::ForeignModel;
use super::usage::{ReportedUsage, UsageCount};
use crate::caller::Caller;
use crate::dispatch::Placement;
use crate::observation::GenerationRecord;
use crate::replica::Timing;

/// A request that an engine answers. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Running {
    /// The request.
    pub caller: Arc<Caller>,
    /// Its model.
    pub model: Arc<ForeignModel>,
    /// `None` once the engine has failed.
    placement: Option<Placement>,
    count: UsageCount,
    n_choices: u64,
    n_ended: u64,
    at_length: bool,
    /// From the request's arrival until it was submitted.
    read: Duration,
    began: Instant,
    first_token: Option<Duration>,
    last_token: Option<Duration>,
}

impl Running {
    /// A request with so many choices that was submitted at `began`.
    pub fn new(
        caller: Arc<Caller>,
        model: Arc<ForeignModel>,
        placement: Placement,
        count: UsageCount,
        n_choices: u64,
        began: Instant,
    ) -> Self {
        let read = began - caller.arrived;
        Self {
            caller,
            model,
            placement: Some(placement),
            count,
            n_choices,
            n_ended: 0,
            at_length: false,
            read,
            began,
            first_token: None,
            last_token: None,
        }
    }

    /// Notes an event of so many bytes.
    pub fn see(&mut self, seen: &Seen, n_bytes: usize) {
        let Seen::Part { n_tokens, n_ended, at_length, usage, is_only_usage } = *seen else { return };
        self.count.bytes(n_bytes);
        if !is_only_usage {
            let now = self.began.elapsed();
            if let Some(before) = self.last_token {
                self.model.metrics.token_gap(now.saturating_sub(before));
            }
            self.first_token.get_or_insert(now);
            self.last_token = Some(now);
            self.count.part(n_tokens);
            self.placement.iter_mut().for_each(Placement::token);
        }
        self.n_ended += u64::from(n_ended);
        self.at_length |= at_length;
        usage.into_iter().for_each(|usage| self.count.report(usage));
    }

    /// Notes a whole answer of so many bytes, which is estimated to have so many tokens.
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

    /// It has ended well.
    pub fn end(&mut self) {
        self.count.end(if self.at_length { Outcome::Length } else { Outcome::Stop });
    }

    /// The engine has failed.
    pub fn fail(&mut self) {
        self.count.end(Outcome::Error);
        self.placement.take().into_iter().for_each(Placement::failed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (usage, outcome) = (self.count.usage(), self.count.outcome());
        if self.count.is_absurd() {
            let (request, model) = (self.caller.id_text(), self.model.id());
            tracing::warn!(
                request,
                model,
                "an engine reports more tokens than there can be: they are estimated"
            );
        }
        let timing = Timing {
            first_step: None,
            first_token: self.first_token,
            last_token: self.last_token,
            end: self.began.elapsed(),
            n_output: u32::try_from(usage.completion_tokens).unwrap_or(u32::MAX),
        };
        let n_computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens) as usize;
        let metrics = &self.model.metrics;
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
            self.model.id(),
            self.n_choices as usize,
            [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens],
            self.read,
            &timing,
            outcome,
        );
        self.caller.record_generation(record);
    }
}
