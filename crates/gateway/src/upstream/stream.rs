//! The stream of an upstream engine on its way to the client: events go through as they came, but for usage
//! that nobody asked for. A task of its own moves them; when the reader has gone, or has taken nothing for
//! too long, it ends, and with it the request at the engine.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use throng_fleet::upstream::{EventKind, EventSplitter, classify};
use throng_http::awake::{AwakeSleep, within};
use throng_http::byte_queue::{ByteSender, Closed, byte_queue};
use throng_http::{Exchange, HALF_CLOSED_PING_INTERVAL, Phase};
use tokio::sync::watch;
use tokio::time::Instant;

use super::active_request::ActiveRequest;
use super::setting::Setting;
use throng_api::ApiError;

/// After the last event, for the rest of the answer: the connection can be used again then.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream that has begun.
pub(super) struct Stream {
    /// The request.
    pub active: ActiveRequest,
    /// Whether the client wants usage.
    pub wants_usage: bool,
    /// Events that came.
    pub first: Vec<(Bytes, EventKind)>,
    /// What came after them.
    pub splitter: EventSplitter,
    /// The rest.
    pub body: Incoming,
    /// The longest that the engine may say nothing.
    pub timeout: Duration,
}

/// Why a stream does not end well.
enum Broken {
    /// Nobody reads it any more.
    Unread,
    /// The engine failed.
    Failed(&'static str),
    /// The engine has told the client what is wrong.
    Told,
    /// This server ends.
    Cut,
}

impl From<Closed> for Broken {
    fn from(_: Closed) -> Self {
        Self::Unread
    }
}

/// What it needs of the server.
struct Pacing {
    exchange: Arc<Exchange>,
    phase: watch::Receiver<Phase>,
    ping_interval: Duration,
    slow_reader_timeout: Duration,
}

/// The response that passes the stream on.
pub(super) fn respond(server: &Setting<'_>, stream: Stream) -> Response {
    let (sender, body) = byte_queue(server.memory);
    let pacing = Pacing {
        exchange: server.exchange.clone(),
        phase: server.phase.subscribe(),
        ping_interval: Duration::from_secs(server.config.api.ping_interval_s.max(1)),
        slow_reader_timeout: Duration::from_secs(server.config.server.slow_reader_timeout_s),
    };
    tokio::spawn(run(stream, pacing, sender));
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (fields, Body::new(body)).into_response()
}

async fn run(mut stream: Stream, mut pacing: Pacing, sender: ByteSender) {
    let error = match pump(&mut stream, &mut pacing, &sender).await {
        Ok(()) => {
            stream.active.end();
            None
        }
        Err(Broken::Unread) => None,
        Err(Broken::Told) => {
            stream.active.fail();
            None
        }
        Err(Broken::Cut) => Some(ApiError::stream_interrupted()),
        Err(Broken::Failed(reason)) => {
            let caller = &stream.active.caller;
            tracing::warn!(request = caller.id_text(), reason, "an engine failed in the middle of a stream");
            stream.active.fail();
            Some(ApiError::upstream_error())
        }
    };
    if let Some(error) = error {
        stream.active.metrics.stream_error();
        pacing.exchange.close_connection();
        let told = [b"data: ", &error.to_json()[..], b"\n\n"].concat();
        let _ = tokio::time::timeout(pacing.slow_reader_timeout, sender.send(told.into())).await;
    }
    // What was used is settled before the client sees the end.
    drop(stream);
    drop(sender);
}

async fn pump(stream: &mut Stream, pacing: &mut Pacing, sender: &ByteSender) -> Result<(), Broken> {
    for (event, kind) in std::mem::take(&mut stream.first) {
        if pass(stream, event, kind, pacing, sender).await? {
            return Ok(());
        }
    }
    let exchange = Arc::clone(&pacing.exchange);
    let mut last_sent = Instant::now();
    let mut silence = AwakeSleep::new(stream.timeout);
    let (mut ping_interval, mut half_closed) = (pacing.ping_interval, false);
    loop {
        while let Some(event) = stream.splitter.next_event() {
            let kind = classify(&event);
            if pass(stream, event, kind, pacing, sender).await? {
                finish(&mut stream.body).await;
                return Ok(());
            }
            last_sent = Instant::now();
        }
        let frame = tokio::select! {
            frame = stream.body.frame() => Some(frame),
            () = sender.closed() => return Err(Broken::Unread),
            () = tokio::time::sleep_until(last_sent + ping_interval), if !stream.splitter.is_inside_event() => None,
            () = &mut silence => return Err(Broken::Failed("it said nothing for too long")),
            () = exchange.input_ended(), if !half_closed => {
                half_closed = true;
                ping_interval = ping_interval.min(HALF_CLOSED_PING_INTERVAL);
                continue;
            }
            _ = pacing.phase.wait_for(|phase| *phase == Phase::Cut) => return Err(Broken::Cut),
        };
        let Some(frame) = frame else {
            send(Bytes::from_static(b": ping\n\n"), pacing, sender).await?;
            last_sent = Instant::now();
            continue;
        };
        silence.restart();
        match frame {
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                let pushed = stream.splitter.push(&data);
                pushed.map_err(|_| Broken::Failed("an event of its stream is too large"))?;
            }
            None => {
                if let Some(event) = stream.splitter.last() {
                    let kind = classify(&event);
                    if pass(stream, event, kind, pacing, sender).await? {
                        return Ok(());
                    }
                }
                // Some engines end without saying that they have.
                if stream.active.all_ended() {
                    return send(Bytes::from_static(b"data: [DONE]\n\n"), pacing, sender).await;
                }
                return Err(Broken::Failed("its stream broke off"));
            }
            Some(Err(_)) => return Err(Broken::Failed("its stream broke off")),
        }
    }
}

/// Passes an event on; whether it was the last.
async fn pass(
    stream: &mut Stream,
    event: Bytes,
    kind: EventKind,
    pacing: &Pacing,
    sender: &ByteSender,
) -> Result<bool, Broken> {
    // Counted before the client can see it.
    stream.active.note_event(&kind, event.len());
    let is_unwanted = matches!(kind, EventKind::Part { is_only_usage: true, .. }) && !stream.wants_usage;
    if !is_unwanted {
        send(event, pacing, sender).await?;
    }
    match kind {
        EventKind::Error => Err(Broken::Told),
        kind => Ok(kind == EventKind::Done),
    }
}

/// Reads what follows the last event, so that the connection can be used again.
async fn finish(body: &mut Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(END_TIMEOUT, rest).await;
}

async fn send(bytes: Bytes, pacing: &Pacing, sender: &ByteSender) -> Result<(), Broken> {
    let sent = within(pacing.slow_reader_timeout, sender.send(bytes)).await;
    Ok(sent.map_err(|_| Broken::Unread)??)
}
