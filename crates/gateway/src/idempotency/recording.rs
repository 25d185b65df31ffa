//! Runs an answer to its end, sends it to the client while that is connected, and keeps it. Does not know
//! other requests with the key.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_store::{AnswerClaim, KeptAnswer, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::time::interval;

use throng_api::ApiError;

/// Maximum bytes of an answer that is kept.
const MAX_KEPT_BYTES: usize = 4 << 20;
/// Interval at which the owner renews its claim.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of parts of an answer that wait for a slow client.
const MAX_UNREAD_PARTS: usize = 64;
/// Last bytes of a complete stream.
const END_OF_STREAM: &[u8] = b"data: [DONE]\n\n";

/// A running answer.
pub(super) struct Recording {
    store: Arc<dyn Store>,
    claim: AnswerClaim,
    memory: Reservation,
    /// Bytes so far; `None` if the answer is not kept.
    kept: Option<Vec<u8>>,
}

impl Recording {
    pub fn new(store: Arc<dyn Store>, claim: AnswerClaim, memory: &Arc<MemoryBudget>) -> Self {
        Self { store, claim, memory: memory.reservation(Part::Answers), kept: Some(Vec::new()) }
    }

    /// Runs `run` and returns its answer.
    pub async fn record(
        mut self,
        run: impl Future<Output = Result<Response, ApiError>> + Send,
        told: oneshot::Sender<Result<Response, ApiError>>,
    ) {
        let (store, claim) = (self.store.clone(), self.claim.clone());
        let beating = async {
            let mut beats = interval(BEAT_INTERVAL);
            loop {
                beats.tick().await;
                let _ = store.beat_answer(&claim).await;
            }
        };
        tokio::select! {
            () = self.make(run, told) => {}
            () = beating => {}
        }
    }

    async fn make(
        &mut self,
        run: impl Future<Output = Result<Response, ApiError>> + Send,
        told: oneshot::Sender<Result<Response, ApiError>>,
    ) {
        let response = match run.await {
            Ok(response) if response.status() == StatusCode::OK => response,
            refused => {
                // What was refused may be accepted later.
                self.release().await;
                let _ = told.send(refused);
                return;
            }
        };
        let (parts, mut body) = response.into_parts();
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let is_stream = content_type.starts_with("text/event-stream");
        let (parts_sent, parts_read) = mpsc::channel::<Result<Bytes, axum::Error>>(MAX_UNREAD_PARTS);
        let reading = stream::unfold(parts_read, |mut read| async move { Some((read.recv().await?, read)) });
        let _ = told.send(Ok(Response::from_parts(parts, Body::from_stream(reading))));
        // The client has all of an answer only when it has been kept.
        let mut last: Option<Bytes> = None;
        let mut has_failed = false;
        while let Some(frame) = body.frame().await {
            let part = match frame.map(http_body::Frame::into_data) {
                Ok(Ok(part)) => part,
                Ok(Err(_)) => continue,
                Err(error) => {
                    has_failed = true;
                    let _ = parts_sent.send(Err(error)).await;
                    break;
                }
            };
            self.note(&part);
            let is_last = !is_stream || part.ends_with(END_OF_STREAM);
            let now = if is_last { last.replace(part) } else { Some(part) };
            if let Some(part) = now {
                let _ = parts_sent.send(Ok(part)).await;
            }
        }
        let is_whole = !has_failed && (!is_stream || last.is_some());
        match self.kept.take().filter(|_| is_whole) {
            Some(body) => {
                let answer = KeptAnswer { content_type, body };
                if let Err(error) = self.store.keep_answer(&self.claim, &answer).await {
                    tracing::warn!(%error, "an answer with an Idempotency-Key is not kept");
                }
            }
            None => self.release().await,
        }
        if let Some(last) = last {
            let _ = parts_sent.send(Ok(last)).await;
        }
    }

    fn note(&mut self, part: &Bytes) {
        let Some(kept) = &mut self.kept else { return };
        let n_bytes = kept.len() + part.len();
        if n_bytes > MAX_KEPT_BYTES || self.memory.cover(n_bytes).is_err() {
            self.kept = None;
            return;
        }
        kept.extend_from_slice(part);
    }

    async fn release(&self) {
        if let Err(error) = self.store.release_answer(&self.claim).await {
            tracing::warn!(%error, "a claim of an Idempotency-Key stays until it expires or its owner counts as dead");
        }
    }
}
