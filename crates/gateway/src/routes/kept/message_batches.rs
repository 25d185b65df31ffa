//! Batches in Anthropic's form. Does not know how they are answered.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use http::header;
use throng_api::anthropic::batches::{
    BatchCounts, BatchPage, DeletedBatch, MessageBatch, MessageBatchRequest, timestamp,
};
use throng_http::memory::Part;
use throng_state::StateError;
use throng_state::batches::{self, Batch, BatchForm, BatchQuery, MessageResults, NewMessageBatch, Status};

use super::super::json_body::{AppState, JsonBody, with_ignored};
use super::super::path_text::PathText;
use super::list_query::ListQuery;
use crate::app::App;
use crate::caller::Caller;
use crate::kept::{principal_of, state_error, state_of};
use crate::rejection::{Rejection, memory_full};

const FORM: BatchForm = BatchForm::Anthropic;
/// Maximum and default number of batches of a page.
const LIMITS: [usize; 2] = [999, 20];
/// Memory that is reserved while results are read.
const RESULT_BYTES: usize = 8 << 20;

/// `POST /v1/messages/batches`.
pub(in crate::routes) async fn create(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let caller = body.caller.clone();
    let (request, _memory) = body.read(MessageBatchRequest::parse)?;
    let principal = principal_of(&caller.key_holder());
    let new = NewMessageBatch { requests: request.requests, principal };
    let batch = batches::create_messages(&state_of(&app, &caller)?, new).await.map_err(state_error)?;
    Ok(with_ignored(&app, Json(batch_object(batch)), &request.ignored))
}

/// `GET /v1/messages/batches`.
pub(in crate::routes) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    RawQuery(query): RawQuery,
) -> Result<Json<BatchPage>, Rejection> {
    let ListQuery { after, before, limit, .. } = ListQuery::parse(query.as_deref(), LIMITS)?;
    let state = state_of(&app, &caller)?;
    let page = match before {
        Some(before) => batches::list_before(&state, FORM, &before, limit).await,
        None => batches::list(&state, FORM, &BatchQuery { after, limit }).await,
    };
    let page = page.map_err(state_error)?.filter_map(|batch| Some(batch_object(batch)));
    let id = |batch: Option<&MessageBatch>| batch.map(|batch| batch.id.clone());
    let (first_id, last_id) = (id(page.data.first()), id(page.data.last()));
    Ok(Json(BatchPage { first_id, last_id, has_more: page.has_more, data: page.data }))
}

/// `GET /v1/messages/batches/{id}`.
pub(in crate::routes) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<MessageBatch>, Rejection> {
    let batch = batches::get(&state_of(&app, &caller)?, FORM, &id).await.map_err(state_error)?;
    Ok(Json(batch_object(batch)))
}

/// `POST /v1/messages/batches/{id}/cancel`.
pub(in crate::routes) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<MessageBatch>, Rejection> {
    let batch = batches::cancel(&state_of(&app, &caller)?, FORM, &id).await.map_err(state_error)?;
    Ok(Json(batch_object(batch)))
}

/// `DELETE /v1/messages/batches/{id}`.
pub(in crate::routes) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<DeletedBatch>, Rejection> {
    batches::delete(&state_of(&app, &caller)?, FORM, &id).await.map_err(state_error)?;
    Ok(Json(DeletedBatch { id, r#type: "message_batch_deleted" }))
}

/// `GET /v1/messages/batches/{id}/results`: one result on each line.
pub(in crate::routes) async fn results(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let memory = app.work.memory.reserve(Part::Bodies, RESULT_BYTES).map_err(memory_full)?;
    let results = MessageResults::open(&state_of(&app, &caller)?, &id).await.map_err(state_error)?;
    let lines = stream::try_unfold((results, memory), |(mut results, memory)| async move {
        let line = results.next().await?;
        Ok::<_, StateError>(line.map(|line| (Bytes::from(line), (results, memory))))
    });
    let body = Body::from_stream(lines.map_err(std::io::Error::other));
    Ok(([(header::CONTENT_TYPE, "application/x-jsonl")], body).into_response())
}

fn batch_object(batch: Batch) -> MessageBatch {
    let counts = batch.counts;
    let processing_status = match batch.status {
        Status::Validating | Status::InProgress => "in_progress",
        Status::Cancelling => "canceling",
        Status::Completed | Status::Failed | Status::Expired | Status::Cancelled => "ended",
    };
    let has_results = batch.status.is_final() && batch.status != Status::Failed;
    MessageBatch {
        r#type: "message_batch",
        processing_status,
        request_counts: BatchCounts {
            processing: counts.n_open(),
            succeeded: counts.succeeded,
            errored: counts.errored,
            canceled: counts.cancelled,
            expired: counts.expired,
        },
        created_at: timestamp(batch.created_unix_s),
        expires_at: timestamp(batch.due_unix_s),
        ended_at: batch.times.ended.map(timestamp),
        cancel_initiated_at: batch.times.cancelling.map(timestamp),
        archived_at: None,
        results_url: has_results.then(|| format!("/v1/messages/batches/{}/results", batch.id)),
        id: batch.id,
    }
}
