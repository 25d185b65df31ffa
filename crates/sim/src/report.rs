//! The report of a run, in bounded memory: latencies by the definitions of
//! [`latency`](throng_core::timeline::latency), reasons of ends, totals.

use std::collections::BTreeMap;

use serde::Serialize;
use throng_core::time::Nanos;
use throng_core::timeline::latency::{LatencyHistogram, LatencyStats, LatencySummary, Objective};

use crate::outcome::{EndReason, Observer, ReplicaSample, RequestOutcome, ScaleSample, Totals};

/// An observer that keeps histograms, and samples if the fleet takes any.
#[derive(Debug, Default)]
pub struct ReportBuilder {
    latencies: LatencyStats,
    queued: LatencyHistogram,
    ends: BTreeMap<EndReason, u64>,
    samples: Vec<ReplicaSample>,
    scaling: Vec<ScaleSample>,
    /// Requests that were sent earlier do not count.
    warm_up_ns: u64,
    first_sent_ns: Option<u64>,
    last_end_ns: u64,
    n_prompt: u64,
    n_output: u64,
    n_retries: u64,
    n_failovers: u64,
}

impl ReportBuilder {
    /// A builder whose goodput is judged by `objective`. Requests that are sent within `warm_up` do not
    /// count.
    pub fn new(objective: Objective, warm_up: Nanos) -> Self {
        Self { latencies: LatencyStats::new(objective), warm_up_ns: warm_up.0, ..Self::default() }
    }

    /// Latencies so far, with their whole distributions. Gaps include those of the warm-up.
    pub fn latencies(&self) -> &LatencyStats {
        &self.latencies
    }

    /// The report of a run with these totals.
    pub fn finish(self, totals: Totals) -> Report {
        let duration = Nanos(self.last_end_ns.saturating_sub(self.first_sent_ns.unwrap_or(0)));
        let per_second = |n: u64| if duration.0 == 0 { 0.0 } else { n as f64 / duration.as_secs_f64() };
        Report {
            duration_s: duration.as_secs_f64(),
            n_requests: self.latencies.n_requests,
            ends: self.ends,
            first_token: self.latencies.first_token.summary(),
            gap: self.latencies.gap.summary(),
            mean_gap: self.latencies.mean_gap.summary(),
            end_to_end: self.latencies.end_to_end.summary(),
            queued: self.queued.summary(),
            requests_per_second: per_second(self.latencies.n_whole),
            goodput: self.latencies.goodput(duration),
            good_share: self.latencies.n_good as f64 / self.latencies.n_requests.max(1) as f64,
            prompt_tokens_per_second: per_second(self.n_prompt),
            output_tokens_per_second: per_second(self.n_output),
            n_retries: self.n_retries,
            n_failovers: self.n_failovers,
            totals,
            samples: self.samples,
            scaling: self.scaling,
        }
    }
}

impl Observer for ReportBuilder {
    fn gap(&mut self, gap: Nanos) {
        self.latencies.gap.record(gap);
    }

    fn ended(&mut self, outcome: &RequestOutcome) {
        if outcome.sent_ns < self.warm_up_ns {
            return;
        }
        self.latencies.record(&outcome.latency);
        outcome.queued.into_iter().for_each(|queued| self.queued.record(queued));
        *self.ends.entry(outcome.end).or_default() += 1;
        let first = self.first_sent_ns.unwrap_or(u64::MAX).min(outcome.sent_ns);
        self.first_sent_ns = Some(first);
        self.last_end_ns = self.last_end_ns.max(outcome.ended().as_ns());
        self.n_prompt += u64::from(outcome.n_prompt);
        self.n_output += u64::from(outcome.n_output);
        self.n_retries += u64::from(outcome.n_retries);
        self.n_failovers += u64::from(outcome.n_failovers);
    }

    fn sampled(&mut self, sample: &ReplicaSample) {
        self.samples.push(*sample);
    }

    fn scaled(&mut self, sample: &ScaleSample) {
        self.scaling.push(*sample);
    }
}

/// The report of a run. Times are in milliseconds, at the clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Time from the first request to the last end.
    pub duration_s: f64,
    /// Number of requests that ended, without those of the warm-up.
    pub n_requests: u64,
    /// Number of ends by their reason.
    pub ends: BTreeMap<EndReason, u64>,
    /// Time to the first token.
    pub first_token: LatencySummary,
    /// Gaps between tokens, those of the warm-up included.
    pub gap: LatencySummary,
    /// Mean times between tokens, one for each answer.
    pub mean_gap: LatencySummary,
    /// Time to the end of whole answers.
    pub end_to_end: LatencySummary,
    /// Time from the gateway to the first step.
    pub queued: LatencySummary,
    /// Complete answers per second.
    pub requests_per_second: f64,
    /// Good answers per second.
    pub goodput: f64,
    /// Share of good answers among all requests.
    pub good_share: f64,
    /// Computed prompt tokens per second.
    pub prompt_tokens_per_second: f64,
    /// Output tokens per second.
    pub output_tokens_per_second: f64,
    /// Number of the clients' retries.
    pub n_retries: u64,
    /// Times that requests moved to another replica.
    pub n_failovers: u64,
    /// Totals of the whole run.
    pub totals: Totals,
    /// Samples of the replicas, in order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<ReplicaSample>,
    /// Decisions of the autoscaler, in order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<ScaleSample>,
}

impl Report {
    /// Mean share of the time that replicas were in a step.
    pub fn utilization(&self, n_replicas: usize) -> f64 {
        let total = self.totals.end_ns as f64 * n_replicas as f64;
        if total == 0.0 { 0.0 } else { self.totals.busy.0 as f64 / total }
    }
}
