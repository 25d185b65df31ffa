//! A model's work for a request, recorded while it runs. Contains no text of prompts and answers.

use std::sync::Arc;
use std::time::Duration;

use throng_core::request::FinishReason;
use throng_fleet::replica::{Timing, TraceSource};
use throng_store::Outcome;

use super::GenerationReport;
use throng_cache::CacheUse;

/// Maximum number of a request's prompts whose timelines are kept.
const MAX_TRACED_PROMPTS: usize = 4;

/// Outcome of one choice. The request's outcome is the worst one: the last in the order of [`Outcome`].
fn outcome_of(reason: FinishReason) -> Outcome {
    match reason {
        FinishReason::Stop { .. } => Outcome::Stop,
        FinishReason::Length => Outcome::Length,
        FinishReason::Abort => Outcome::Abort,
        FinishReason::Error => Outcome::Error,
    }
}

/// Record of a model's work for a request.
#[derive(Debug, Default)]
pub struct GenerationRecord {
    model: String,
    n_choices: usize,
    n_running: usize,
    prompt_tokens: usize,
    cached_tokens: u64,
    output_tokens: u64,
    /// Time from the arrival of the request to its submission.
    read: Duration,
    first_step: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Option<Duration>,
    outcome: Outcome,
    traces: Vec<Arc<dyn TraceSource>>,
    /// Origin of the tokens, if they may be shared: tokens of a hit were not generated for this request,
    /// tokens of a coalesced request also for another one. The reader decides on their price.
    pub cache_use: Option<CacheUse>,
}

impl GenerationRecord {
    /// Creates the record of a request to `model` that was submitted `read` after its arrival.
    pub fn new(model: &str, n_choices: usize, prompt_tokens: usize, read: Duration) -> Self {
        Self {
            model: model.to_owned(),
            n_choices,
            n_running: n_choices,
            prompt_tokens,
            read,
            ..Default::default()
        }
    }

    /// Creates the record of a request that an upstream engine has answered, with the reported or estimated
    /// token counts.
    pub fn of_upstream(
        model: &str,
        n_choices: usize,
        [prompt_tokens, cached_tokens, output_tokens]: [u64; 3],
        read: Duration,
        timing: &Timing,
        outcome: Outcome,
    ) -> Self {
        let &Timing { first_token, last_token, .. } = timing;
        let record = Self::new(model, n_choices, prompt_tokens as usize, read);
        Self { n_running: 0, cached_tokens, output_tokens, first_token, last_token, outcome, ..record }
    }

    /// Records a computed prompt.
    pub fn prompt(&mut self, cached_tokens: u32) {
        self.cached_tokens += u64::from(cached_tokens);
    }

    /// Counts an output token.
    pub fn token(&mut self) {
        self.output_tokens += 1;
    }

    /// Keeps the timeline of one of the first prompts.
    pub fn trace(&mut self, source: Option<Arc<dyn TraceSource>>) {
        self.traces.extend(source.filter(|_| self.traces.len() < MAX_TRACED_PROMPTS));
    }

    /// Records the end of a choice.
    pub fn ended(&mut self, reason: FinishReason, timing: &Timing) {
        self.n_running = self.n_running.saturating_sub(1);
        self.outcome = self.outcome.max(outcome_of(reason));
        let earlier = |before: Option<Duration>, now| before.into_iter().chain(now).min();
        self.first_step = earlier(self.first_step, timing.first_step);
        self.first_token = earlier(self.first_token, timing.first_token);
        self.last_token = self.last_token.max(timing.last_token);
    }

    /// Records the failure of the whole request.
    pub fn failed(&mut self) {
        self.n_running = 0;
        self.outcome = Outcome::Error;
    }

    /// Adds the record of another turn of the model for the same request.
    pub fn go_on(&mut self, turn: Self) {
        let since_first = turn.read.saturating_sub(self.read);
        self.n_running += turn.n_running;
        self.prompt_tokens += turn.prompt_tokens;
        self.cached_tokens += turn.cached_tokens;
        self.output_tokens += turn.output_tokens;
        self.last_token = self.last_token.max(turn.last_token.map(|time| since_first + time));
        self.outcome = self.outcome.max(turn.outcome);
        let room = MAX_TRACED_PROMPTS.saturating_sub(self.traces.len());
        self.traces.extend(turn.traces.into_iter().take(room));
    }

    /// Outcome of the request; choices that still run count as aborted.
    pub fn outcome(&self) -> Outcome {
        if self.n_running > 0 { self.outcome.max(Outcome::Abort) } else { self.outcome }
    }

    /// Converts the record into a report, at the request's end.
    pub fn report(self) -> GenerationReport {
        let outcome = self.outcome().name();
        // Times count from the submission, before another replica computed the prompt.
        let apart = self.traces.iter().filter_map(|source| source.split()).map(|split| split.took).max();
        let apart = apart.unwrap_or_default();
        GenerationReport {
            model: self.model,
            n_choices: self.n_choices,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            submitted: self.read.saturating_sub(apart),
            first_step: self.first_step,
            first_token: self.first_token,
            last_token: self.last_token,
            cache: self.cache_use.map(CacheUse::name),
            outcome,
            traces: self.traces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_that_of_the_choice_that_fared_worst() {
        let begun = || GenerationRecord::new("m", 2, 7, Duration::ZERO);
        let ms = Duration::from_millis;
        let mut record = begun();
        let timing = |first_step, first_token, last_token| Timing {
            first_step,
            first_token,
            last_token,
            ..Timing::default()
        };
        record.ended(FinishReason::Length, &timing(Some(ms(5)), Some(ms(9)), Some(ms(9))));
        assert_eq!(record.outcome(), Outcome::Abort, "the other one runs");
        record.ended(FinishReason::Stop { token: None }, &timing(Some(ms(3)), None, None));
        assert_eq!(record.outcome(), Outcome::Length);
        let report = record.report();
        assert_eq!(
            (report.first_step, report.first_token, report.last_token),
            (Some(ms(3)), Some(ms(9)), Some(ms(9)))
        );
        let mut failed = begun();
        failed.failed();
        assert_eq!(failed.outcome(), Outcome::Error);
    }
}
