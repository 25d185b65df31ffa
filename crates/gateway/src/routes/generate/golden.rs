//! Golden prompts of a roll-out: they are sent to the new version repeatedly, and its answers are compared
//! with the expected ones. Does not judge the roll-out.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::super::json_body::JsonBody;
use super::{COMPLETIONS, answer_as};
use crate::aliases::{Golden, RunningRollout};
use crate::app::App;
use crate::generate::Target;
use throng_api::ApiError;

/// Tenant of golden prompts.
const TENANT: &str = "throng golden";
/// Pause between two rounds.
const INTERVAL: Duration = Duration::from_secs(5);
/// Longest time for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Sends the golden prompts until the roll-out has ended.
pub(in crate::routes) async fn watch(app: Arc<App>, rollout: Arc<RunningRollout>) {
    while rollout.is_running() && !rollout.golden.is_empty() && !app.is_draining() {
        for golden in &rollout.golden {
            match tokio::time::timeout(TIMEOUT, ask(&app, &rollout.model, golden)).await {
                Ok(Ok(answer)) => rollout.golden(answer == golden.expected),
                Ok(Err(error)) if error.status().is_client_error() => rollout.golden(false),
                // Who does not answer is judged by the requests that fail.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The model's continuation of a prompt.
async fn ask(app: &Arc<App>, model: &str, golden: &Golden) -> Result<Value, ApiError> {
    let mut body = json!({
        "model": model, "prompt": golden.prompt, "max_tokens": golden.max_tokens, "temperature": 0,
    });
    if golden.field == "token_ids" {
        body["return_token_ids"] = true.into();
    }
    let body = JsonBody::internal(app, TENANT, &HeaderMap::new(), body.to_string().into())?;
    let target = Target::Last(model.to_owned());
    let answer = answer_as(app.clone(), body, COMPLETIONS, target).await?;
    let read = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    let bytes = read.map_err(|_| ApiError::internal_error("golden"))?.to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(answer["choices"][0][golden.field].clone())
}
