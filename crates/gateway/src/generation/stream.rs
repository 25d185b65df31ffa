//! Streaming of an answer. A task writes it; when the reader has disconnected or has stalled for too long,
//! the task and the generation end.

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
use throng_http::byte_queue::{ByteSender, QUEUE_BYTES, Unread, byte_queue};
use throng_http::memory::MemoryBudget;
use throng_http::{Exchange, HALF_CLOSED_PING_INTERVAL, Phase};
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer_stream::AnswerStream;
use crate::caller::Caller;
use crate::config::GatewayConfig;

/// Interval at which a silent stream checks whether it waits for a worker, and reports it.
const WAITING_INTERVAL: Duration = Duration::from_secs(1);

/// Content of a stream in its client's form. Dropping it settles the usage.
pub(crate) trait StreamSource: Send + 'static {
    /// Media type of the stream.
    fn stream_type(&self) -> &'static str;

    /// Writes the next piece that is due before the next event; `false` if there is none.
    fn more(&mut self, out: &mut Events) -> bool;

    /// Waits for the next event and writes it, or the end. Returns whether more may follow. Cancel-safe.
    ///
    /// # Errors
    /// The error to write at the end of a stream that broke.
    fn next(&mut self, out: &mut Events) -> impl Future<Output = Result<bool, ApiError>> + Send;

    /// Writes a comment, which clients ignore.
    fn ping(&mut self, comment: &str, out: &mut Events);

    /// Counts and writes the error that ends a stream.
    fn error(&mut self, error: &ApiError, out: &mut Events);

    /// Whether the generation waits for a replica.
    fn is_away(&self) -> bool {
        false
    }
}

/// An answer of neutral events, with the writer of its client's API.
#[derive(Debug)]
pub(crate) struct WrittenAnswer {
    /// Events of the answer.
    pub answer: AnswerStream,
    /// Writer in the client's form.
    pub writer: Box<dyn AnswerWriter>,
}

impl StreamSource for WrittenAnswer {
    fn stream_type(&self) -> &'static str {
        self.writer.stream_type()
    }

    fn more(&mut self, out: &mut Events) -> bool {
        self.writer.more(out)
    }

    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        match self.answer.next().await {
            Some(AnswerEvent::Failed(error)) if error.is_shutting_down() => {
                Err(ApiError::stream_interrupted())
            }
            Some(AnswerEvent::Failed(error)) => Err(error),
            Some(event) => {
                self.writer.event(event, out);
                Ok(true)
            }
            None => {
                self.writer.end(out);
                Ok(false)
            }
        }
    }

    fn ping(&mut self, comment: &str, out: &mut Events) {
        self.writer.ping(comment, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        self.answer.source().count_stream_error();
        self.writer.error(error, out);
    }

    fn is_away(&self) -> bool {
        self.answer.is_away()
    }
}

/// Parts of the server and of the connection that a stream needs.
#[derive(Debug)]
pub(crate) struct StreamSetting {
    /// The caller of the request.
    caller: Arc<Caller>,
    /// The request on its connection.
    exchange: Arc<Exchange>,
    /// Phase of the server on its way to its end.
    phase: watch::Receiver<Phase>,
    /// Interval of comments in a silent stream.
    ping_interval: Duration,
    /// Longest time without progress of the reader, after which the stream ends.
    slow_reader_timeout: Duration,
    /// Budget for bytes that wait to be sent.
    memory: Arc<MemoryBudget>,
    /// Recorder that stores the answer before its client gets the end.
    recorder: Option<Arc<dyn AnswerRecorder>>,
}

/// Stores an answer before its client gets the end.
pub(crate) trait AnswerRecorder: Debug + Send + Sync {
    /// Stores the answer, if it has ended.
    fn record(&self) -> BoxFuture<'_, Result<(), ApiError>>;
}

impl StreamSetting {
    /// Creates the setting of a server with this configuration, phase and memory, for a request of `caller`
    /// on `exchange`.
    pub fn new(
        (config, phase, memory): (&GatewayConfig, watch::Receiver<Phase>, Arc<MemoryBudget>),
        caller: Arc<Caller>,
        exchange: Arc<Exchange>,
    ) -> Self {
        let ping_interval = Duration::from_secs(config.api.ping_interval_s.max(1));
        let slow_reader_timeout = Duration::from_secs(config.server.slow_reader_timeout_s);
        Self { caller, exchange, phase, ping_interval, slow_reader_timeout, memory, recorder: None }
    }

    /// Sets the recorder of the answer.
    pub fn recorded_by(self, recorder: Option<Arc<dyn AnswerRecorder>>) -> Self {
        Self { recorder, ..self }
    }
}

/// Creates the response that streams `source`.
pub(crate) fn stream(source: impl StreamSource, setting: StreamSetting) -> Response {
    let (sender, body) = byte_queue(&setting.memory);
    let stream_type = HeaderValue::from_static(source.stream_type());
    tokio::spawn(run(source, setting, sender));
    let fields = [
        (header::CONTENT_TYPE, stream_type),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (fields, Body::new(body)).into_response()
}

/// Reason why a stream ends early.
enum Broken {
    /// The reader has disconnected.
    Unread,
    /// The reader gets an error.
    Told(ApiError),
}

impl From<Unread> for Broken {
    fn from(_: Unread) -> Self {
        Self::Unread
    }
}

async fn run(mut source: impl StreamSource, mut setting: StreamSetting, sender: ByteSender) {
    let pumped = pump(&mut source, &mut setting, &sender);
    let pumped = AssertUnwindSafe(pumped).catch_unwind().await;
    let internal = |_| Err(Broken::Told(ApiError::internal_error(setting.caller.id_text())));
    let mut events = Events::default();
    if let Err(Broken::Told(error)) = pumped.unwrap_or_else(internal) {
        setting.exchange.close_connection();
        source.error(&error, &mut events);
        if let Some(recorder) = &setting.recorder {
            // The client is told of the failure, be it kept or not.
            let _ = recorder.record().await;
        }
    }
    // What was used is settled before the client sees the end.
    drop(source);
    if !events.is_empty() {
        // A reader that does not take even this is closed by its socket's own limit.
        let _ = sender.send(events.take(), setting.slow_reader_timeout).await;
    }
}

async fn pump(
    source: &mut impl StreamSource,
    setting: &mut StreamSetting,
    sender: &ByteSender,
) -> Result<(), Broken> {
    let mut events = Events::default();
    let mut last_sent = Instant::now();
    let mut last_look = last_sent;
    let (mut ping_interval, mut half_closed) = (setting.ping_interval, false);
    loop {
        while source.more(&mut events) {
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
        let next = tokio::select! {
            next = source.next(&mut events) => next,
            () = sender.closed() => return Err(Broken::Unread),
            () = tokio::time::sleep_until(next_look) => {
                last_look = Instant::now();
                if last_sent + ping_interval <= last_look {
                    source.ping("ping", &mut events);
                } else if source.is_away() {
                    source.ping("waiting for a worker", &mut events);
                }
                continue;
            }
            // Only what is sent can tell whether such a client still reads.
            () = setting.exchange.input_ended(), if !half_closed => {
                half_closed = true;
                ping_interval = ping_interval.min(HALF_CLOSED_PING_INTERVAL);
                source.ping("ping", &mut events);
                continue;
            }
            _ = setting.phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(Broken::Told(ApiError::stream_interrupted()));
            }
        };
        if !next.map_err(Broken::Told)? {
            return send(&mut events, setting, sender).await;
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
    Ok(sender.send(events.take(), setting.slow_reader_timeout).await?)
}
