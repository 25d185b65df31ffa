//! Files of a tenant, in OpenAI's form. Does not know their content.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, header};
use http_body_util::BodyDataStream;
use multer::{Constraints, Field, Multipart, SizeLimit};
use throng_api::ApiError;
use throng_api::openai::files::{DeletedObject, FileObject, ObjectList};
use throng_http::Exchange;
use throng_http::memory::{Part, Reservation};
use throng_state::files::{self, CHUNK_BYTES, File, FileQuery, NewFile, Upload};
use throng_state::{StateError, TenantState};
use throng_store::ListOrder;

use super::super::path_text::PathText;
use super::list_query::ListQuery;
use crate::app::App;
use crate::caller::Caller;
use crate::kept::{state_error, state_of};
use crate::rejection::{Rejection, memory_full};

/// Longest text beside the file in a form.
const MAX_TEXT_BYTES: u64 = 4 << 10;
/// Maximum bytes of a form beside the file: texts and separators.
const MAX_FORM_BYTES: u64 = 64 << 10;
/// Accepted purposes of a file.
const PURPOSES: &[&str] = &["assistants", "batch", "evals", "fine-tune", "user_data", "vision"];
/// Shortest and longest time until a file is deleted, in seconds.
const EXPIRY_S: [u64; 2] = [3_600, 2_592_000];
/// Maximum and default number of files of a page.
const LIMITS: [usize; 2] = [999, 999];

/// `POST /v1/files`: a form with the file and its purpose.
pub(in crate::routes) async fn upload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(exchange): Extension<Arc<Exchange>>,
    headers: HeaderMap,
) -> Result<Json<FileObject>, Rejection> {
    let state = state_of(&app, &caller)?;
    let received = receive(&app, &state, &exchange, &headers).await;
    // Unread bytes of the form are not the next request.
    let file = received.inspect_err(|_| exchange.close_connection())?;
    Ok(Json(file_object(file)))
}

/// `GET /v1/files`.
pub(in crate::routes) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    RawQuery(query): RawQuery,
) -> Result<Json<ObjectList<FileObject>>, Rejection> {
    let ListQuery { after, limit, order, purpose, .. } = ListQuery::parse(query.as_deref(), LIMITS)?;
    let query = FileQuery { purpose, after, order: order.unwrap_or(ListOrder::Descending), limit };
    let page = files::list(&state_of(&app, &caller)?, &query).await.map_err(state_error)?;
    let page = page.filter_map(|file| Some(file_object(file)));
    Ok(Json(ObjectList::new(page.data, page.has_more, |file| &file.id)))
}

/// `GET /v1/files/{id}`.
pub(in crate::routes) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<FileObject>, Rejection> {
    let file = files::get(&state_of(&app, &caller)?, &id).await.map_err(state_error)?;
    Ok(Json(file_object(file)))
}

/// `GET /v1/files/{id}/content`.
pub(in crate::routes) async fn content(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Response, Rejection> {
    let memory = reserve(&app)?;
    let (_, content) = files::content(&state_of(&app, &caller)?, &id).await.map_err(state_error)?;
    let pieces = stream::try_unfold((content, memory), |(mut content, memory)| async move {
        let piece = content.next().await?;
        Ok::<_, StateError>(piece.map(|piece| (Bytes::from(piece), (content, memory))))
    });
    let body = Body::from_stream(pieces.map_err(std::io::Error::other));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// `DELETE /v1/files/{id}`.
pub(in crate::routes) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    PathText(id): PathText,
) -> Result<Json<DeletedObject>, Rejection> {
    files::delete(&state_of(&app, &caller)?, &id).await.map_err(state_error)?;
    Ok(Json(DeletedObject { id, object: "file", deleted: true }))
}

/// Reserves memory for chunks in transit.
fn reserve(app: &App) -> Result<Reservation, ApiError> {
    app.work.memory.reserve(Part::Bodies, 4 * CHUNK_BYTES).map_err(memory_full)
}

fn file_object(file: File) -> FileObject {
    FileObject {
        id: file.id,
        object: "file",
        bytes: file.n_bytes,
        created_at: file.created_unix_s,
        expires_at: file.expires_unix_s,
        filename: file.filename,
        purpose: file.purpose,
        status: "processed",
    }
}

/// Fields of a form beside its file.
#[derive(Debug, Default)]
struct Form {
    purpose: Option<String>,
    expires_after_s: Option<u64>,
}

async fn receive(
    app: &App,
    state: &TenantState,
    exchange: &Exchange,
    headers: &HeaderMap,
) -> Result<File, ApiError> {
    let _memory = reserve(app)?;
    let boundary = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = boundary.and_then(|value| multer::parse_boundary(value).ok());
    let boundary = boundary.ok_or_else(ApiError::unsupported_form)?;
    let max_bytes = app.config.state.max_file_bytes;
    let body = exchange.stream_body().ok_or_else(|| ApiError::missing_required_parameter("file"))?;
    let timeout = Duration::from_secs(app.config.server.body_timeout_s);
    // The time is that of a piece: a large file may take longer.
    let pieces = stream::unfold(Some(BodyDataStream::new(body)), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout(timeout, body.next()).await {
            Ok(piece) => Some((piece?.map_err(std::io::Error::other), Some(body))),
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    });
    let size = SizeLimit::new().whole_stream(max_bytes.saturating_add(MAX_FORM_BYTES));
    let mut form = Multipart::with_constraints(pieces, boundary, Constraints::new().size_limit(size));
    let mut upload = None;
    let received = read_form(&mut form, state, max_bytes, &mut upload).await;
    let (upload, done) = match (upload, received) {
        (Some((upload, filename)), Ok(form)) => (upload, Ok((form, filename))),
        (Some((upload, _)), Err(error)) => (upload, Err(error)),
        (None, Ok(_)) => return Err(ApiError::missing_required_parameter("file")),
        (None, Err(error)) => return Err(error),
    };
    let new = done.and_then(|(Form { purpose, expires_after_s }, filename)| {
        let purpose = purpose.ok_or_else(|| ApiError::missing_required_parameter("purpose"))?;
        Ok(NewFile { filename, purpose, expires_after_s })
    });
    match new {
        Ok(new) => upload.finish(new).await.map_err(state_error),
        Err(error) => {
            upload.abandon().await;
            Err(error)
        }
    }
}

/// Reads a form. Its file is in `upload`, with its name, as soon as it has begun.
async fn read_form(
    form: &mut Multipart<'_>,
    state: &TenantState,
    max_bytes: u64,
    upload: &mut Option<(Upload, String)>,
) -> Result<Form, ApiError> {
    let mut read = Form::default();
    while let Some(mut field) = form.next_field().await.map_err(form_fault)? {
        match field.name().unwrap_or_default() {
            "file" if upload.is_some() => return Err(ApiError::duplicate_key("file")),
            "file" => {
                let filename = field.file_name().unwrap_or("upload").to_owned();
                let begun = Upload::begin(state, max_bytes).await.map_err(state_error)?;
                let (upload, _) = upload.insert((begun, filename));
                while let Some(piece) = field.chunk().await.map_err(form_fault)? {
                    upload.push(&piece).await.map_err(state_error)?;
                }
            }
            "purpose" => {
                let purpose = text(field).await?;
                if !PURPOSES.contains(&purpose.as_str()) {
                    return Err(ApiError::not_one_of("purpose", &purpose, PURPOSES));
                }
                read.purpose = Some(purpose);
            }
            "expires_after[anchor]" => {
                let anchor = text(field).await?;
                if anchor != "created_at" {
                    return Err(ApiError::not_one_of("expires_after.anchor", &anchor, &["created_at"]));
                }
            }
            "expires_after[seconds]" => {
                let seconds = text(field).await?.parse().ok();
                let [least, most] = EXPIRY_S;
                read.expires_after_s = seconds.filter(|seconds| (least..=most).contains(seconds));
                if read.expires_after_s.is_none() {
                    let reason = format!("It must be a number of seconds from {least} to {most}.");
                    return Err(ApiError::invalid_value("expires_after.seconds", reason));
                }
            }
            // Skipped.
            _ => {}
        }
    }
    Ok(read)
}

/// Reads a short text field.
async fn text(mut field: Field<'_>) -> Result<String, ApiError> {
    let name = field.name().unwrap_or_default().to_owned();
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(form_fault)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > MAX_TEXT_BYTES {
            return Err(ApiError::string_above_max_length(name, MAX_TEXT_BYTES as usize));
        }
    }
    String::from_utf8(bytes).map_err(|error| ApiError::invalid_utf8(error.utf8_error().valid_up_to()))
}

fn form_fault(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamSizeExceeded { limit } => {
            ApiError::request_too_large(usize::try_from(limit).unwrap_or(usize::MAX))
        }
        multer::Error::StreamReadFailed(reason) => {
            let is_late = reason
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut);
            if is_late { ApiError::request_timeout() } else { ApiError::incomplete_body() }
        }
        multer::Error::IncompleteStream | multer::Error::IncompleteFieldData { .. } => {
            ApiError::incomplete_body()
        }
        _ => ApiError::unsupported_form(),
    }
}
