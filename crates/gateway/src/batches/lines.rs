//! Answers lines of batches like requests of their tenant to the same endpoints, in the lowest class. Does
//! not know batches.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use throng_api::{ApiError, Dialect, ErrorType};
use throng_state::batches::{Answerer, LineAnswer, LineRequest};

use super::gate::Gate;
use crate::app::App;
use crate::kept::tenant_of;
use crate::routes::BatchEndpoint;

/// Pause before a line is tried again, unless the refusal has a time.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of tries of a line that fails by a fault of the server.
const N_TRIES: usize = 3;

/// Answers lines with the models of a server.
#[derive(Debug, Clone)]
pub(crate) struct LineAnswers {
    app: Arc<App>,
    gate: Arc<Gate>,
    /// Whether lines wait while other requests are computed.
    is_beside_others: bool,
}

impl LineAnswers {
    /// Answers lines after the other requests of a server.
    pub fn beside_others(app: Arc<App>) -> Self {
        Self { app, gate: Arc::default(), is_beside_others: true }
    }

    /// Answers lines of a server without other requests.
    pub fn alone(app: Arc<App>) -> Self {
        Self { app, gate: Arc::default(), is_beside_others: false }
    }

    async fn answer_line(&self, request: LineRequest) -> LineAnswer {
        let Some(endpoint) = BatchEndpoint::of_path(&request.endpoint) else {
            return refused(
                &throng_api::openai::ChatCompletions,
                &ApiError::unknown_url("POST", &request.endpoint),
            );
        };
        let mut n_tries = 0;
        loop {
            n_tries += 1;
            let error = match self.try_line(endpoint, &request).await {
                Ok(answer) => return answer,
                Err(error) => error,
            };
            if let Some(after) = retry_after(&error) {
                return LineAnswer::Later { after };
            }
            if !error.status().is_server_error() || n_tries == N_TRIES {
                return refused(endpoint.dialect(), &error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_line(&self, endpoint: BatchEndpoint, request: &LineRequest) -> Result<LineAnswer, ApiError> {
        let app = &self.app;
        if app.is_draining() {
            return Err(ApiError::shutting_down(1));
        }
        let tenant = tenant_of(app, &request.tenant, &request.principal)?;
        let mut headers = HeaderMap::new();
        headers.insert("x-service-class", HeaderValue::from_static("batch"));
        if let Ok(id) = HeaderValue::try_from(&request.request_id) {
            headers.insert("x-request-id", id);
        }
        let _running = match self.is_beside_others {
            true => Some(self.gate.enter(app).await),
            false => None,
        };
        let response = endpoint.answer(app.clone(), tenant, &headers, request.body.clone().into()).await?;
        let (parts, body) = Response::into_parts(response);
        let body = to_bytes(body, app.config.api.max_answer_bytes)
            .await
            .map_err(|_| ApiError::internal_error(&request.request_id))?;
        Ok(LineAnswer::Answered { status: parts.status.as_u16(), body: body.to_vec() })
    }
}

impl Answerer for LineAnswers {
    fn answer(&self, request: LineRequest) -> BoxFuture<'static, LineAnswer> {
        let answers = self.clone();
        async move { answers.answer_line(request).await }.boxed()
    }
}

fn refused(dialect: &dyn Dialect, error: &ApiError) -> LineAnswer {
    LineAnswer::Answered { status: error.status().as_u16(), body: dialect.error_body(error) }
}

/// Time after which a line is tried again that was refused for a temporary reason: too many requests, no
/// room, no worker. `None` for a used-up quota, which lasts longer than a batch waits.
fn retry_after(error: &ApiError) -> Option<Duration> {
    let passes = match error.status().as_u16() {
        429 => error.error_type() == ErrorType::RateLimit,
        503 => true,
        _ => false,
    };
    passes.then(|| error.retry_after_s().map_or(PAUSE, |seconds| Duration::from_secs(seconds.into())))
}
