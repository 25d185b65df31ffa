//! Batches in OpenAI's form. Does not know how they are answered.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::{Extension, Json};
use throng_api::ApiError;
use throng_api::openai::batch::CreateBatchRequest;
use throng_api::openai::files::{BatchError, BatchErrors, BatchObject, ObjectList, RequestCounts};
use throng_state::batches::{self, Batch, BatchForm, BatchQuery, NewBatch, Status};

use super::super::batch_endpoint::BatchEndpoint;
use super::super::json_body::{AppState, JsonBody, with_ignored};
use super::super::path_text::PathText;
use super::list_query::ListQuery;
use crate::app::App;
use crate::caller::Caller;
use crate::kept::{principal_of, state_error, state_of};
use crate::rejection::Rejection;

/// Maximum and default number of batches of a page.
const LIMITS: [usize; 2] = [100, 20];

/// `POST /v1/batches`.
pub(in crate::routes) async fn create(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let caller = body.caller.clone();
    let (request, _memory) = body.read(CreateBatchRequest::parse)?;
    if BatchEndpoint::of_path(request.endpoint).is_none() {
        let reason = "This server answers no batches of this endpoint.";
        return Err(ApiError::unsupported_parameter("endpoint", reason).into());
    }
    let new = NewBatch {
        endpoint: request.endpoint.to_owned(),
        input_file: request.input_file_id,
        metadata: request.metadata,
        principal: principal_of(&caller.key_holder()),
    };
    let batch = batches::create(&state_of(&app, &caller)?, new).await.map_err(state_error)?;
    Ok(with_ignored(&app, Json(batch_object(batch)), &request.ignored))
}

/// `GET /v1/batches`.
pub(in crate::routes) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    RawQuery(query): RawQuery,
) -> Result<Json<ObjectList<BatchObject>>, Rejection> {
    let ListQuery { after, limit, .. } = ListQuery::parse(query.as_deref(), LIMITS)?;
    let state = state_of(&app, &caller)?;
    let page = batches::list(&state, BatchForm::Openai, &BatchQuery { after, limit }).await;
    let page = page.map_err(state_error)?.filter_map(|batch| Some(batch_object(batch)));
    Ok(Json(ObjectList::new(page.data, page.has_more, |batch| &batch.id)))
}

/// `GET /v1/batches/{id}`.
pub(in crate::routes) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<BatchObject>, Rejection> {
    let batch = batches::get(&state_of(&app, &caller)?, BatchForm::Openai, &id).await;
    Ok(Json(batch_object(batch.map_err(state_error)?)))
}

/// `POST /v1/batches/{id}/cancel`.
pub(in crate::routes) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<BatchObject>, Rejection> {
    let batch = batches::cancel(&state_of(&app, &caller)?, BatchForm::Openai, &id).await;
    Ok(Json(batch_object(batch.map_err(state_error)?)))
}

fn batch_object(batch: Batch) -> BatchObject {
    let ended = |status| batch.times.ended.filter(|_| batch.status == status);
    let errors = batch.fault.as_ref().map(|fault| BatchErrors {
        object: "list",
        data: vec![BatchError {
            code: fault.code.clone(),
            line: None,
            message: fault.message.clone(),
            param: None,
        }],
    });
    let counts = batch.counts;
    BatchObject {
        object: "batch",
        errors,
        completion_window: "24h",
        status: batch.status.name(),
        in_progress_at: batch.times.began,
        expires_at: batch.due_unix_s,
        finalizing_at: ended(Status::Completed),
        completed_at: ended(Status::Completed),
        failed_at: ended(Status::Failed),
        expired_at: ended(Status::Expired),
        cancelling_at: batch.times.cancelling,
        cancelled_at: ended(Status::Cancelled),
        request_counts: RequestCounts {
            total: counts.total,
            completed: counts.succeeded,
            failed: counts.errored + counts.expired,
        },
        created_at: batch.created_unix_s,
        id: batch.id,
        endpoint: batch.endpoint,
        input_file_id: batch.input.id,
        output_file_id: batch.output_file,
        error_file_id: batch.error_file,
        metadata: batch.metadata,
    }
}
