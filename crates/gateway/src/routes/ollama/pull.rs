//! `POST /api/pull`: downloads a model into the cache of the server's machine, for the operator and within
//! the configured bound. Does not know where models come from.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header;
use throng_api::ollama::{PullLine, PullRequest};
use throng_api::{ApiError, Events};
use throng_http::Phase;
use tokio::sync::watch;

use crate::on_demand::{PullFault, PullState};
use crate::rejection::Rejection;
use crate::routes::json_body::{AppState, JsonBody, with_ignored};
use throng_http::retry_after::retry_after_s;

/// Shortest time between two lines of a stream.
const LINE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a stream without progress repeats its last line.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// `POST /api/pull`.
pub(in crate::routes) async fn pull(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let (request, _memory) = body.read(PullRequest::parse)?;
    let models = app.models.on_demand.as_ref().ok_or(ApiError::from(PullFault::Forbidden))?;
    if app.is_draining() {
        return Err(ApiError::shutting_down(retry_after_s()).into());
    }
    let has = {
        let app = app.clone();
        move |name: &str| app.models.router.get(name).is_some() || app.models.upstreams.find(name).is_some()
    };
    let mut state = models.pull(request.model(), has)?;
    if request.stream == Some(false) {
        let mut phase = app.lifecycle.phase.subscribe();
        tokio::select! {
            ended = state.wait_for(|state| matches!(state, PullState::Ended(_))) => match ended.as_deref() {
                Ok(PullState::Ended(Err(fault))) => return Err(ApiError::from(fault.clone()).into()),
                Ok(_) => {}
                Err(_) => return Err(broken().into()),
            },
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {
                return Err(ApiError::shutting_down(retry_after_s()).into());
            }
        }
        return Ok(with_ignored(&app, Json(PullLine::success()), &request.ignored));
    }
    // A fault that is known at once is an answer of its own.
    let _ = tokio::time::timeout(LINE_INTERVAL, state.wait_for(|state| *state != PullState::Listing)).await;
    if let PullState::Ended(Err(fault)) = &*state.borrow() {
        return Err(ApiError::from(fault.clone()).into());
    }
    let lines = Lines { state, phase: app.lifecycle.phase.subscribe(), has_begun: false, has_ended: false };
    let stream = stream::unfold(lines, |lines| async { lines.next().await });
    let fields = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")];
    Ok(with_ignored(&app, (fields, Body::from_stream(stream)).into_response(), &request.ignored))
}

fn broken() -> ApiError {
    ApiError::from(PullFault::Failed("the download broke off".to_owned()))
}

/// Lines of a watched download. One line at a time waits for its reader.
struct Lines {
    state: watch::Receiver<PullState>,
    phase: watch::Receiver<Phase>,
    has_begun: bool,
    has_ended: bool,
}

impl Lines {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.has_ended {
            return None;
        }
        let mut out = Events::default();
        if !std::mem::replace(&mut self.has_begun, true) {
            PullLine::manifest().write(&mut out);
            return Some((Ok(out.take()), self));
        }
        let has_ended = matches!(*self.state.borrow(), PullState::Ended(_));
        if !has_ended {
            tokio::time::sleep(LINE_INTERVAL).await;
        }
        let is_broken = if has_ended { Some(false) } else { self.wait().await };
        let Some(is_broken) = is_broken else {
            PullLine::write_error(&ApiError::shutting_down(retry_after_s()), &mut out);
            self.has_ended = true;
            return Some((Ok(out.take()), self));
        };
        let state = self.state.borrow_and_update().clone();
        match state {
            PullState::Ended(Ok(())) => PullLine::success().write(&mut out),
            PullState::Ended(Err(fault)) => PullLine::write_error(&fault.into(), &mut out),
            _ if is_broken => PullLine::write_error(&broken(), &mut out),
            PullState::Listing => PullLine::manifest().write(&mut out),
            PullState::File(progress) => {
                PullLine::file(&progress.file, progress.done_bytes, progress.total_bytes).write(&mut out);
            }
        }
        self.has_ended = is_broken || matches!(*self.state.borrow(), PullState::Ended(_));
        Some((Ok(out.take()), self))
    }

    /// Waits for progress; returns whether the download has ended, or `None` when the server is ending.
    async fn wait(&mut self) -> Option<bool> {
        tokio::select! {
            news = tokio::time::timeout(REPEAT_INTERVAL, self.state.changed()) => {
                Some(matches!(news, Ok(Err(_))))
            }
            _ = self.phase.wait_for(|phase| *phase >= Phase::Draining) => None,
        }
    }
}
