//! An answer token by token. A task of its own writes it; when the reader has gone, or has taken nothing for
//! too long, the task ends and the generation with it.

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderValue, header};
use throng_api::answer::AnswerEvent;
use throng_api::{AnswerWriter, ApiError, Events};
use throng_http::awake::within;
use throng_http::byte_queue::{ByteSender, Closed, QUEUE_BYTES, byte_queue};
use throng_http::memory::MemoryBudget;
use throng_http::{Exchange, HALF_CLOSED_PING_INTERVAL, Phase};
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer_stream::AnswerStream;
use crate::caller::Caller;
use crate::router::Route;

/// A silent stream looks this often whether it waits for a worker, and says so.
const WAITING_INTERVAL: Duration = Duration::from_secs(1);

/// What a stream needs beside its session.
#[derive(Debug)]
pub(crate) struct StreamSetting {
    /// The caller of the request.
    pub caller: Arc<Caller>,
    /// The request on its connection.
    pub exchange: Arc<Exchange>,
    /// The model, for its counters, and who computes it.
    pub route: Route,
    /// How far the server is on its way to its end.
    pub phase: watch::Receiver<Phase>,
    /// A silent stream says something this often.
    pub ping_interval: Duration,
    /// A reader that takes nothing for this long has gone.
    pub slow_reader_timeout: Duration,
    /// Where what waits to be sent counts.
    pub memory: Arc<MemoryBudget>,
    /// Keeps the answer before its client sees the end.
    pub recorder: Option<Arc<dyn AnswerRecorder>>,
}

/// Keeps an answer before its client knows how it ended.
pub(crate) trait AnswerRecorder: Debug + Send + Sync {
    /// Keeps the answer, if it has ended.
    fn record(&self) -> BoxFuture<'_, Result<(), ApiError>>;
}

/// The response that streams an answer.
pub(crate) fn stream(
    answer: AnswerStream,
    writer: Box<dyn AnswerWriter>,
    setting: StreamSetting,
) -> Response {
    let (sender, body) = byte_queue(&setting.memory);
    let stream_type = HeaderValue::from_static(writer.stream_type());
    tokio::spawn(run(answer, writer, setting, sender));
    let fields = [
        (header::CONTENT_TYPE, stream_type),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (fields, Body::new(body)).into_response()
}

/// Why a stream does not end well.
enum Broken {
    /// Nobody reads it any more.
    Unread,
    /// The reader is to be told.
    Told(ApiError),
}

impl From<Closed> for Broken {
    fn from(_: Closed) -> Self {
        Self::Unread
    }
}

async fn run(
    answer: AnswerStream,
    mut writer: Box<dyn AnswerWriter>,
    mut setting: StreamSetting,
    sender: ByteSender,
) {
    let pumped = pump(answer, &mut *writer, &mut setting, &sender);
    let pumped = AssertUnwindSafe(pumped).catch_unwind().await;
    let internal = |_| Err(Broken::Told(ApiError::internal_error(setting.caller.id_text())));
    if let Err(Broken::Told(error)) = pumped.unwrap_or_else(internal) {
        setting.route.model.metrics.stream_error();
        setting.exchange.close_connection();
        let mut events = Events::default();
        writer.error(&error, &mut events);
        if let Some(recorder) = &setting.recorder {
            // The client is told of the failure, be it kept or not.
            let _ = recorder.record().await;
        }
        let last = sender.send(events.take());
        // A reader that does not take even this is closed by its socket's own limit.
        let _ = tokio::time::timeout(setting.slow_reader_timeout, last).await;
    }
}

async fn pump(
    mut answer: AnswerStream,
    writer: &mut dyn AnswerWriter,
    setting: &mut StreamSetting,
    sender: &ByteSender,
) -> Result<(), Broken> {
    let mut events = Events::default();
    let mut last_sent = Instant::now();
    let mut last_look = last_sent;
    let (mut ping_interval, mut half_closed) = (setting.ping_interval, false);
    loop {
        while writer.more(&mut events) {
            if events.len() >= QUEUE_BYTES {
                send(&mut events, setting, sender).await?;
            }
        }
        if !events.is_empty() {
            send(&mut events, setting, sender).await?;
            last_sent = Instant::now();
            last_look = last_sent;
        }
        let next_look = (last_look + WAITING_INTERVAL).min(last_sent + ping_interval);
        let event = tokio::select! {
            event = answer.next() => event,
            () = sender.closed() => return Err(Broken::Unread),
            () = tokio::time::sleep_until(next_look) => {
                last_look = Instant::now();
                if last_sent + ping_interval <= last_look {
                    writer.ping("ping", &mut events);
                } else if setting.route.is_away() {
                    writer.ping("waiting for a worker", &mut events);
                }
                continue;
            }
            // Only what is sent can tell whether such a client still reads.
            () = setting.exchange.input_ended(), if !half_closed => {
                half_closed = true;
                ping_interval = ping_interval.min(HALF_CLOSED_PING_INTERVAL);
                writer.ping("ping", &mut events);
                continue;
            }
            _ = setting.phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(Broken::Told(ApiError::stream_interrupted()));
            }
        };
        match event {
            Some(AnswerEvent::Failed(error)) if error.is_shutting_down() => {
                return Err(Broken::Told(ApiError::stream_interrupted()));
            }
            Some(AnswerEvent::Failed(error)) => return Err(Broken::Told(error)),
            Some(event) => writer.event(event, &mut events),
            None => {
                writer.end(&mut events);
                return send(&mut events, setting, sender).await;
            }
        }
    }
}

async fn send(events: &mut Events, setting: &StreamSetting, sender: &ByteSender) -> Result<(), Broken> {
    if let Some(recorder) = &setting.recorder {
        recorder.record().await.map_err(|error| {
            events.take();
            Broken::Told(error)
        })?;
    }
    let sent = within(setting.slow_reader_timeout, sender.send(events.take())).await;
    Ok(sent.map_err(|_| Broken::Unread)??)
}
