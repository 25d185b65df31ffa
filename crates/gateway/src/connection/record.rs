//! What the log says of a request that reached a model, in one line once everything about it is over: names, sizes and
//! times. Has no text of prompts and answers.

use std::sync::OnceLock;
use std::time::Duration;

use axum::extract::MatchedPath;
use http::StatusCode;
use throng_core::request::FinishReason;
use throng_store::Outcome;
use tokio::time::Instant;

use crate::auth::Tenant;

/// How one choice ended. Of several, the worst is the request's: the last in the order of [`Outcome`].
fn outcome_of(reason: FinishReason) -> Outcome {
    match reason {
        FinishReason::Stop(_) => Outcome::Stop,
        FinishReason::Length => Outcome::Length,
        FinishReason::Abort => Outcome::Abort,
        FinishReason::Error => Outcome::Error,
    }
}

/// What a model did for a request.
#[derive(Debug, Default)]
pub(crate) struct GenerationRecord {
    model: String,
    n_choices: usize,
    n_running: usize,
    prompt_tokens: usize,
    cached_tokens: u64,
    output_tokens: u64,
    /// From the request's arrival until it was submitted.
    read: Duration,
    queue: Option<Duration>,
    first_token: Option<Duration>,
    outcome: Outcome,
}

impl GenerationRecord {
    /// Of a request to `model` that has just been submitted, `read` after its arrival.
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

    /// Notes a computed prompt.
    pub fn prompt(&mut self, cached_tokens: u32) {
        self.cached_tokens += u64::from(cached_tokens);
    }

    /// Notes an output token.
    pub fn token(&mut self) {
        self.output_tokens += 1;
    }

    /// Notes the end of a choice, and how long after the submission its first step and its first token were.
    pub fn ended(
        &mut self,
        reason: FinishReason,
        first_step: Option<Duration>,
        first_token: Option<Duration>,
    ) {
        self.n_running = self.n_running.saturating_sub(1);
        self.outcome = self.outcome.max(outcome_of(reason));
        let earlier = |before: Option<Duration>, now| before.into_iter().chain(now).min();
        self.queue = earlier(self.queue, first_step);
        self.first_token = earlier(self.first_token, first_token);
    }

    /// Notes that the request failed as a whole.
    pub fn failed(&mut self) {
        self.n_running = 0;
        self.outcome = Outcome::Error;
    }

    /// How it ended; what still runs when nobody waits for it any more is aborted.
    pub fn outcome(&self) -> Outcome {
        if self.n_running > 0 { self.outcome.max(Outcome::Abort) } else { self.outcome }
    }
}

/// What is known of a request for its line in the log.
#[derive(Debug, Default)]
pub(super) struct RequestRecord {
    pub generation: OnceLock<GenerationRecord>,
    pub answer: OnceLock<(Option<MatchedPath>, StatusCode)>,
}

impl RequestRecord {
    /// Writes the line of a request that reached a model and is over.
    pub fn log(&self, request: &str, client: &str, tenant: &Tenant, arrived: Instant) {
        let Some(generation) = self.generation.get() else { return };
        let answer = self.answer.get();
        let path = answer.and_then(|(path, _)| path.as_ref()).map(MatchedPath::as_str);
        let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        tracing::info!(
            request,
            path,
            status = answer.map(|(_, status)| status.as_u16()),
            model = generation.model,
            tenant = %tenant.id.0,
            key = tenant.key.as_deref().map(|key| key.prefix.as_str()),
            client,
            choices = generation.n_choices,
            prompt_tokens = generation.prompt_tokens,
            cached_tokens = generation.cached_tokens,
            output_tokens = generation.output_tokens,
            queue_ms = generation.queue.map(ms),
            ttft_ms = generation.first_token.map(|time| ms(generation.read + time)),
            total_ms = ms(arrived.elapsed()),
            outcome = generation.outcome().name(),
            "request"
        );
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
        record.ended(FinishReason::Length, Some(ms(5)), Some(ms(9)));
        assert_eq!(record.outcome(), Outcome::Abort, "the other one runs");
        record.ended(FinishReason::Stop(None), Some(ms(3)), None);
        assert_eq!(record.outcome(), Outcome::Length);
        assert_eq!((record.queue, record.first_token), (Some(ms(3)), Some(ms(9))));
        let mut failed = begun();
        failed.failed();
        assert_eq!(failed.outcome(), Outcome::Error);
    }
}
