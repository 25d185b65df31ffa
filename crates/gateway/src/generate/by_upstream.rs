//! Generations of upstream engines: the request is written in OpenAI's form, and the answer is read from
//! it.

use std::sync::Arc;

use throng_api::openai::upstream::{AnswerReader, request_body};
use throng_api::spec::Input;
use throng_api::{AnswerView, ApiError, IgnoredParameters, Request};
use throng_fleet::upstream::{Endpoint, UpstreamModel, UpstreamRequest};
use throng_http::memory::{Part, Reservation};

use super::{StartedRequest, facts_without_tokens};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::AnswerBound;
use crate::rejection::memory_full;
use crate::upstream::{self, UpstreamJob};

/// Number of copies of a body in memory: the one that is written, its parsed form, and the one that is
/// sent.
const COPIES: usize = 3;

/// A generation before its start.
#[derive(Debug)]
pub(super) struct UpstreamGeneration {
    model: Arc<UpstreamModel>,
    name: String,
    endpoint: Endpoint,
    request: UpstreamRequest,
    reader: AnswerReader,
    view: Box<dyn AnswerView>,
    n_prompts: usize,
    temperature: f32,
    top_p: f32,
    n_shown: usize,
    is_streaming: bool,
    may_end_with_context: bool,
    ignored: IgnoredParameters,
    max_tokens_param: &'static str,
    /// Memory of the request until an engine has begun to answer.
    memory: Reservation,
}

/// Writes a request for the engines of `model`, which the client calls `name`.
///
/// # Errors
/// 400 for parameters that engines do not support; 503 without memory.
pub(super) fn prepare_for_upstream(
    request: Request,
    mut memory: Reservation,
    model: Arc<UpstreamModel>,
    name: String,
) -> Result<UpstreamGeneration, ApiError> {
    let Request { mut spec, view } = request;
    let reader = AnswerReader::new(&spec);
    let (endpoint, n_prompts) = match &spec.input {
        Input::Chat(_) => (Endpoint::Chat, 1),
        Input::Prompts(input) => (Endpoint::Completions, input.prompts.len()),
    };
    let body = request_body(&mut spec)?;
    memory.cover(body.len().saturating_mul(COPIES)).map_err(memory_full)?;
    let options = spec.options;
    Ok(UpstreamGeneration {
        request: UpstreamRequest::read(endpoint, body.as_bytes())?,
        model,
        name,
        endpoint,
        reader,
        view,
        n_prompts,
        temperature: options.temperature.unwrap_or(1.0),
        top_p: options.top_p.unwrap_or(1.0),
        n_shown: options.n() as usize,
        is_streaming: options.is_streaming(),
        may_end_with_context: options.may_end_with_context,
        max_tokens_param: options.names.max_tokens,
        ignored: options.ignored,
        memory,
    })
}

/// Starts a generation.
///
/// # Errors
/// Errors of a request in OpenAI's form to the same model.
pub(super) async fn start_at_upstream(
    app: &App,
    caller: &Arc<Caller>,
    generation: UpstreamGeneration,
) -> Result<StartedRequest, ApiError> {
    let UpstreamGeneration { model, name, endpoint, request, reader, view, n_prompts, memory, .. } =
        generation;
    let setting = app.upstream_setting()?;
    let may_end_with_context = generation.may_end_with_context;
    let job = UpstreamJob { model: &model, endpoint, request: &request, name: &name, may_end_with_context };
    let stream = upstream::answer(&setting, &job, caller, reader).await?;
    drop((request, memory));
    // An engine tells the number of its tokens, not which they are.
    let facts = facts_without_tokens(name, n_prompts, (generation.temperature, generation.top_p));
    Ok(StartedRequest {
        stream,
        writer: view.writer(facts),
        is_streaming: generation.is_streaming,
        ignored: generation.ignored,
        n_prompt_tokens: vec![0; n_prompts],
        n_image_tokens: 0,
        n_shown: generation.n_shown,
        bound: AnswerBound::of_text(app.config.api.max_answer_bytes, generation.max_tokens_param),
        memory: app.work.memory.reservation(Part::Answers),
    })
}
