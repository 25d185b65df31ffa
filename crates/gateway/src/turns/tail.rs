//! The events of a kept response as a stream: the stored ones, and new ones as they are stored. Does not know
//! the generating process.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use throng_api::ApiError;
use throng_http::Phase;
use throng_http::byte_queue::{ByteSender, byte_queue};
use throng_state::responses::{EventPage, Responses};
use tokio::time::{Instant, sleep};

use crate::app::App;

/// Interval between queries to the store for new events of a response.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Streams the events of a response after number `after`.
///
/// # Errors
/// 404 for a response that is not kept, 503 when the store does not answer.
pub(crate) async fn tail(
    app: &Arc<App>,
    responses: Responses,
    tenant: String,
    id: String,
    after: Option<u64>,
) -> Result<Response, ApiError> {
    let first = responses.events(&tenant, &id, after).await?;
    let (sender, body) = byte_queue(&app.work.memory);
    let tail = Tail { app: app.clone(), responses, tenant, id, after };
    tokio::spawn(tail.run(first, sender));
    let fields = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((fields, Body::new(body)).into_response())
}

struct Tail {
    app: Arc<App>,
    responses: Responses,
    tenant: String,
    id: String,
    after: Option<u64>,
}

impl Tail {
    async fn run(mut self, first: EventPage, sender: ByteSender) {
        let ping_interval = Duration::from_secs(self.app.config.api.ping_interval_s.max(1));
        let mut phase = self.app.lifecycle.phase.subscribe();
        let (mut page, mut last_sent) = (first, Instant::now());
        loop {
            self.after = page.last.or(self.after);
            if !page.events.is_empty() {
                last_sent = Instant::now();
                if !self.send(&sender, page.events.concat().into()).await {
                    return;
                }
            }
            if !page.is_running {
                self.send(&sender, Bytes::from_static(b"data: [DONE]\n\n")).await;
                return;
            }
            if last_sent.elapsed() >= ping_interval {
                last_sent = Instant::now();
                if !self.send(&sender, Bytes::from_static(b": ping\n\n")).await {
                    return;
                }
            }
            tokio::select! {
                () = sleep(LOOK_INTERVAL) => {}
                () = sender.closed() => return,
                _ = phase.wait_for(|phase| *phase == Phase::Cut) => return,
            }
            // The client asks again behind the last event that it has seen.
            let Ok(next) = self.responses.events(&self.tenant, &self.id, self.after).await else { return };
            page = next;
        }
    }

    /// Sends bytes; `false` if the client did not take them in time.
    async fn send(&self, sender: &ByteSender, bytes: Bytes) -> bool {
        let timeout = Duration::from_secs(self.app.config.server.slow_reader_timeout_s);
        sender.send(bytes, timeout).await.is_ok()
    }
}
