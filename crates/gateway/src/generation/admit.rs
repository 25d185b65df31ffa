//! Admission of prepared requests: returns a running session or a refusal. Does not know the form of
//! answers.

use std::sync::Arc;

use futures_util::FutureExt;
use throng_core::scheduling::ServiceRate;
use throng_fleet::replica::ReplicaRequest;

use super::client_error::{BlamedParams, client_error};
use super::prepare::Prepared;
use super::session::{BegunPrompt, Session};
use crate::caller::Caller;
use crate::limits::{
    Charge, RateLimits, budget_scopes, limit_error, refusal_name, uncounted_error, uncounted_name,
};
use crate::overload::Urgency;
use crate::policy::Policy;
use crate::regions::{check_hops, check_regions};
use crate::router::Route;
use throng_api::ApiError;
use throng_cache::Sharing;
use throng_metering::ledger::{Counted, Ledger, Meter};

/// Charges the key's limits and submits all requests to the model's replicas, except those with a cached
/// answer. Either all are admitted or none; `prompt_param` is the name of the prompt's parameter.
///
/// # Errors
/// 400 for requests that can never run, 403 for those without a permitted replica, 429 for those beyond the
/// key's limits, 503 without capacity, 508 after too many gateways.
pub(crate) async fn admit(
    route: &Route,
    prepared: Prepared,
    prompt_param: &'static str,
    caller: &Arc<Caller>,
    policy: &Policy,
) -> Result<Session, ApiError> {
    let Policy { limits, moderation, cache, .. } = policy;
    let ledger = policy.ledger.as_ref();
    let Prepared {
        requests, text, memory, constraint_param, adapter, is_deterministic, mut question, ..
    } = prepared;
    let detokenize = text.as_ref().map(|text| &text.detokenize);
    let fingerprint = route.model.fingerprint();
    let sharing = Sharing {
        policy: caller.cache_policy,
        is_deterministic,
        text: detokenize,
        fingerprint: fingerprint.as_ref(),
    };
    let replica = caller.destination.replica_header();
    let blamed = BlamedParams { prompt: prompt_param, constraint: constraint_param, replica };
    let metrics = &route.model.metrics;
    // What cannot be understood is refused wherever the model is computed.
    caller.destination.n_hops()?;
    if route.model.is_remote() {
        check_hops(&caller.destination)?;
    }
    let urgency = urgency(route, caller)?;
    let pinned: Option<Box<str>> = caller.destination.replica().map(Box::from);
    let bound =
        check_regions((&**route.replicas().dispatcher(), route.model.is_remote()), metrics, caller, ledger)?;
    let limits_of_time = route.model.overload.time_limits(&caller.service());
    let charge = charge(route, &requests, caller, limits).await?;
    let meter = ledger.map(|ledger| count(route, &requests, caller, ledger)).transpose()?.flatten();
    let mut charge = charge.with_meter(meter);
    let is_last_resort = !caller.is_replaceable();
    let mut prompts = Vec::with_capacity(requests.len());
    for request in requests {
        let (n, n_tokens) = (request.n_continuations(), request.prompt.len());
        let (sampling, cache_marks) = (Arc::clone(&request.sampling), request.cache_marks.clone());
        let start = |request| {
            let (route, gate) = (route.clone(), route.model.overload.clone());
            let (pinned, bound) = (pinned.clone(), bound.clone());
            let machine = machine(&route);
            async move {
                let start = |request| route.generate(request, pinned.as_deref(), bound, is_last_resort);
                gate.start(request, urgency, machine, start).await
            }
            .boxed()
        };
        let begun = cache.generate(route.model.instance(), request, sharing, question.take(), start).await;
        let (generation, cache_use) = begun.map_err(|error| {
            metrics.rejected(error.kind.name());
            metrics.overloaded(error.kind, urgency.class);
            client_error(&error, &blamed, &route.model, caller.id_text())
        })?;
        let generation = limits_of_time.apply(generation, caller.arrived);
        charge.begin(n_tokens as u64);
        metrics.admitted(n_tokens, n, sampling.max_tokens);
        prompts.push(BegunPrompt { generation, cache_use, n, n_tokens, cache_marks, sampling });
    }
    let session = Session::new(route.model.clone(), prompts, blamed, text.as_ref(), memory, caller.clone());
    let session = if text.is_some() { session.with_moderation(moderation) } else { session };
    Ok(session.with_adapter(adapter).with_charge(charge))
}

/// Class and remaining time of a request.
fn urgency(route: &Route, caller: &Caller) -> Result<Urgency, ApiError> {
    let tenant = caller.key_holder();
    route.model.overload.urgency(tenant.key.as_deref(), &caller.service(), caller.arrived)
}

/// Measured speed of the model's replicas; `None` if one of them reports none.
fn machine(route: &Route) -> Option<ServiceRate> {
    let machines = route.loads().into_iter().map(|load| load.machine);
    machines.reduce(|all, one| Some(all?.joined(one?))).flatten()
}

/// Charges the tokens of the prompts and the most that may be generated.
async fn charge(
    route: &Route,
    requests: &[ReplicaRequest],
    caller: &Caller,
    limits: &Arc<RateLimits>,
) -> Result<Charge, ApiError> {
    let (n_prompt, n_generated) = most(requests);
    let charged = limits.charge(&caller.key_holder(), caller.user(), n_prompt + n_generated).await;
    caller.set_limits(charged.status);
    charged.charge.map_err(|refusal| {
        route.model.metrics.rejected(refusal_name(&refusal));
        limit_error(&refusal)
    })
}

/// Starts counting for the ledger, within the budgets.
pub(crate) fn count(
    route: &Route,
    requests: &[ReplicaRequest],
    caller: &Caller,
    ledger: &Arc<Ledger>,
) -> Result<Option<Meter>, ApiError> {
    let (prompt_tokens, generated_tokens) = most(requests);
    let served = route.model.served.id();
    let adapter = requests.first().and_then(|request| request.adapter.as_ref());
    let tenant = caller.key_holder();
    let counted = Counted {
        tenant: &tenant.id.0,
        key: tenant.key.as_deref(),
        scopes: &budget_scopes(&tenant),
        request_id: caller.id_text(),
        user: caller.user().unwrap_or_default(),
        models: [adapter.map_or(served, |adapter| &adapter.name), served],
        prompt_tokens,
        generated_tokens,
    };
    ledger.begin(&counted).map_err(|refusal| {
        route.model.metrics.rejected(uncounted_name(refusal));
        uncounted_error(refusal, ledger)
    })
}

/// Maximum numbers of prompt tokens and of generated tokens.
fn most(requests: &[ReplicaRequest]) -> (u64, u64) {
    let generated = |request: &ReplicaRequest| {
        u64::from(request.n_continuations()) * u64::from(request.sampling.max_tokens)
    };
    let n_prompt = requests.iter().map(|request| request.prompt.len() as u64).sum();
    (n_prompt, requests.iter().map(generated).sum())
}

/// Refuses a request that would be refused now with any prompt, before it is parsed.
///
/// # Errors
/// 503; 400 for invalid headers.
pub(crate) fn check_room(route: &Route, caller: &Caller) -> Result<(), ApiError> {
    let urgency = urgency(route, caller)?;
    let overload = &route.model.overload;
    let may_wait = !caller.is_replaceable() && caller.destination.replica().is_none();
    let room = route.check_room(may_wait);
    let checked = room.and_then(|()| overload.check(&caller.tenant(), urgency, machine(route)));
    checked.map_err(|error| {
        route.model.metrics.rejected(error.kind.name());
        route.model.metrics.overloaded(error.kind, urgency.class);
        let blamed =
            BlamedParams { prompt: "", constraint: None, replica: caller.destination.replica_header() };
        client_error(&error, &blamed, &route.model, caller.id_text())
    })
}
