//! Responses that are generated without their clients: a task stores their events as they come, so that any
//! gateway of the store can stream them. Does not know readers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use throng_api::answer::AnswerEvent;
use throng_api::{AnswerWriter, ApiError, Events};
use throng_http::Phase;
use throng_state::responses::{BackgroundResponse, Responses};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Turn;
use crate::app::App;
use crate::caller::Caller;
use crate::generate::StartedRequest;
use crate::generation::{AnswerStream, WrittenAnswer};

/// Interval at which new events are stored.
const KEEP_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the claim of a response is renewed.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events that wait for the store; beyond it the response is left to another gateway.
const MAX_WAITING_EVENTS: usize = 4_096;

/// Starts answering a request without its client, and returns the initial response.
///
/// # Errors
/// 503 when the store does not answer.
pub(crate) async fn answer_in_background(
    app: &Arc<App>,
    caller: Arc<Caller>,
    started: StartedRequest,
    turn: Arc<Turn>,
) -> Result<Bytes, ApiError> {
    let WrittenAnswer { answer, mut writer } = started.into_stream();
    let mut events = Events::default();
    while writer.more(&mut events) {}
    let internal = || ApiError::internal_error(caller.id_text());
    let begun = turn.context.slot.take().ok_or_else(internal)?;
    let json = Bytes::from(begun.json.clone());
    let mut record = turn.record(&begun)?;
    record.request.clone_from(&turn.request);
    let responses = turn.responses()?.clone();
    let response = responses.begin(&turn.tenant, turn.id(), &record).await?;
    let waiting = frames_of(events.take());
    let phase = app.lifecycle.phase.subscribe();
    let events = KeptEvents { turn, responses, response, waiting, n_kept: 0 };
    tokio::spawn(run(answer, writer, events, phase, caller));
    Ok(json)
}

/// Generates a response again after its process has died; its client may have received a part of it.
pub(super) fn go_on(
    app: &App,
    caller: Arc<Caller>,
    started: StartedRequest,
    turn: Arc<Turn>,
    (responses, response): (Responses, BackgroundResponse),
) {
    let WrittenAnswer { answer, mut writer } = started.into_stream();
    let mut events = Events::default();
    while writer.more(&mut events) {}
    let kept = KeptEvents { turn, responses, response, waiting: frames_of(events.take()), n_kept: 0 };
    tokio::spawn(run(answer, writer, kept, app.lifecycle.phase.subscribe(), caller));
}

/// Splits a stream's bytes into events, without the mark of its end.
fn frames_of(bytes: Bytes) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(&bytes);
    let frames = text.split_inclusive("\n\n").filter(|frame| frame.starts_with("event: "));
    frames.map(|frame| frame.as_bytes().to_vec()).collect()
}

/// Answers a request to its end. The request ends when `_caller` is dropped.
async fn run(
    mut answer: AnswerStream,
    mut writer: Box<dyn AnswerWriter>,
    mut kept: KeptEvents,
    mut phase: watch::Receiver<Phase>,
    _caller: Arc<Caller>,
) {
    let mut ticks = interval(KEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_beat = Instant::now();
    let mut events = Events::default();
    loop {
        let event = tokio::select! {
            event = answer.next() => Some(event),
            _ = ticks.tick() => None,
            // Another gateway answers it.
            () = cut(&mut phase) => return,
        };
        let Some(event) = event else {
            let is_due = last_beat.elapsed() >= BEAT_INTERVAL;
            if is_due {
                last_beat = Instant::now();
            }
            if !kept.keep_waiting().await || is_due && !kept.beat().await {
                return;
            }
            continue;
        };
        match event {
            Some(AnswerEvent::Failed(error)) if error.is_shutting_down() => return,
            Some(AnswerEvent::Failed(error)) => {
                writer.error(&error, &mut events);
                kept.waiting.extend(frames_of(events.take()));
                return kept.finish().await;
            }
            Some(event) => {
                writer.event(event, &mut events);
                kept.waiting.extend(frames_of(events.take()));
            }
            None => return kept.finish().await,
        }
    }
}

/// Waits until running requests are aborted.
async fn cut(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase == Phase::Cut).await;
}

/// Events of a response that is being generated.
#[derive(Debug)]
struct KeptEvents {
    turn: Arc<Turn>,
    responses: Responses,
    response: BackgroundResponse,
    /// Events that are not stored yet.
    waiting: Vec<Vec<u8>>,
    n_kept: u64,
}

impl KeptEvents {
    /// Stores the new events. Returns whether the response must still be answered here.
    async fn keep_waiting(&mut self) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let appending = self.responses.append_events(&self.response, self.n_kept, self.waiting.clone());
        match appending.await {
            Ok(true) => {
                self.n_kept += self.waiting.len() as u64;
                self.waiting.clear();
                true
            }
            Ok(false) => false,
            Err(_) => self.waiting.len() < MAX_WAITING_EVENTS,
        }
    }

    /// Renews the claim. Returns whether the response must still be answered here: no other gateway has
    /// claimed it, and it was not cancelled or deleted.
    async fn beat(&self) -> bool {
        let responses = &self.responses;
        responses.beat(&self.response).await.unwrap_or(true)
            && responses.is_pending(&self.response).await.unwrap_or(true)
    }

    async fn finish(mut self) {
        let Some(whole) = self.turn.context.slot.take_finished() else { return };
        let Ok(record) = self.turn.record(&whole) else { return };
        let events = std::mem::take(&mut self.waiting);
        let finished = self.responses.finish(&self.response, self.n_kept, events, &record).await;
        if let Err(error) = finished {
            let response = self.turn.id();
            tracing::warn!(%error, response, "a response that was answered in the background is not kept");
        }
    }
}
