//! A gateway's request for a generation over HTTP, from its head to its first line. Does not know its
//! content.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, Version};
use throng_fleet::body_lines::{BodyLines, LinesError};
use throng_fleet::worker::read_request;
use throng_http::Exchange;
use throng_http::memory::{Part, Reservation};
use throng_wire::{Generate, VERSION_HEADER, Versions};

use super::WorkerState;
use crate::rejection::{Rejection, memory_full};
use throng_api::ApiError;
use throng_http::awake::within;
use throng_http::retry_after::retry_after_s;

/// Maximum bytes of a request that is parsed in place; longer ones are parsed on a blocking thread.
const MAX_READ_IN_PLACE: usize = 64 << 10;

/// `POST` of [`throng_wire::GENERATE`].
pub(super) async fn generate(
    State(worker): State<Arc<WorkerState>>,
    Extension(exchange): Extension<Arc<Exchange>>,
    version: Version,
    headers: HeaderMap,
) -> Result<Body, Rejection> {
    let timeout = Duration::from_secs(worker.body_timeout_s);
    let (line, mut lines) = first_line(&worker, &exchange, version, &headers).await?;
    let mut memory = worker.memory.reservation(Part::Prompts);
    memory.set(line.len()).map_err(memory_full)?;
    let read = if line.len() > MAX_READ_IN_PLACE {
        let reading = tokio::task::spawn_blocking(move || read_request(&line));
        reading.await.map_err(|_| ApiError::internal_error("?"))?
    } else {
        read_request(&line)
    };
    let request = read.map_err(|reason| ApiError::malformed_request(&reason))?;
    let request = with_contents(request, &mut lines, &mut memory, timeout).await?;
    Ok(match worker.service.generate(request, lines, memory).await {
        Ok(generation) => Body::from_stream(generation),
        Err(line) => Body::from(line),
    })
}

/// Checks the head of a request, and reads the first line of its body.
pub(super) async fn first_line(
    worker: &WorkerState,
    exchange: &Exchange,
    version: Version,
    headers: &HeaderMap,
) -> Result<(Vec<u8>, BodyLines), Rejection> {
    if version < Version::HTTP_2 {
        return Err(ApiError::unsupported_http_version().into());
    }
    check_protocol(headers)?;
    let mut memory = worker.memory.reservation(Part::Bodies);
    let has_room = move |n_bytes| match n_bytes {
        0 => {
            memory.give_back(usize::MAX);
            true
        }
        n_bytes => memory.cover(n_bytes).is_ok(),
    };
    let mut lines = BodyLines::new(exchange.stream_body(), Some(Box::new(has_room)));
    let timeout = Duration::from_secs(worker.body_timeout_s);
    let line = within(timeout, lines.next()).await.map_err(|_| ApiError::request_timeout())?;
    let line = line.map_err(refused_line)?.ok_or_else(ApiError::incomplete_body)?;
    Ok((line, lines))
}

/// Reads the pixel values that follow the line.
async fn with_contents(
    mut request: Generate,
    lines: &mut BodyLines,
    memory: &mut Reservation,
    timeout: Duration,
) -> Result<Generate, Rejection> {
    let n_bytes = request.n_content_bytes();
    let n_bytes = n_bytes.map_err(|_| ApiError::request_too_large(throng_wire::MAX_CONTENT_BYTES))?;
    if n_bytes == 0 && request.contents.is_empty() {
        return Ok(request);
    }
    let bytes = within(timeout, lines.bytes(n_bytes)).await;
    let bytes = bytes.map_err(|_| ApiError::request_timeout())?.map_err(refused_line)?;
    memory.set(memory.n_bytes() + n_bytes).map_err(memory_full)?;
    let reading = tokio::task::spawn_blocking(move || request.take_contents(&bytes).map(|()| request));
    let read = reading.await.map_err(|_| ApiError::internal_error("?"))?;
    Ok(read.map_err(|error| ApiError::malformed_request(&error.to_string()))?)
}

/// Checks that the request has a supported version of the protocol.
fn check_protocol(headers: &HeaderMap) -> Result<(), ApiError> {
    let sent = headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if sent.is_some_and(|version| Versions::OWN.contains(version)) {
        return Ok(());
    }
    let Versions { oldest, newest } = Versions::OWN;
    Err(ApiError::malformed_request(&format!("The protocol's version must be {oldest} to {newest}")))
}

fn refused_line(error: LinesError) -> ApiError {
    match error {
        LinesError::Broken => ApiError::incomplete_body(),
        LinesError::TooLong => ApiError::request_too_large(throng_wire::MAX_LINE_BYTES),
        LinesError::NoMemory => {
            ApiError::overloaded("The worker's memory for requests is in use.", retry_after_s())
        }
    }
}
