//! An answer token by token, as server-sent events. A task of its own makes them; when the reader has gone, or has
//! taken nothing for too long, the task ends and the generation with it. Does not know what the events say.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header;
use throng_api::Events;
use throng_http::awake::within;
use throng_http::byte_queue::{ByteSender, Closed, QUEUE_BYTES, byte_queue};
use throng_http::memory::MemoryBudget;
use throng_http::{HALF_CLOSED_PING_INTERVAL, Phase};
use tokio::sync::watch;
use tokio::time::Instant;

use super::output::Output;
use super::session::Session;
use crate::connection::RequestContext;
use crate::replica::ReplicaErrorKind;
use crate::router::Route;
use throng_api::ApiError;

/// A silent stream looks this often whether it waits for a worker, and says so.
const WAITING_INTERVAL: Duration = Duration::from_secs(1);

/// What the events of a stream say.
pub(crate) trait StreamFormat: Send + 'static {
    /// Adds the next of what is still to be said, of the beginning or of an output that needs many events; whether
    /// there was anything.
    fn more(&mut self, events: &mut Events) -> bool;
    /// Something happened; never [`Output::Failed`].
    fn output(&mut self, output: Output, events: &mut Events);
    /// After everything has ended well.
    fn end(&mut self, events: &mut Events);
}

/// What a stream needs beside its session.
#[derive(Debug)]
pub(crate) struct StreamSetting {
    /// The request.
    pub context: Arc<RequestContext>,
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
}

/// The response that streams a session.
pub(crate) fn stream(session: Session, format: impl StreamFormat, setting: StreamSetting) -> Response {
    let (sender, body) = byte_queue(&setting.memory);
    tokio::spawn(run(session, format, setting, sender));
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
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

async fn run(session: Session, format: impl StreamFormat, mut setting: StreamSetting, sender: ByteSender) {
    let pumped = AssertUnwindSafe(pump(session, format, &mut setting, &sender)).catch_unwind().await;
    let internal = |_| Err(Broken::Told(ApiError::internal_error(setting.context.id_text())));
    if let Err(Broken::Told(error)) = pumped.unwrap_or_else(internal) {
        setting.route.model.metrics.stream_error();
        setting.context.close_connection();
        let mut events = Events::default();
        events.push_data(&error.to_json());
        let last = sender.send(events.take());
        // A reader that does not take even this is closed by its socket's own limit.
        let _ = tokio::time::timeout(setting.slow_reader_timeout, last).await;
    }
}

async fn pump(
    mut session: Session,
    mut format: impl StreamFormat,
    setting: &mut StreamSetting,
    sender: &ByteSender,
) -> Result<(), Broken> {
    let mut events = Events::default();
    let mut last_sent = Instant::now();
    let mut last_look = last_sent;
    let (mut ping_interval, mut half_closed) = (setting.ping_interval, false);
    loop {
        while format.more(&mut events) {
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
        let output = tokio::select! {
            output = session.next() => output,
            () = sender.closed() => return Err(Broken::Unread),
            () = tokio::time::sleep_until(next_look) => {
                last_look = Instant::now();
                if last_sent + ping_interval <= last_look {
                    events.push_comment("ping");
                } else if setting.route.is_away() {
                    events.push_comment("waiting for a worker");
                }
                continue;
            }
            // Only what is sent can tell whether such a client still reads.
            () = setting.context.input_ended(), if !half_closed => {
                half_closed = true;
                ping_interval = ping_interval.min(HALF_CLOSED_PING_INTERVAL);
                events.push_comment("ping");
                continue;
            }
            _ = setting.phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(Broken::Told(ApiError::stream_interrupted()));
            }
        };
        match output {
            Some(Output::Failed(error)) if error.kind == ReplicaErrorKind::Stopped => {
                return Err(Broken::Told(ApiError::stream_interrupted()));
            }
            Some(Output::Failed(error)) => {
                return Err(Broken::Told(session.client_error(&error, setting.context.id_text())));
            }
            Some(output) => format.output(output, &mut events),
            None => {
                format.end(&mut events);
                return send(&mut events, setting, sender).await;
            }
        }
    }
}

async fn send(events: &mut Events, setting: &StreamSetting, sender: &ByteSender) -> Result<(), Broken> {
    let sent = within(setting.slow_reader_timeout, sender.send(events.take())).await;
    Ok(sent.map_err(|_| Broken::Unread)??)
}
