//! The stored result of a line, and its form in both APIs.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use throng_store::{ItemAfter, ItemQuery, MAX_PAGE_ENTRIES, NewItem, ObjectKind, StoredItem};

use crate::error::StateError;
use crate::tenant::TenantState;

/// Part of a batch's results that a file shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultPart {
    /// Lines with an answer.
    Output,
    /// Lines without an answer.
    Errors,
}

/// Results that are a file's content.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ResultsOf {
    /// Id of the batch.
    pub batch: String,
    /// Part of the batch's results.
    pub part: ResultPart,
}

/// Outcome of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The line has an answer.
    Succeeded,
    /// The line has an error.
    Errored,
    /// The batch was cancelled before the line was answered.
    Cancelled,
    /// The batch expired before the line was answered.
    Expired,
}

/// The result of a line, without its body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ResultLine {
    /// The client's id of the line, if it has one.
    pub custom_id: Option<String>,
    /// Outcome of the line.
    pub outcome: Outcome,
    /// HTTP status of the answer; 0 if there was no request.
    pub status: u16,
    /// Id of the request.
    pub request_id: String,
}

impl ResultLine {
    /// The result of a request.
    pub fn answered(custom_id: String, status: u16, request_id: String) -> Self {
        let outcome = if (200..300).contains(&status) { Outcome::Succeeded } else { Outcome::Errored };
        Self { custom_id: Some(custom_id), outcome, status, request_id }
    }

    /// Item for the result of line `number`, with the answer's body.
    pub(crate) fn item(&self, number: u64, body: &[u8]) -> Result<NewItem, StateError> {
        let mut bytes =
            serde_json::to_vec(self).map_err(|_| StateError::Unreadable(self.request_id.clone()))?;
        bytes.push(b'\n');
        bytes.extend_from_slice(body);
        Ok(NewItem { id: number.to_string(), body: bytes })
    }

    /// Parses an item into the result and the answer's body.
    pub(crate) fn read(item: &StoredItem) -> Option<(Self, &[u8])> {
        let end = item.body.iter().position(|&byte| byte == b'\n')?;
        let line = serde_json::from_slice(&item.body[..end]).ok()?;
        Some((line, &item.body[end + 1..]))
    }

    fn part(&self) -> Option<ResultPart> {
        match self.outcome {
            Outcome::Succeeded => Some(ResultPart::Output),
            Outcome::Errored | Outcome::Expired => Some(ResultPart::Errors),
            Outcome::Cancelled => None,
        }
    }
}

/// A result as a line of OpenAI's output and error files.
pub fn openai_result(line: &ResultLine, body: &[u8]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Response<'a> {
        status_code: u16,
        request_id: &'a str,
        body: &'a RawValue,
    }
    #[derive(Serialize)]
    struct Written<'a> {
        id: String,
        custom_id: Option<&'a str>,
        response: Option<Response<'a>>,
        error: Option<Value>,
    }
    let raw: Option<&RawValue> = serde_json::from_slice(body).ok();
    let error = match line.outcome {
        Outcome::Expired => Some(json!({
            "code": "batch_expired",
            "message": "This request could not be answered before the end of the batch's window.",
        })),
        Outcome::Cancelled => Some(
            json!({"code": "batch_cancelled", "message": "The batch was cancelled before this request."}),
        ),
        _ if line.status == 0 => raw.and_then(|raw| serde_json::from_str(raw.get()).ok()),
        _ => None,
    };
    let response = raw.filter(|_| error.is_none()).map(|body| Response {
        status_code: line.status,
        request_id: &line.request_id,
        body,
    });
    // A line that was never sent has the number of the batch in place of a request's id.
    let id = format!("batch_{}", line.request_id.trim_start_matches("batch_"));
    let written = Written { id, custom_id: line.custom_id.as_deref(), response, error };
    with_end(serde_json::to_vec(&written).unwrap_or_default())
}

/// A result as a line of Anthropic's results.
pub(crate) fn message_result(line: &ResultLine, body: &[u8]) -> Vec<u8> {
    let raw: Option<&RawValue> = serde_json::from_slice(body).ok();
    let custom_id = json!(line.custom_id);
    let written = match (line.outcome, raw) {
        (Outcome::Succeeded, Some(message)) => {
            format!(r#"{{"custom_id":{custom_id},"result":{{"type":"succeeded","message":{message}}}}}"#)
        }
        (Outcome::Expired, _) => format!(r#"{{"custom_id":{custom_id},"result":{{"type":"expired"}}}}"#),
        (Outcome::Cancelled, _) => format!(r#"{{"custom_id":{custom_id},"result":{{"type":"canceled"}}}}"#),
        (_, Some(error)) if line.status != 0 => {
            format!(r#"{{"custom_id":{custom_id},"result":{{"type":"errored","error":{error}}}}}"#)
        }
        (_, fault) => {
            let fault: Value = fault.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
            let error = json!({"type": "invalid_request_error", "message": fault["message"]});
            json!({"custom_id": line.custom_id, "result": {"type": "errored", "error": {"type": "error", "error": error}}})
                .to_string()
        }
    };
    with_end(written.into_bytes())
}

fn with_end(mut line: Vec<u8>) -> Vec<u8> {
    line.push(b'\n');
    line
}

/// Bytes of the result's line in its file, and the part that it belongs to.
pub(crate) fn openai_bytes(line: &ResultLine, body: &[u8]) -> (Option<ResultPart>, u64) {
    (line.part(), openai_result(line, body).len() as u64)
}

/// Line of a file of results; `None` if the item belongs to another file.
pub(crate) fn openai_line(results: &ResultsOf, item: &StoredItem) -> Option<Vec<u8>> {
    let (line, body) = ResultLine::read(item)?;
    (line.part() == Some(results.part)).then(|| openai_result(&line, body))
}

/// Deletes the results that a file shows.
pub(crate) async fn delete_results(tenant: &TenantState, results: &ResultsOf) -> Result<(), StateError> {
    let key = tenant.key(ObjectKind::Batch, &results.batch);
    let mut query = ItemQuery::new(key.clone(), MAX_PAGE_ENTRIES);
    loop {
        let page = match tenant.store().items(&query).await {
            Ok(page) => page,
            // The batch is gone, and its results with it.
            Err(throng_store::StoreError::UnknownObject) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(last) = page.last() else { return Ok(()) };
        query.after = Some(ItemAfter::Number(last.number));
        for item in page {
            if ResultLine::read(&item).is_some_and(|(line, _)| line.part() == Some(results.part)) {
                tenant.store().delete_item(&key, &item.id).await?;
            }
        }
    }
}
