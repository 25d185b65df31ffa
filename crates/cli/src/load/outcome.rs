//! The report of a load: latencies, rates and errors by kind.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::{LatencyStats, LatencySummary, Objective};

use super::client::Answered;

/// Maximum number of distinct kinds of errors.
const MAX_KINDS: usize = 64;

/// Counts and histograms of a running load.
#[derive(Debug)]
pub struct Outcomes {
    latencies: LatencyStats,
    errors: BTreeMap<String, u64>,
    warm_up: Nanos,
    n_not_sent: u64,
    n_prompt: u64,
    n_output: u64,
    first: Option<Timestamp>,
    last: Timestamp,
    max_late: Nanos,
}

impl Outcomes {
    /// Creates the outcomes without a request. Requests that are due within the warm-up do not count.
    pub fn new(objective: Objective, warm_up: Nanos) -> Self {
        Self {
            latencies: LatencyStats::new(objective),
            errors: BTreeMap::new(),
            warm_up,
            n_not_sent: 0,
            n_prompt: 0,
            n_output: 0,
            first: None,
            last: Timestamp::default(),
            max_late: Nanos(0),
        }
    }

    fn counts(&self, due: Timestamp) -> bool {
        due.as_ns() >= self.warm_up.0
    }

    /// A request could not be sent because too many were on their way.
    pub fn not_sent(&mut self, due: Timestamp) {
        self.n_not_sent += u64::from(self.counts(due));
    }

    /// Counts a request that was sent this much later than it was due.
    pub fn sent_late(&mut self, late: Nanos) {
        self.max_late = self.max_late.max(late);
    }

    /// A request has ended.
    pub fn ended(&mut self, answer: &Answered) {
        let due = answer.clock.sent();
        if !self.counts(due) {
            return;
        }
        self.latencies.record(&answer.clock.end(answer.end, answer.error.is_none()));
        answer.gaps.iter().for_each(|gap| self.latencies.gap.record(*gap));
        if let Some(kind) = &answer.error {
            let is_known = self.errors.contains_key(kind) || self.errors.len() < MAX_KINDS;
            *self.errors.entry(if is_known { kind.clone() } else { "other".into() }).or_default() += 1;
        }
        self.n_prompt += answer.n_prompt.unwrap_or(0);
        self.n_output += answer.n_output.unwrap_or(u64::from(answer.clock.n_tokens()));
        self.first = Some(self.first.map_or(due, |first| first.min(due)));
        self.last = self.last.max(answer.end);
    }

    /// Ends the load and returns its report.
    pub fn finish(self, offered: String) -> LoadReport {
        let duration = self.first.map_or(Nanos(0), |first| self.last.since(first));
        let per_second = |n: u64| if duration.0 == 0 { 0.0 } else { n as f64 / duration.as_secs_f64() };
        LoadReport {
            offered,
            duration_s: duration.as_secs_f64(),
            n_requests: self.latencies.n_requests,
            n_whole: self.latencies.n_whole,
            n_good: self.latencies.n_good,
            n_not_sent: self.n_not_sent,
            errors: self.errors,
            requests_per_second: per_second(self.latencies.n_whole),
            goodput: self.latencies.goodput(duration),
            prompt_tokens_per_second: per_second(self.n_prompt),
            output_tokens_per_second: per_second(self.n_output),
            first_token: self.latencies.first_token.summary(),
            gap: self.latencies.gap.summary(),
            mean_gap: self.latencies.mean_gap.summary(),
            end_to_end: self.latencies.end_to_end.summary(),
            max_sent_late_ms: self.max_late.as_ms_f64(),
        }
    }
}

/// The report of a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// Description of the offered load.
    pub offered: String,
    /// Time from the first request that counts to the last end.
    pub duration_s: f64,
    /// Number of requests after the warm-up.
    pub n_requests: u64,
    /// Number of complete answers.
    pub n_whole: u64,
    /// Number of whole answers within the objective.
    pub n_good: u64,
    /// Number of requests that were not sent because too many were on their way.
    pub n_not_sent: u64,
    /// Number of errors by kind.
    pub errors: BTreeMap<String, u64>,
    /// Complete answers per second.
    pub requests_per_second: f64,
    /// Good answers per second.
    pub goodput: f64,
    /// Prompt tokens a second, as the server counts them.
    pub prompt_tokens_per_second: f64,
    /// Output tokens per second.
    pub output_tokens_per_second: f64,
    /// Time to the first token.
    pub first_token: LatencySummary,
    /// Times between tokens.
    pub gap: LatencySummary,
    /// Mean times between tokens, one for each answer.
    pub mean_gap: LatencySummary,
    /// Time to the end of whole answers.
    pub end_to_end: LatencySummary,
    /// Longest delay between the time at which a request was due and the time at which it was sent.
    pub max_sent_late_ms: f64,
}

impl LoadReport {
    /// Remarks about failures, one for each kind.
    pub fn remarks(&self) -> Vec<String> {
        let name = &self.offered;
        let failed = self.errors.iter().map(|(kind, n)| format!("{name}: {n} requests failed: {kind}"));
        let not_sent = (self.n_not_sent > 0).then_some(self.n_not_sent);
        let not_sent = not_sent.map(|n| format!("{name}: {n} requests were not sent: --max-in-flight"));
        failed.chain(not_sent).collect()
    }

    /// Good answers as a share of all requests, those that were not sent included.
    pub fn good_share(&self) -> f64 {
        self.n_good as f64 / (self.n_requests + self.n_not_sent).max(1) as f64
    }
}

/// A table with a row for each report.
pub fn table(reports: &[LoadReport]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let names = [
        "load",
        "requests/s",
        "good/s",
        "out tok/s",
        "first token p50",
        "p99",
        "gap p50",
        "p99",
        "end p50",
        "p99",
        "errors",
    ];
    table.set_header(names.map(|name| Cell::new(name).set_alignment(CellAlignment::Right)));
    for report in reports {
        let LoadReport { first_token, gap, end_to_end, .. } = report;
        let ms = |value: f64| format!("{value:.1} ms");
        let n_errors = report.errors.values().sum::<u64>() + report.n_not_sent;
        let cells = [
            report.offered.clone(),
            format!("{:.2}", report.requests_per_second),
            format!("{:.2}", report.goodput),
            format!("{:.0}", report.output_tokens_per_second),
            ms(first_token.p50_ms),
            ms(first_token.p99_ms),
            ms(gap.p50_ms),
            ms(gap.p99_ms),
            ms(end_to_end.p50_ms),
            ms(end_to_end.p99_ms),
            n_errors.to_string(),
        ];
        table.add_row(cells.map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right)));
    }
    table
}
