//! From a read request to a job: rendered, tokenized and checked, with nothing that its answer does not need. Does not know how jobs run.

use std::sync::Arc;

use throng_core::request::TokenId;

use super::question::Draft;
use super::{Target, welcome};
use crate::answer::{Asked, EchoedPrompt};
use crate::app::App;
use crate::connection::RequestContext;
use crate::generation::{
    Abandoned, AnswerBound, AnswerShape, Caller, LogprobBytes, Prepared, check_room, prepare_chat,
    prepare_completion,
};
use crate::router::Route;
use throng_api::openai::response::{chat_id, completion_id};
use throng_api::openai::{ChatRequest, CompletionRequest, GenerationRequest};
use throng_api::{ApiError, IgnoredParameters};

/// What is left of a request once it is read: nothing that its answer does not need.
pub(super) struct Job {
    pub route: Route,
    pub prepared: Prepared,
    pub asked: Asked,
    pub echo: EchoedPrompt,
    pub bound: AnswerBound,
    pub is_streaming: bool,
    pub ignored: IgnoredParameters,
    /// Texts of prompts that a classifier has to judge.
    pub unjudged: Vec<String>,
    /// Whether another model is asked should this one fail before its first token.
    pub is_replaceable: bool,
}

impl Job {
    fn unjudged(self, unjudged: Vec<String>) -> Self {
        Self { unjudged, ..self }
    }

    fn for_target(self, target: &Target) -> Self {
        Self { is_replaceable: matches!(target, Target::Replaceable(_)), ..self }
    }
}

/// Whether preparing a chat takes about as long as reading it: nothing in it is compiled, and the template is given nothing but messages.
pub(super) fn is_quick_chat(app: &App, request: &ChatRequest) -> bool {
    request.generation.has_free_output() && request.conversation.is_plain() && app.cache.semantic().is_none()
}

/// As [`is_quick_chat`].
pub(super) fn is_quick_completion(request: &CompletionRequest) -> bool {
    request.generation.has_free_output()
}

/// Renders and tokenizes a chat, for `target` if it names an alias. The request goes when this returns.
pub(super) fn prepare_chat_job(
    app: &App,
    context: &Arc<RequestContext>,
    mut request: ChatRequest,
    target: &Target,
    abandoned: &Abandoned,
) -> Result<Job, ApiError> {
    let tenant = context.tenant();
    request.generation.model = target.model().map(str::to_owned).or(request.generation.model);
    let route = welcome(app, context, request.generation.model())?;
    context.set_service_tier(request.generation.service_class);
    check_room(&route, context)?;
    let caller = Caller { tenant, memory: &app.memory, abandoned };
    let adapter = route.model.adapter_of(request.generation.model())?;
    context.set_user(request.generation.user.as_deref());
    let semantic = app.cache.semantic();
    let draft = semantic.and_then(|semantic| Draft::wanted(semantic, context, &request));
    let prepared = prepare_chat(&route.model, &caller, &mut request)?;
    let draft = draft.filter(|_| prepared.is_deterministic).zip(semantic);
    let question =
        draft.and_then(|(draft, semantic)| draft.question(app, semantic, &route.model, &caller, context));
    let unjudged = check_prompts(app, context, &route, &prepared, "messages")?;
    let generation = &request.generation;
    let prepared = prepared.with_adapter(generation.model(), adapter).with_question(question);
    let shape = AnswerShape {
        n_repeats: 1,
        prompt_logprobs: generation.prompt_logprobs.map(|_| LogprobBytes::PROMPT).into_iter().collect(),
        logprobs: generation.logprobs.map(|_| LogprobBytes::CHAT),
        max_tokens_param: request.max_tokens_param(),
        ..shape_of(generation)
    };
    let bound = AnswerBound::new(&shape, &prepared, app.config.api.max_answer_bytes)?;
    let id = chat_id(generation.request_id.as_deref());
    Ok(job(id, generation, route, prepared, EchoedPrompt::default(), bound)
        .unjudged(unjudged)
        .for_target(target))
}

/// Tokenizes a text completion, as [`prepare_chat_job`] does a chat.
pub(super) fn prepare_completion_job(
    app: &App,
    context: &Arc<RequestContext>,
    mut request: CompletionRequest,
    target: &Target,
    abandoned: &Abandoned,
) -> Result<Job, ApiError> {
    let tenant = context.tenant();
    request.generation.model = target.model().map(str::to_owned).or(request.generation.model);
    let generation = &request.generation;
    let route = welcome(app, context, generation.model())?;
    if request.prompts.len() * generation.n_generated() as usize > app.config.api.max_choices {
        return Err(ApiError::array_above_max_length("prompt", app.config.api.max_choices));
    }
    context.set_service_tier(generation.service_class);
    check_room(&route, context)?;
    let caller = Caller { tenant, memory: &app.memory, abandoned };
    let adapter = route.model.adapter_of(generation.model())?;
    context.set_user(generation.user.as_deref());
    let prepared = prepare_completion(&route.model, &caller, &request)?;
    let mut prepared = prepared.with_adapter(generation.model(), adapter);
    let unjudged = check_prompts(app, context, &route, &prepared, "prompt")?;
    let echoes_logprobs = request.echo && generation.logprobs.is_some();
    let forms = [
        echoes_logprobs.then_some(LogprobBytes::COMPLETION),
        request.returns_prompt_logprobs.then_some(LogprobBytes::PROMPT),
    ];
    let shape = AnswerShape {
        n_repeats: generation.n() as usize,
        prompt_logprobs: forms.into_iter().flatten().collect(),
        prompt_logprobs_param: if request.returns_prompt_logprobs { "prompt_logprobs" } else { "logprobs" },
        logprobs: generation.logprobs.map(|_| LogprobBytes::COMPLETION),
        ..shape_of(generation)
    };
    let bound = AnswerBound::new(&shape, &prepared, app.config.api.max_answer_bytes)?;
    let echo = EchoedPrompt { texts: prepared.echo.take(), shows_logprobs: request.returns_prompt_logprobs };
    let id = completion_id(generation.request_id.as_deref());
    Ok(job(id, generation, route, prepared, echo, bound).unjudged(unjudged).for_target(target))
}

/// Refuses prompts that the tenant's rules do not allow; the texts that remain to be judged.
fn check_prompts(
    app: &App,
    context: &RequestContext,
    route: &Route,
    prepared: &Prepared,
    param: &str,
) -> Result<Vec<String>, ApiError> {
    let prompts = prepared.requests.iter().map(|request| &*request.prompt);
    let tokenizer = route.model.served.tokenizer.as_ref();
    app.moderation.check_prompts(&context.key_holder(), tokenizer, prompts, param)
}

fn shape_of(generation: &GenerationRequest) -> AnswerShape {
    AnswerShape {
        n_repeats: 1,
        prompt_logprobs: Vec::new(),
        prompt_logprobs_param: "prompt_logprobs",
        logprobs: None,
        token_ids: generation.returns_token_ids(),
        is_streaming: generation.is_streaming(),
        asked_tokens: generation.max_tokens.map(|n| n as u32),
        max_tokens_param: "max_tokens",
    }
}

fn job(
    id: String,
    generation: &GenerationRequest,
    route: Route,
    mut prepared: Prepared,
    echo: EchoedPrompt,
    bound: AnswerBound,
) -> Job {
    let prompts: Vec<Arc<[TokenId]>> = prepared.requests.iter().map(|r| r.prompt.clone()).collect();
    let asked = Asked::new(id, generation, route.model.served.tokenizer.clone(), prompts);
    let asked = asked.with_reading(prepared.reading.take());
    let (is_streaming, ignored) = (generation.is_streaming(), generation.ignored.clone());
    Job {
        route,
        prepared,
        asked,
        echo,
        bound,
        is_streaming,
        ignored,
        unjudged: Vec::new(),
        is_replaceable: false,
    }
}
