//! Creating, reading and ending batches for clients.

use serde_json::Value;
use throng_api::ApiError;
use throng_store::{ListOrder, ObjectKind, ObjectWrite, StoreError, StoredObject, now_unix_s};

use super::record::{Batch, BatchRecord, Counts, InputRef, Status, Times};
use super::{BATCH, BatchForm, MESSAGES, WINDOW_S};
use crate::error::StateError;
use crate::files::{self, NewFile, Upload};
use crate::id::new_id;
use crate::tenant::{Page, TenantState};

/// Maximum number of tries of a change that conflicts with a runner's.
const N_TRIES: usize = 8;

/// A batch in OpenAI's form, as its client requests it.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// Endpoint of its requests.
    pub endpoint: String,
    /// Id of the input file.
    pub input_file: String,
    /// Metadata from the client.
    pub metadata: Option<Value>,
    /// Principal of the batch, in the form of the answerer.
    pub principal: Value,
}

/// The requests of a batch in Anthropic's form.
#[derive(Debug, Clone)]
pub struct NewMessageBatch {
    /// Ids of the requests with their parameters, as JSON.
    pub requests: Vec<(String, Box<serde_json::value::RawValue>)>,
    /// Principal of the batch, in the form of the answerer.
    pub principal: Value,
}

/// A page of a tenant's batches, the newest first.
#[derive(Debug, Clone)]
pub struct BatchQuery {
    /// Id of the batch after which the page begins.
    pub after: Option<String>,
    /// Maximum number of batches of the page.
    pub limit: usize,
}

/// Creates a batch from the lines of a file.
///
/// # Errors
/// [`StateError::NotFound`] for an unknown file, 400 for one of another purpose, and errors of the
/// database.
pub async fn create(tenant: &TenantState, new: NewBatch) -> Result<Batch, StateError> {
    let file = files::get(tenant, &new.input_file).await?;
    if file.purpose != "batch" {
        let reason = "The file must have been uploaded with the purpose 'batch'.";
        return Err(ApiError::invalid_value("input_file_id", reason).into());
    }
    let input = InputRef { is_file: true, id: file.id };
    begin(tenant, BatchForm::Openai, (new.endpoint, input), new.metadata, (new.principal, 0)).await
}

/// Creates a batch from requests in its body.
///
/// # Errors
/// Errors of the database.
pub async fn create_messages(tenant: &TenantState, new: NewMessageBatch) -> Result<Batch, StateError> {
    // Its requests are there as long as it is.
    let keeping = tenant.clone().keeping_for(tenant.retention_s().map(|seconds| seconds.max(2 * WINDOW_S)));
    let mut upload = Upload::begin_as(&keeping, ObjectKind::BatchInput, "batchinput_", u64::MAX).await?;
    for (custom_id, params) in &new.requests {
        let custom_id = Value::from(custom_id.as_str());
        let line = format!(
            "{{\"custom_id\":{custom_id},\"method\":\"POST\",\"url\":\"{MESSAGES}\",\"body\":{}}}\n",
            one_line(params.get())
        );
        if let Err(error) = upload.push(line.as_bytes()).await {
            upload.abandon().await;
            return Err(error);
        }
    }
    let whole = NewFile { filename: String::new(), purpose: String::new(), expires_after_s: None };
    let input = InputRef { is_file: false, id: upload.finish(whole).await?.id };
    let n_lines = new.requests.len() as u64;
    let place = (MESSAGES.to_owned(), input);
    begin(tenant, BatchForm::Anthropic, place, None, (new.principal, n_lines)).await
}

/// JSON without line breaks, which can only be between its values.
fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

async fn begin(
    tenant: &TenantState,
    form: BatchForm,
    (endpoint, input): (String, InputRef),
    metadata: Option<Value>,
    (principal, total): (Value, u64),
) -> Result<Batch, StateError> {
    let now = now_unix_s();
    let key = tenant.key(form.kind(), &new_id(form.prefix()));
    let record = BatchRecord {
        endpoint,
        input,
        principal,
        metadata,
        due_unix_s: now + WINDOW_S,
        status: Status::Validating,
        times: Times::default(),
        counts: Counts { total, ..Counts::default() },
        n_output_bytes: 0,
        n_error_bytes: 0,
        output_file: None,
        error_file: None,
        fault: None,
    };
    // It is there until its window has passed, however short the retention is.
    let expires = tenant.expiry(now).map(|expires| expires.max(now + 2 * WINDOW_S));
    let made = ObjectWrite::create(key.clone(), now, record.write()?)
        .expiring(expires)
        .pending(true)
        .within(tenant.quota());
    tenant.store().write_objects(&[made]).await?;
    get(tenant, form, &key.id).await
}

/// Reads a batch.
///
/// # Errors
/// [`StateError::NotFound`].
pub async fn get(tenant: &TenantState, form: BatchForm, id: &str) -> Result<Batch, StateError> {
    let (object, record) = find(tenant, form, id).await?;
    Ok(Batch::new(&object, record))
}

/// Lists batches, except unreadable ones.
///
/// # Errors
/// [`StateError::NotFound`] for an unknown `after`.
pub async fn list(
    tenant: &TenantState,
    form: BatchForm,
    query: &BatchQuery,
) -> Result<Page<Batch>, StateError> {
    page(tenant, form, query, ListOrder::Descending).await
}

/// Lists the batches right before one, also the newest first.
///
/// # Errors
/// [`StateError::NotFound`] for an unknown batch.
pub async fn list_before(
    tenant: &TenantState,
    form: BatchForm,
    before: &str,
    limit: usize,
) -> Result<Page<Batch>, StateError> {
    let query = BatchQuery { after: Some(before.to_owned()), limit };
    let mut page = page(tenant, form, &query, ListOrder::Ascending).await?;
    page.data.reverse();
    Ok(page)
}

async fn page(
    tenant: &TenantState,
    form: BatchForm,
    query: &BatchQuery,
    order: ListOrder,
) -> Result<Page<Batch>, StateError> {
    let from = (None, query.after.as_deref());
    let page = tenant.page(form.kind(), BATCH, from, order, query.limit).await?;
    Ok(page.filter_map(|object| Some(Batch::new(&object, BatchRecord::read(&object).ok()?))))
}

/// Cancels a batch: running lines are aborted, and lines without a result get none. Cancelling it again has
/// no effect.
///
/// # Errors
/// [`StateError::NotFound`]; 400 for a batch that has ended otherwise.
pub async fn cancel(tenant: &TenantState, form: BatchForm, id: &str) -> Result<Batch, StateError> {
    for _ in 0..N_TRIES {
        let (object, mut record) = find(tenant, form, id).await?;
        match record.status {
            Status::Cancelling | Status::Cancelled => return Ok(Batch::new(&object, record)),
            status if status.is_final() => {
                let reason = format!("the batch has ended already: it is {}", status.name());
                return Err(ApiError::refused_change(reason).into());
            }
            _ => {}
        }
        record.status = Status::Cancelling;
        record.times.cancelling = Some(now_unix_s());
        match tenant.store().write_objects(&[ObjectWrite::replace(&object, record.write()?)]).await {
            Ok(_) => return Ok(Batch::new(&object, record)),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Conflict.into())
}

/// Deletes a batch that has ended, with its results and the requests from its body.
///
/// # Errors
/// [`StateError::NotFound`]; 400 for a batch that has not ended.
pub async fn delete(tenant: &TenantState, form: BatchForm, id: &str) -> Result<(), StateError> {
    let (object, record) = find(tenant, form, id).await?;
    if !record.status.is_final() {
        let reason = "the batch has not ended: cancel it first".to_owned();
        return Err(ApiError::refused_change(reason).into());
    }
    if !record.input.is_file {
        tenant.store().delete_object(&tenant.key(record.input.kind(), &record.input.id)).await?;
    }
    tenant.store().delete_object(&object.key).await?;
    Ok(())
}

async fn find(
    tenant: &TenantState,
    form: BatchForm,
    id: &str,
) -> Result<(StoredObject, BatchRecord), StateError> {
    let object = tenant.object(form.kind(), id, BATCH).await?;
    let record = BatchRecord::read(&object)?;
    Ok((object, record))
}
