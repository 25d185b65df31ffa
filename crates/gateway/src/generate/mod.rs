//! Generation for a caller, from a neutral request to a stream of neutral events, with all policies.
//! Independent of HTTP: the caller provides a reader of the request and writes the events.

mod by_upstream;
mod failed;
mod job;
mod question;

use std::sync::Arc;

use throng_api::answer::{Answer, Tally};
use throng_api::{AnswerFacts, AnswerWriter, ApiError, IgnoredParameters, Request};
use throng_http::Phase;
use throng_http::memory::{Part, Reservation};
use throng_metering::observation::Stage;
use throng_store::now_unix_s;

use self::by_upstream::{UpstreamGeneration, prepare_for_upstream, start_at_upstream};
use self::job::{Job, needs_images, prepare_job};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::{
    Abandoned, AnswerBound, AnswerStream, Collected, SessionAnswer, WrittenAnswer, admit, check_room,
    collect, in_turn, read_and_prepare,
};
use crate::rejection::memory_full;
use crate::router::Route;
use throng_http::retry_after::retry_after_s;

/// Model that answers a request.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The model that the body names.
    Named,
    /// This model, without another one if it fails.
    Last(String),
    /// This model, with another one if it fails before its first token.
    Replaceable(String),
}

impl Target {
    /// The model, unless it is the one that the body names.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Named => None,
            Self::Last(model) | Self::Replaceable(model) => Some(model),
        }
    }
}

/// A request that must still be parsed, by `read` over about `n_bytes` bytes. The reservation is for the
/// parsed request, and is dropped with it.
#[derive(Debug)]
pub(crate) struct UnreadRequest<R> {
    /// Number of bytes that `read` parses.
    pub n_bytes: usize,
    /// Parses the request, on a blocking thread if it is long.
    pub read: R,
}

/// A request whose generation has started.
#[derive(Debug)]
pub(crate) struct StartedRequest {
    /// Events of the answer.
    pub stream: AnswerStream,
    /// Writer of the answer in its client's form.
    pub writer: Box<dyn AnswerWriter>,
    /// Whether the client requested a stream.
    pub is_streaming: bool,
    /// Parameters without effect.
    pub ignored: IgnoredParameters,
    /// Number of tokens of each prompt.
    n_prompt_tokens: Vec<usize>,
    /// Number of prompt tokens that represent images.
    pub n_image_tokens: u64,
    /// Number of choices shown for each prompt.
    n_shown: usize,
    bound: AnswerBound,
    memory: Reservation,
}

/// Starts generating the answer of `target` to a request of `caller`.
///
/// # Errors
/// 4xx for a request that is invalid, unsupported by the model or not permitted; 5xx without capacity.
pub(crate) async fn generate<R>(
    app: &Arc<App>,
    caller: &Arc<Caller>,
    target: Target,
    request: UnreadRequest<R>,
) -> Result<StartedRequest, ApiError>
where
    R: FnOnce() -> Result<(Request, Reservation), ApiError> + Send + 'static,
{
    let UnreadRequest { n_bytes, read } = request;
    let has_semantic_cache = app.policy.cache.semantic().is_some();
    let is_quick = move |(request, _): &(Request, _)| {
        request.spec.is_quick() && !(has_semantic_cache && request.spec.conversation().is_some())
    };
    let (state, whose, of) = (app.clone(), caller.clone(), target.clone());
    let prepare = move |(request, memory): (Request, Reservation), abandoned: &Abandoned| {
        let name = of.model().unwrap_or(request.spec.options.model()).to_owned();
        match state.models.upstreams.find(&name) {
            Some(model) => {
                prepare_for_upstream(request, memory, model, name).map(Box::new).map(Prepared::ForUpstream)
            }
            None if needs_images(&state, &whose, &request.spec, &of)? => {
                Ok(Prepared::WithoutImages(Box::new(request), memory))
            }
            None => prepare_job(&state, &whose, request, &of, abandoned).map(Box::new).map(Prepared::Here),
        }
    };
    let prepared = read_and_prepare(&app.work.turns, caller, n_bytes, read, is_quick, prepare).await;
    let prepared = match prepared {
        Ok(Prepared::WithoutImages(request, memory)) => {
            fetch_and_prepare(app, caller, target, (*request, memory), n_bytes).await
        }
        other => other,
    };
    caller.pass(Stage::Tokenized);
    match prepared? {
        Prepared::Here(job) => start(app, caller, *job).await,
        Prepared::WithoutImages(..) => Err(ApiError::internal_error(caller.id_text())),
        Prepared::ForUpstream(generation) => start_at_upstream(app, caller, *generation).await,
    }
}

/// Refuses a request to `model` that would be refused now with any content.
///
/// # Errors
/// 4xx for a model that is absent, not permitted or has no text; 503 without capacity.
pub(crate) fn check(app: &App, caller: &Caller, model: &str) -> Result<(), ApiError> {
    match app.models.upstreams.find(model) {
        Some(_) => app.check_permission(&caller.key_holder(), Some(model), false),
        None => check_room(&find_route(app, caller, Some(model))?, caller),
    }
}

/// Fetches the images of a request of `n_bytes` bytes, and prepares it.
async fn fetch_and_prepare(
    app: &Arc<App>,
    caller: &Arc<Caller>,
    target: Target,
    (mut request, memory): (Request, Reservation),
    n_bytes: usize,
) -> Result<Prepared, ApiError> {
    let fetched = match (&app.remote_images, request.spec.conversation_mut()) {
        (Some(images), Some(conversation)) => Some(images.fetch(conversation).await?),
        _ => None,
    };
    let n_bytes = n_bytes + fetched.as_ref().map_or(0, |fetched| fetched.n_bytes);
    let (state, whose) = (app.clone(), caller.clone());
    in_turn(&app.work.turns, caller, n_bytes, move |abandoned| {
        let job = prepare_job(&state, &whose, request, &target, abandoned);
        drop((fetched, memory));
        job.map(Box::new).map(Prepared::Here)
    })
    .await
}

/// A request that was parsed and prepared.
enum Prepared {
    /// Request for a model of this gateway, parsed, whose images must be fetched before it is prepared.
    WithoutImages(Box<Request>, Reservation),
    /// Request for a model of this gateway.
    Here(Box<Job>),
    /// Request for a model of upstream engines.
    ForUpstream(Box<UpstreamGeneration>),
}

async fn start(app: &App, caller: &Arc<Caller>, job: Job) -> Result<StartedRequest, ApiError> {
    let Job { route, mut prepared, view, facts, bound, n_shown, is_streaming, ignored, prompt_param, .. } =
        job;
    app.policy.moderation.judge_prompts(&job.unjudged, prompt_param).await?;
    let memory = app.work.memory.reserve(Part::Answers, bound.prompt_report_bytes()).map_err(memory_full)?;
    let n_prompt_tokens = facts.prompts.iter().map(|prompt| prompt.len()).collect();
    let n_image_tokens = facts.n_image_tokens;
    let reading = prepared.reading.take();
    let mut session = admit(&route, prepared, prompt_param, caller, &app.policy).await?;
    if job.is_replaceable && is_streaming {
        // Once the head of a stream has been sent, no other model can answer.
        let mut phase = app.lifecycle.phase.subscribe();
        let begun = tokio::select! {
            begun = session.begun() => begun,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => Ok(()),
        };
        begun.map_err(|error| session.client_error(&error))?;
    }
    let stream = AnswerStream::new(SessionAnswer::new(session, route, reading.as_ref()));
    let writer = view.writer(facts);
    Ok(StartedRequest {
        stream,
        writer,
        is_streaming,
        ignored,
        n_prompt_tokens,
        n_image_tokens,
        n_shown,
        bound,
        memory,
    })
}

impl StartedRequest {
    /// Replaces each event by the events that `map` returns for it.
    pub fn map_stream(self, map: impl FnOnce(AnswerStream) -> AnswerStream) -> Self {
        Self { stream: map(self.stream), ..self }
    }

    /// Number of tokens of all prompts.
    pub fn n_prompt_tokens(&self) -> u64 {
        self.n_prompt_tokens.iter().map(|&n| n as u64).sum()
    }

    /// The answer as a stream, which holds the reservations.
    pub fn into_stream(mut self) -> WrittenAnswer {
        self.stream.source().keep(self.memory);
        WrittenAnswer { answer: self.stream, writer: self.writer }
    }

    /// Waits for the complete answer.
    ///
    /// # Errors
    /// 500 when the generation fails, 503 when the server ends first or its memory is full, 400 when the
    /// answer becomes too large.
    pub async fn collect(self, app: &App) -> Result<(Collected, Box<dyn AnswerWriter>), ApiError> {
        let phase = app.lifecycle.phase.subscribe();
        let tally = Tally::new(self.n_prompt_tokens()).with_images(self.n_image_tokens);
        let prompts = (self.n_prompt_tokens.len(), tally);
        let mut collected = collect(self.stream, prompts, &self.bound, self.memory, phase).await?;
        Answer::keep_best(&mut collected.answer, self.n_shown);
        Ok((collected, self.writer))
    }
}

/// Facts of an answer without the tokens. `sampling` is the temperature and the top-p.
fn facts_without_tokens(model: String, n_prompts: usize, sampling: (f32, f32)) -> AnswerFacts {
    AnswerFacts {
        model,
        created_unix_s: now_unix_s(),
        prompts: vec![Arc::from([]); n_prompts],
        texts: None,
        temperature: sampling.0,
        top_p: sampling.1,
        tokenizer: None,
        trail: None,
        n_image_tokens: 0,
    }
}

/// The route of a model, if the key permits it and new requests are accepted.
fn find_route(app: &App, caller: &Caller, model: Option<&str>) -> Result<Route, ApiError> {
    let key_holder = caller.key_holder();
    let route = app.find_model(&key_holder, model)?;
    // A response with several turns may finish.
    if app.is_draining() && !caller.has_generated() {
        return Err(ApiError::shutting_down(retry_after_s()));
    }
    if route.model.served.pooling.is_some() {
        let reason = "This model gives vectors, not text; use /v1/embeddings, /v1/rerank or /v1/classify.";
        return Err(ApiError::unsupported_by_model("model", reason));
    }
    Ok(route)
}
