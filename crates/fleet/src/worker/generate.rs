//! Handles a gateway's request from its first line to its running generation. Does not write events.

use std::sync::Arc;

use throng_core::request::SamplingParams;
use throng_http::memory::Reservation;
use throng_text::grammar::GrammarError;
use throng_wire::{Constraint, Generate};

use super::WorkerService;
use super::generation_stream::{GenerationStream, failed};
use crate::adapters::{AdapterFault, LoadedAdapter};
use crate::body_lines::BodyLines;
use crate::constraint::OutputForm;
use crate::replica::{
    Generation, PrefixHolder, Replica, ReplicaError, ReplicaErrorKind, ReplicaRequest, RequestedAdapter,
    received_constraint, received_request,
};

/// Maximum number of continuations of a request: more than a gateway accepts.
const MAX_CONTINUATIONS: u32 = 4096;

/// Parses the first line of a request.
///
/// # Errors
/// A description of the fault.
pub fn read_request(line: &[u8]) -> Result<Generate, String> {
    let request: Generate =
        serde_json::from_slice(line).map_err(|error| format!("The request cannot be read: {error}"))?;
    let resumed = request.resumed.iter().map(|resumed| resumed.index);
    let is_ascending = request.resumed.is_sorted_by(|a, b| a.index < b.index);
    if request.n > MAX_CONTINUATIONS || !is_ascending || resumed.max() >= Some(MAX_CONTINUATIONS) {
        return Err("The continuations are too many or not in order".to_owned());
    }
    check_sampling(&request.sampling)?;
    if !is_closed(request.constraint.as_ref()) {
        return Err("Reasoning without an end has nothing after it to constrain".to_owned());
    }
    Ok(request)
}

/// Refuses values that no gateway sends: sampling sorts by them, divides by them and allocates beams.
fn check_sampling(sampling: &SamplingParams) -> Result<(), String> {
    let SamplingParams {
        temperature,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        beams,
        ..
    } = sampling;
    let numbers = [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty];
    let are_numbers = numbers.into_iter().all(|number| number.is_finite())
        && logit_bias.iter().all(|(_, bias)| !bias.is_nan());
    let is_search = beams.is_none_or(|beams| {
        (1..=MAX_CONTINUATIONS).contains(&beams.width) && beams.length_penalty.is_finite()
    });
    if are_numbers && is_search && *repetition_penalty > 0.0 {
        return Ok(());
    }
    Err("The sampling parameters are out of range".to_owned())
}

/// Whether the reasoning before a constrained answer has end tokens, without which the answer could not be
/// found.
fn is_closed(constraint: Option<&Constraint>) -> bool {
    let reasoning = constraint.and_then(|constraint| constraint.reasoning.as_ref());
    reasoning.is_none_or(|reasoning| !reasoning.close.is_empty())
}

impl WorkerService {
    /// Runs a request. `commands` are the lines after the first one; `memory` is held until the request
    /// ends.
    ///
    /// # Errors
    /// The line with the error of a request that does not run.
    pub async fn generate(
        self: &Arc<Self>,
        request: Generate,
        commands: BodyLines,
        memory: Reservation,
    ) -> Result<GenerationStream, Vec<u8>> {
        match begin(self, request).await {
            Ok((generation, adapter)) => Ok(GenerationStream::new(generation, commands, (adapter, memory))),
            Err(error) => Err(failed(error)),
        }
    }
}

type Begun = (Box<dyn Generation>, Option<LoadedAdapter>);

/// Submits a request to the engine.
async fn begin(worker: &Arc<WorkerService>, mut request: Generate) -> Result<Begun, ReplicaError> {
    if worker.is_draining() {
        return Err(WorkerService::draining());
    }
    worker.replica.check_room()?;
    let (constraint, adapter) = (request.constraint.take(), request.adapter.take());
    let mut request = received_request(request);
    request.holder = request.holder.take().and_then(|holder| match holder {
        PrefixHolder::Worker(holder) => worker.puller.as_ref()?.holder(&holder).map(PrefixHolder::Peer),
        PrefixHolder::Peer(_) => None,
    });
    let mut loaded = None;
    if constraint.is_some() || adapter.is_some() {
        let prepared = prepare(worker, &request, constraint, adapter).await?;
        (request.constraint, loaded) = prepared;
        request.adapter = loaded.as_ref().map(|adapter: &LoadedAdapter| RequestedAdapter {
            adapter: adapter.adapter,
            name: Arc::from(""),
        });
    }
    let generation = worker.replica.generate(request).await?;
    Ok((generation, loaded))
}

/// Compiles the constraint and loads the adapter on a blocking thread.
async fn prepare(
    worker: &Arc<WorkerService>,
    request: &ReplicaRequest,
    constraint: Option<Constraint>,
    adapter: Option<String>,
) -> Result<(Option<OutputForm>, Option<LoadedAdapter>), ReplicaError> {
    let n = request.n_continuations();
    let n = request.sampling.beams.map_or(n, |beams| beams.width).max(n);
    let permit = worker.preparing.acquire().await;
    let owned = worker.clone();
    let work = move || {
        let form = constraint.map(|constraint| compile(&owned, constraint, n)).transpose()?.flatten();
        let adapter = adapter.map(|name| load(&owned, &name)).transpose()?;
        Ok((form, adapter))
    };
    let prepared = tokio::task::spawn_blocking(work).await;
    drop(permit);
    prepared.unwrap_or_else(|_| Err(failure("preparing the request panicked".into(), false)))
}

fn compile(
    worker: &WorkerService,
    constraint: Constraint,
    n: u32,
) -> Result<Option<OutputForm>, ReplicaError> {
    let grammars =
        worker.grammars.as_ref().ok_or_else(|| failure("the model has no tokenizer".into(), false))?;
    let source = received_constraint(constraint, &worker.answer_format)
        .ok_or_else(|| failure("the format of tool calls is not known here".into(), false))?;
    let compiled = source.compile(grammars, &worker.description.eos_token_ids, n);
    let compiled = compiled.map_err(|error| ReplicaError {
        kind: match error {
            GrammarError::TooComplex(_) => ReplicaErrorKind::ConstraintTooComplex,
            _ => ReplicaErrorKind::Failed,
        },
        retryable: false,
        message: error.to_string(),
    })?;
    Ok(compiled.map(|compiled| OutputForm { compiled, source: None }))
}

/// The error is retryable: another worker may have the adapter, or room for it.
fn load(worker: &WorkerService, name: &str) -> Result<LoadedAdapter, ReplicaError> {
    match worker.adapters.lease(name) {
        Ok(Some(adapter)) => Ok(adapter),
        Ok(None) => Err(failure(format!("there is no adapter {name:?}"), true)),
        Err(AdapterFault::Invalid(reason)) => Err(failure(reason, true)),
        Err(AdapterFault::Full(reason)) => {
            Err(failure(format!("all adapters in memory are in use: {reason}"), true))
        }
    }
}

fn failure(message: String, retryable: bool) -> ReplicaError {
    ReplicaError { kind: ReplicaErrorKind::Failed, retryable, message }
}
