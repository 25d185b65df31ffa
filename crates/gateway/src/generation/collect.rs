//! Collects a complete answer, reserving memory as it grows.

use throng_api::ApiError;
use throng_api::answer::{Answer, AnswerEvent, Tally};
use throng_http::Phase;
use throng_http::memory::Reservation;
use tokio::sync::watch;

use super::answer_bound::AnswerBound;
use super::answer_stream::AnswerStream;
use crate::rejection::memory_full;
use throng_http::retry_after::retry_after_s;

/// A complete answer with the memory reserved for it.
#[derive(Debug)]
pub(crate) struct Collected {
    /// The collected answer.
    pub answer: Answer,
    /// Approximate bytes of the answer's JSON.
    pub json_bytes: usize,
    _memory: Reservation,
}

/// Waits for the complete answer to `n_prompts` prompts with the tokens of `tally`. `memory` has the bytes of
/// the prompts' log-probabilities from `bound`, and grows with the answer.
///
/// # Errors
/// 500 when the generation fails, 503 when the server ends first or its memory is full, 400 when the answer
/// becomes too large.
pub(crate) async fn collect(
    mut stream: AnswerStream,
    (n_prompts, tally): (usize, Tally),
    bound: &AnswerBound,
    mut memory: Reservation,
    mut phase: watch::Receiver<Phase>,
) -> Result<Collected, ApiError> {
    let n_choices = stream.source().n_choices();
    let mut answer = Answer::new(n_prompts, n_choices, tally);
    let n_reports = memory.n_bytes();
    let mut n_tokens = 0;
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(ApiError::shutting_down(retry_after_s()));
            }
        };
        match event {
            None => {
                let json_bytes = bound.json_bytes(n_tokens, answer.text_bytes());
                return Ok(Collected { answer, json_bytes, _memory: memory });
            }
            Some(AnswerEvent::Failed(error)) => return Err(error),
            Some(event) => {
                n_tokens += usize::from(matches!(event, AnswerEvent::Token { .. }));
                answer.add(event);
                memory.cover(n_reports + answer.held_bytes()).map_err(memory_full)?;
            }
        }
        bound.check(n_tokens, answer.text_bytes())?;
    }
}
