//! Turns a parsed request into a job: rendered, tokenized and checked, with only the data that its answer
//! needs.

use std::sync::Arc;

use throng_api::spec::{GenerationSpec, Input};
use throng_api::{AnswerFacts, AnswerView, ApiError, IgnoredParameters, Request};
use throng_store::now_unix_s;

use super::question::Draft;
use super::{Target, find_route};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::{Abandoned, AnswerBound, PrepareContext, Prepared, check_room, prepare};
use crate::router::Route;
use throng_fetch::has_urls;

/// Parts of a request that its answer needs.
pub(super) struct Job {
    pub route: Route,
    pub prepared: Prepared,
    pub view: Box<dyn AnswerView>,
    pub facts: AnswerFacts,
    pub bound: AnswerBound,
    /// Number of choices shown for each prompt.
    pub n_shown: usize,
    pub is_streaming: bool,
    pub ignored: IgnoredParameters,
    /// Prompts that a classifier must judge.
    pub unjudged: Vec<String>,
    /// Name of the prompt's parameter, for errors.
    pub prompt_param: &'static str,
    /// Whether another model is tried if this one fails before its first token.
    pub is_replaceable: bool,
}

/// Whether images of a request must be fetched before it is prepared, for `target` if it names an alias. A
/// request that would be refused anyway is refused at once.
///
/// # Errors
/// 4xx for a model that is absent or not permitted; 503 without capacity.
pub(super) fn needs_images(
    app: &App,
    caller: &Arc<Caller>,
    spec: &GenerationSpec,
    target: &Target,
) -> Result<bool, ApiError> {
    if app.remote_images.is_none() || !spec.conversation().is_some_and(has_urls) {
        return Ok(false);
    }
    let options = &spec.options;
    let named = target.model().or(options.model.as_deref());
    let route = find_route(app, caller, named.or((!options.takes_only_model).then_some("")))?;
    check_room(&route, caller)?;
    Ok(route.model.served.images.is_some())
}

/// Renders and tokenizes a request, for `target` if it names an alias. Consumes the request.
///
/// # Errors
/// 4xx for parameters that the model does not support or the key does not permit; 503 without capacity.
pub(super) fn prepare_job(
    app: &App,
    caller: &Arc<Caller>,
    request: Request,
    target: &Target,
    abandoned: &Abandoned,
) -> Result<Job, ApiError> {
    let Request { mut spec, view } = request;
    let options = &mut spec.options;
    options.model = target.model().map(str::to_owned).or(options.model.take());
    let name = options.model.as_deref().or((!options.takes_only_model).then_some(""));
    let route = find_route(app, caller, name)?;
    options.model.get_or_insert_with(|| route.model.served.id().to_owned());
    if let Input::Prompts(input) = &spec.input
        && input.prompts.len() * options.n_generated() as usize > app.config.api.max_choices
    {
        return Err(ApiError::array_above_max_length(options.names.prompt, app.config.api.max_choices));
    }
    caller.set_service_tier(options.service_class);
    check_room(&route, caller)?;
    let scope = PrepareContext { tenant: caller.tenant(), memory: &app.work.memory, abandoned };
    let adapter = route.model.adapter_of(options.model())?;
    caller.set_user(options.user.as_deref());
    let semantic = app.policy.cache.semantic();
    let draft = semantic.and_then(|semantic| Draft::wanted(semantic, caller, &spec));
    let prepared = prepare(&route.model, &scope, &mut spec)?;
    let draft = draft.filter(|_| prepared.is_deterministic).zip(semantic);
    let question =
        draft.and_then(|(draft, semantic)| draft.question(app, semantic, &route.model, &scope, caller));
    let options = &spec.options;
    let unjudged = check_prompts(app, caller, &route, &prepared, options.names.prompt)?;
    let mut prepared = prepared.with_adapter(options.model(), adapter).with_question(question);
    let bound = AnswerBound::new(&view.shape(&spec), &spec, &prepared, app.config.api.max_answer_bytes)?;
    let facts = AnswerFacts {
        model: options.model().to_owned(),
        created_unix_s: now_unix_s(),
        prompts: prepared.requests.iter().map(|request| request.prompt.clone()).collect(),
        texts: prepared.echo.take(),
        n_image_tokens: prepared.n_image_tokens,
        temperature: prepared.requests.first().map_or(1.0, |request| request.sampling.temperature),
        top_p: prepared.requests.first().map_or(1.0, |request| request.sampling.top_p),
        tokenizer: route.model.served.tokenizer.clone(),
        trail: prepared.trail.take(),
    };
    Ok(Job {
        route,
        prepared,
        view,
        facts,
        bound,
        n_shown: options.n() as usize,
        is_streaming: options.is_streaming(),
        ignored: spec.options.ignored,
        unjudged,
        prompt_param: spec.options.names.prompt,
        is_replaceable: matches!(target, Target::Replaceable(_)),
    })
}

/// Refuses prompts that break the tenant's rules; returns the texts that the classifier must judge.
fn check_prompts(
    app: &App,
    caller: &Caller,
    route: &Route,
    prepared: &Prepared,
    param: &str,
) -> Result<Vec<String>, ApiError> {
    let prompts = prepared.requests.iter().map(|request| &*request.prompt);
    let tokenizer = route.model.served.tokenizer.as_ref();
    app.policy.moderation.check_prompts(&caller.key_holder(), tokenizer, prompts, param)
}
