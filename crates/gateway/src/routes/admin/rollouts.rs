//! Roll-outs in the operator's API. Does not make decisions.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use throng_core::fleet::rollout::{Plan, Stage};
use throng_core::time::Nanos;

use super::super::generate;
use super::super::json_body::{AppState, JsonBody};
use super::super::path_text::PathText;
use super::bodies;
use crate::aliases::{Golden, RunningRollout};
use crate::rejection::Rejection;
use throng_api::ApiError;

/// Maximum number of golden prompts of a roll-out, and of tokens of an answer to one.
const MAX_GOLDEN: usize = 16;
const MAX_GOLDEN_TOKENS: u32 = 512;
/// Longest stage in seconds: a week.
const MAX_STAGE_S: u64 = 7 * 86_400;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BeginRollout {
    alias: String,
    model: String,
    stages: Vec<StageBody>,
    #[serde(default)]
    golden: Vec<GoldenBody>,
    min_outcomes: Option<u32>,
    max_failure_excess_percent: Option<u32>,
    max_slowness_percent: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageBody {
    percent: u32,
    seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenBody {
    prompt: Value,
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    max_tokens: u32,
}

impl GoldenBody {
    fn golden(self) -> Result<Golden, ApiError> {
        let Self { prompt, text, token_ids, max_tokens } = self;
        let (field, expected) = match (text, token_ids) {
            (Some(text), None) => ("text", json!(text)),
            (None, Some(ids)) => ("token_ids", json!(ids)),
            _ => {
                let reason = "a golden prompt needs its text or its token_ids".to_owned();
                return Err(ApiError::refused_change(reason));
            }
        };
        Ok(Golden { prompt, max_tokens, field, expected })
    }
}

impl BeginRollout {
    fn plan(&self) -> Result<Plan, ApiError> {
        let refused = |what: &str| ApiError::refused_change(what.to_owned());
        if self.golden.len() > MAX_GOLDEN {
            return Err(refused(&format!("there may be {MAX_GOLDEN} golden prompts")));
        }
        if self.golden.iter().any(|golden| !(1..=MAX_GOLDEN_TOKENS).contains(&golden.max_tokens)) {
            return Err(refused(&format!("max_tokens of a golden prompt must be 1 to {MAX_GOLDEN_TOKENS}")));
        }
        if self.stages.iter().any(|stage| stage.seconds > MAX_STAGE_S) {
            return Err(refused("a stage may last a week"));
        }
        let stage =
            |stage: &StageBody| Stage { percent: stage.percent, hold: Nanos::from_ms(stage.seconds * 1000) };
        let usual = Plan::of(self.stages.iter().map(stage).collect());
        let plan = Plan {
            min_outcomes: self.min_outcomes.unwrap_or(usual.min_outcomes),
            max_failure_excess_percent: self
                .max_failure_excess_percent
                .unwrap_or(usual.max_failure_excess_percent),
            max_slowness_percent: self.max_slowness_percent.unwrap_or(usual.max_slowness_percent),
            has_golden: !self.golden.is_empty(),
            ..usual
        };
        plan.check().map_err(|fault| ApiError::refused_change(fault.to_string()))?;
        Ok(plan)
    }
}

/// `GET /admin/rollouts`: the latest roll-out of each alias.
pub(in crate::routes) async fn list(State(app): AppState) -> Json<Value> {
    let data: Vec<Value> =
        app.models.aliases.iter().filter_map(|alias| Some(shown(&*alias.rollout()?))).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `POST /admin/rollouts`: begins a roll-out.
pub(in crate::routes) async fn begin(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    let (body, _memory) = body.read(bodies::parse::<BeginRollout>)?;
    let plan = body.plan()?;
    let BeginRollout { alias, model, golden, .. } = body;
    let alias =
        app.models.aliases.find(&alias).ok_or_else(|| ApiError::not_found("There is no such alias"))?;
    if !generate::is_usable(&app, &model) {
        return Err(ApiError::refused_change(format!("the model {model:?} cannot be used now")).into());
    }
    let golden = golden.into_iter().map(GoldenBody::golden).collect::<Result<Vec<_>, ApiError>>()?;
    let rollout = alias.begin(model, plan, golden).ok_or_else(|| {
        ApiError::refused_change("a roll-out of this alias is on its way; take it back first".to_owned())
    })?;
    tokio::spawn(generate::watch_golden(app.clone(), rollout.clone()));
    Ok((StatusCode::CREATED, Json(shown(&rollout))).into_response())
}

/// `POST /admin/rollouts/{alias}/rollback`: the old version has all requests again.
pub(in crate::routes) async fn roll_back(
    State(app): AppState,
    PathText(name): PathText,
) -> Result<Json<Value>, Rejection> {
    let rollout = app.models.aliases.find(&name).and_then(|alias| alias.rollout());
    let rollout = rollout.ok_or_else(|| ApiError::not_found("There is no roll-out of this alias"))?;
    rollout.abort();
    Ok(Json(shown(&rollout)))
}

fn shown(rollout: &RunningRollout) -> Value {
    let status = rollout.status();
    json!({
        "alias": rollout.alias, "model": rollout.model, "state": status.state, "stage": status.stage,
        "percent": status.percent, "cause": status.cause,
    })
}
