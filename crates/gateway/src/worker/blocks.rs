//! Another worker's request for KV blocks over HTTP. Does not know blocks.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode, Version};
use throng_api::ApiError;
use throng_fleet::worker::BlocksRefused;
use throng_http::Exchange;

use super::WorkerState;
use super::generate::first_line;
use crate::rejection::Rejection;

/// `POST` of [`throng_wire::BLOCKS`].
pub(super) async fn blocks(
    State(worker): State<Arc<WorkerState>>,
    Extension(exchange): Extension<Arc<Exchange>>,
    version: Version,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let (line, _) = first_line(&worker, &exchange, version, &headers).await?;
    match worker.service.blocks(&line).await {
        Ok(frames) => Ok(Body::from_stream(frames.map(Ok::<_, Infallible>)).into_response()),
        Err(BlocksRefused::Malformed(error)) => Err(ApiError::malformed_request(&error.to_string()).into()),
        Err(BlocksRefused::NotExchanged) => Ok(StatusCode::NOT_FOUND.into_response()),
        Err(BlocksRefused::Other(_)) => Ok(StatusCode::CONFLICT.into_response()),
        Err(BlocksRefused::Busy) => Ok(StatusCode::SERVICE_UNAVAILABLE.into_response()),
    }
}
