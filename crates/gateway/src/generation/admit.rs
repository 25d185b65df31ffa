//! From prepared requests to a running session, or to the reason why not. Does not know how answers are shown.

use std::sync::Arc;

use super::client_error::{BlamedParams, client_error};
use super::prepare::Prepared;
use super::session::{BegunPrompt, Session};
use crate::connection::RequestContext;
use crate::limits::{Charge, RateLimits, limit_error, refusal_name};
use crate::openai::ApiError;
use crate::replica::ReplicaRequest;
use crate::router::Route;

/// Charges the key's limits and submits all requests to the model's replicas. Either all are taken in or none; `prompt_param` is
/// where the prompt stood.
///
/// # Errors
/// 400 for what can never run, 429 for what the key may not use now, 503 for what cannot run at present.
pub(crate) async fn admit(
    route: &Route,
    prepared: Prepared,
    prompt_param: &'static str,
    context: &Arc<RequestContext>,
    limits: &Arc<RateLimits>,
) -> Result<Session, ApiError> {
    let Prepared { requests, text, memory, constraint_param, adapter, .. } = prepared;
    let blamed = BlamedParams { prompt: prompt_param, constraint: constraint_param };
    let metrics = &route.model.metrics;
    let mut charge = charge(route, &requests, context, limits)?;
    let mut prompts = Vec::with_capacity(requests.len());
    for request in requests {
        let (n, n_tokens) = (request.n_continuations(), request.prompt.len());
        let sampling = Arc::clone(&request.sampling);
        let generation = route.generate(request).await.map_err(|error| {
            metrics.rejected(error.kind.name());
            client_error(&error, &blamed, &route.model, context.id_text())
        })?;
        charge.begin();
        charge.add(n_tokens as u64);
        metrics.admitted(n_tokens, n, sampling.max_tokens);
        prompts.push(BegunPrompt { generation, n, n_tokens, sampling });
    }
    let session = Session::new(route.model.clone(), prompts, blamed, text.as_ref(), memory, context.clone());
    Ok(session.with_adapter(adapter).with_charge(charge))
}

/// Charges with all tokens of the prompts, and all that may be generated.
fn charge(
    route: &Route,
    requests: &[ReplicaRequest],
    context: &RequestContext,
    limits: &Arc<RateLimits>,
) -> Result<Charge, ApiError> {
    let most = |request: &ReplicaRequest| {
        let n_generated = u64::from(request.n_continuations()) * u64::from(request.sampling.max_tokens);
        request.prompt.len() as u64 + n_generated
    };
    let charged = limits.charge(&context.key_holder(), requests.iter().map(most).sum());
    context.set_limits(charged.status);
    charged.charge.map_err(|refusal| {
        route.model.metrics.rejected(refusal_name(&refusal));
        limit_error(&refusal)
    })
}

/// Refuses a request that all replicas would refuse now whatever its prompt is, before any work is spent on it.
///
/// # Errors
/// 503.
pub(crate) fn check_room(route: &Route, request_id: &str) -> Result<(), ApiError> {
    route.check_room().map_err(|error| {
        route.model.metrics.rejected(error.kind.name());
        let blamed = BlamedParams { prompt: "", constraint: None };
        client_error(&error, &blamed, &route.model, request_id)
    })
}
