//! `GET /admin/audit`: destinations of requests that are bound to regions. Does not write the audit.

use axum::Json;
use axum::extract::{RawQuery, State};
use serde_json::{Value, json};
use throng_store::{AuditLine, AuditQuery, MAX_AUDIT_LINES};

use super::{answered, store};
use crate::rejection::Rejection;
use crate::routes::json_body::AppState;
use throng_api::ApiError;

/// Latest accepted time: the year 9999.
const MAX_TIME_S: u64 = 253_402_300_799;
const DEFAULT_LINES: usize = 100;

/// A page of lines in the order in which they were written.
pub(in crate::routes) async fn list(
    State(app): AppState,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Rejection> {
    let query = question(query.as_deref().unwrap_or_default())?;
    let lines = answered(store(&app)?.audit(&query).await)?;
    // A page that is full may be the last one; the next is empty then.
    let has_more = lines.len() == query.limit;
    let last = lines.last().map(|(number, _)| *number);
    let data: Vec<Value> = lines.iter().map(shown).collect();
    Ok(Json(json!({"object": "list", "data": data, "has_more": has_more, "last": last})))
}

fn question(query: &str) -> Result<AuditQuery, ApiError> {
    let mut question =
        AuditQuery { end_unix_ms: (MAX_TIME_S + 1) * 1_000, limit: DEFAULT_LINES, ..AuditQuery::default() };
    let mut seen: Vec<String> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let name = &*name;
        let invalid = |expected: &str| {
            ApiError::invalid_value(name, format!("Invalid '{name}': it must be {expected}."))
        };
        let number = |least: u64, most: u64, expected: &str| {
            let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| invalid(expected))
        };
        if seen.iter().any(|seen| seen == name) {
            return Err(invalid("named once"));
        }
        seen.push(name.to_owned());
        match name {
            "start_time" => question.start_unix_ms = 1_000 * number(0, MAX_TIME_S, "seconds since 1970")?,
            "end_time" => question.end_unix_ms = 1_000 * number(0, MAX_TIME_S, "seconds since 1970")?,
            "organisation" => question.organisation = Some(value.clone().into_owned()),
            "after" => question.after = number(0, i64::MAX as u64, "the 'last' of an answer")?,
            "limit" => {
                let most = MAX_AUDIT_LINES as u64;
                question.limit = number(1, most, &format!("from 1 to {most}"))? as usize;
            }
            other => return Err(ApiError::unknown_parameter(other)),
        }
    }
    Ok(question)
}

fn shown((number, line): &(u64, AuditLine)) -> Value {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let regions: Vec<&str> = line.permitted.split(',').filter(|region| !region.is_empty()).collect();
    json!({
        "number": number,
        "at": line.at_unix_ms as f64 / 1_000.0,
        "event": line.event.name(),
        "request_id": given(&line.request_id),
        "organisation": line.organisation,
        "model": given(&line.model),
        "permitted_regions": regions,
        "replica": given(&line.replica),
        "region": given(&line.region),
        "reason": given(&line.reason),
    })
}
