//! `POST /v1/moderations`: categories of texts by the operator's rules and classifier. Does not judge
//! texts.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::json_body::{AppState, JsonBody, with_ignored};
use crate::generation::on_blocking_thread;
use crate::moderation::{Judgement, Unavailable};
use crate::rejection::Rejection;
use throng_api::ApiError;
use throng_api::openai::moderation::{ModerationRequest, ModerationResponse, ModerationResult};
use throng_http::retry_after::retry_after_s;

/// `POST /v1/moderations`.
pub(super) async fn moderations(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let caller = body.caller.clone();
    let state = app.clone();
    let searched = on_blocking_thread(&app.work.turns, &caller, body.n_bytes(), move |_| {
        let tenant = body.caller.key_holder();
        let (request, memory) = body.read(ModerationRequest::parse)?;
        let rules = state.policy.moderation.of(&tenant);
        let found: Vec<BTreeSet<String>> = request
            .inputs
            .iter()
            .map(|text| rules.categories_of(text).into_iter().map(str::to_owned).collect())
            .collect();
        Ok((request, memory, found))
    });
    let (request, _memory, mut found) = searched.await?;
    let judgements: Vec<Judgement> = match app.policy.moderation.classifier() {
        Some(classifier) => {
            let judged = classifier.judge(&request.inputs).await;
            judged.map_err(|Unavailable| ApiError::moderation_unavailable(retry_after_s()))?
        }
        None => Vec::new(),
    };
    for (categories, judgement) in found.iter_mut().zip(judgements) {
        categories.extend(judgement);
    }
    let response = ModerationResponse {
        id: format!("modr-{}", uuid::Uuid::new_v4().simple()),
        model: request.model.as_deref().unwrap_or("throng-rules"),
        results: found.iter().map(|found| result(app.policy.moderation.categories(), found)).collect(),
    };
    Ok(with_ignored(&app, axum::Json(response).into_response(), &request.ignored))
}

/// Result with the categories of all rules, and those that the classifier found.
fn result<'a>(all: impl Iterator<Item = &'a str>, found: &'a BTreeSet<String>) -> ModerationResult<'a> {
    let names: BTreeSet<&str> = all.chain(found.iter().map(String::as_str)).collect();
    ModerationResult {
        flagged: !found.is_empty(),
        categories: names.iter().map(|&name| (name, found.contains(name))).collect(),
        category_scores: names
            .iter()
            .map(|&name| (name, f32::from(u8::from(found.contains(name)))))
            .collect(),
    }
}
