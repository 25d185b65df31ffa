//! Embeddings, reranking, scores and classes: from a body to an answer. Does not know how vectors are
//! computed.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header;
use throng_fleet::upstream::Endpoint;
use throng_http::memory::Part;

use super::by_engine::{answer_by_engine, refuse_engines};
use super::json_body::{AppState, JsonBody, with_ignored};
use super::ollama::apply_stay;
use crate::app::App;
use crate::caller::Caller;
use crate::generation::{Abandoned, FrameWriter, Frames, Prepared, admit, check_room, on_blocking_thread};
use crate::pooling::{Inputs, PooledInput, collect_vectors, prepare};
use crate::pooling_model::{PoolingModel, PoolingOutput, cosine, shorten};
use crate::rejection::Rejection;
use crate::router::Route;
use throng_api::ollama::{EmbedAnswer, EmbedRequest, EmbeddingAnswer};
use throng_api::openai::pooling::{
    ClassifyRequest, EmbeddingRequest, EncodingFormat, PairsRequest, PoolingOptions, empty_text,
    is_empty_text,
};
use throng_api::openai::pooling_response::{
    Classification, Embedding, PooledList, PooledUsage, Reranked, RerankedDocument, Score,
};
use throng_api::spec::Prompt;
use throng_api::{ApiError, IgnoredParameters, ReadOptions};
use throng_http::retry_after::retry_after_s;
use throng_store::now_unix_s;
use tokio::time::Instant;

/// A parsed request, with the data that its answer needs.
struct Job {
    route: Route,
    prepared: Prepared,
    param: &'static str,
    /// Name of the model in the request.
    model: String,
    pooling: PoolingModel,
    form: Form,
    gives_logits: bool,
    ignored: IgnoredParameters,
}

/// Form of an answer.
enum Form {
    Embeddings {
        view: EmbeddingView,
        dimensions: Option<usize>,
        prompt_name: Option<String>,
    },
    Classes,
    /// Scores of pairs.
    Scores {
        n_first: usize,
    },
    /// Ranks, with the documents if they are returned.
    Ranks {
        top_n: usize,
        documents: Option<Vec<Prompt>>,
    },
}

/// Form of embeddings in the answer.
enum EmbeddingView {
    OpenAi(EncodingFormat),
    Ollama,
    /// The only embedding, in the form of Ollama's older endpoint.
    OllamaSingle,
}

/// `POST /api/embed`.
pub(super) async fn ollama_embed(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    embed_for_ollama(app, body, EmbedRequest::parse, EmbeddingView::Ollama, "input").await
}

/// `POST /api/embeddings`.
pub(super) async fn ollama_embedding(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    embed_for_ollama(app, body, EmbedRequest::parse_one, EmbeddingView::OllamaSingle, "prompt").await
}

async fn embed_for_ollama(
    app: Arc<App>,
    body: JsonBody,
    parse: fn(&[u8], &ReadOptions) -> Result<EmbedRequest, ApiError>,
    view: EmbeddingView,
    param: &'static str,
) -> Result<Response, Rejection> {
    apply_stay(&app, &body);
    answer(app, body, None, move |reading, body| {
        let (EmbedRequest { model, input, truncate, dimensions, ignored }, _memory) = body.read(parse)?;
        let truncate_prompt_tokens = truncate.unwrap_or(true).then_some(-1);
        let options = PoolingOptions { model, truncate_prompt_tokens, ..PoolingOptions::default() };
        let form = Form::Embeddings { view, dimensions: dimensions.map(|n| n as usize), prompt_name: None };
        reading.job((&options, ignored), (texts(&input), param), form)
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/embeddings`.
pub(super) async fn embeddings(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Embeddings), |reading, body| {
        let (request, _memory) = body.read(EmbeddingRequest::parse)?;
        let EmbeddingRequest { options, input, encoding_format, dimensions, prompt_name, ignored } = request;
        let dimensions = dimensions.map(|n| n as usize);
        let view = EmbeddingView::OpenAi(encoding_format);
        let form = Form::Embeddings { view, dimensions, prompt_name };
        reading.job((&options, ignored), (texts(&input), "input"), form)
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/classify`.
pub(super) async fn classify(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Classify), |reading, body| {
        let (ClassifyRequest { options, input, ignored }, _memory) = body.read(ClassifyRequest::parse)?;
        reading.job((&options, ignored), (texts(&input), "input"), Form::Classes)
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /score`.
pub(super) async fn score(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Score), |reading, body| {
        let (request, _memory) = body.read(PairsRequest::parse_score)?;
        let form = Form::Scores { n_first: request.first.len() };
        reading.pairs(request, "text_2", form)
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/rerank`.
pub(super) async fn rerank(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Rerank), |reading, body| {
        let (request, _memory) = body.read(PairsRequest::parse_rerank)?;
        let top_n = request.top_n.filter(|&n| n > 0).map_or(usize::MAX, |n| n as usize);
        let documents = request.return_documents.unwrap_or(true).then(|| request.second.clone());
        reading.pairs(request, "documents", Form::Ranks { top_n, documents })
    })
    .await
    .map_err(Rejection::from)
}

fn texts(input: &[Prompt]) -> Vec<PooledInput<'_>> {
    input.iter().map(PooledInput::Text).collect()
}

/// Parts of the server that parsing a body needs.
struct Reading<'a> {
    app: &'a App,
    caller: &'a Arc<Caller>,
    abandoned: &'a Abandoned,
}

impl Reading<'_> {
    /// Parses pairs: a model with a classifier reads both texts together, others compute an embedding of
    /// each.
    fn pairs(&self, request: PairsRequest, param: &'static str, form: Form) -> Result<Job, ApiError> {
        let PairsRequest { options, first, second, ignored, .. } = request;
        let route = self.route(&options)?;
        let inputs = match &pooling_of(&route)?.output {
            PoolingOutput::Embedding => {
                // Each text has a vector of its own, as in embeddings.
                if first.iter().chain(&second).any(is_empty_text) {
                    return Err(empty_text(param));
                }
                texts(&first).into_iter().chain(texts(&second)).collect()
            }
            PoolingOutput::Labels { .. } => {
                let first_of = |i: usize| &first[i.min(first.len() - 1)];
                let pairs = second.iter().enumerate();
                pairs.map(|(i, second)| PooledInput::Pair(first_of(i), second)).collect()
            }
        };
        self.job((&options, ignored), (inputs, param), form)
    }

    fn route(&self, options: &PoolingOptions) -> Result<Route, ApiError> {
        let key_holder = self.caller.key_holder();
        let route = self.app.find_model(&key_holder, options.model.as_deref())?;
        if self.app.is_draining() {
            return Err(ApiError::shutting_down(retry_after_s()));
        }
        Ok(route)
    }

    fn job(
        &self,
        (options, ignored): (&PoolingOptions, IgnoredParameters),
        (inputs, param): (Vec<PooledInput<'_>>, &'static str),
        form: Form,
    ) -> Result<Job, ApiError> {
        let route = self.route(options)?;
        check_room(&route, self.caller)?;
        let pooling = pooling_of(&route)?.clone();
        form.check(&pooling)?;
        self.caller.set_user(options.user.as_deref());
        let key_holder = (&self.caller.tenant(), &self.app.work.memory, self.abandoned);
        let before = match &form {
            Form::Embeddings { prompt_name, .. } => pooling.prompt(prompt_name.as_deref())?,
            _ => "",
        };
        let inputs = Inputs { inputs, param, before };
        let prepared = prepare(&route.model, &pooling, &inputs, options, key_holder)?;
        let model = options.model.clone().unwrap_or_else(|| route.model.served.id().to_owned());
        let gives_logits = options.use_activation == Some(false);
        Ok(Job { route, prepared, param, model, pooling, form, gives_logits, ignored })
    }
}

fn pooling_of(route: &Route) -> Result<&PoolingModel, ApiError> {
    route.model.served.pooling.as_ref().ok_or_else(|| {
        ApiError::unsupported_by_model("model", "This model generates text; use /v1/chat/completions.")
    })
}

impl Form {
    /// Refuses a request that the model's kind of vectors cannot answer.
    fn check(&self, pooling: &PoolingModel) -> Result<(), ApiError> {
        let refused = |reason: &str| Err(ApiError::unsupported_by_model("model", reason));
        match (self, &pooling.output) {
            (Self::Embeddings { .. }, PoolingOutput::Labels { .. }) => {
                refused("This model classifies; use /v1/rerank, /score or /v1/classify.")
            }
            (Self::Classes, PoolingOutput::Embedding) => {
                refused("This model gives embeddings; use /v1/embeddings.")
            }
            (Self::Scores { .. } | Self::Ranks { .. }, PoolingOutput::Labels { names, .. })
                if names.len() != 1 =>
            {
                refused("This model has several labels, and no single score; use /v1/classify.")
            }
            _ => Ok(()),
        }
    }

    /// Number of texts whose embeddings are compared with the following ones, for models with embeddings.
    fn n_first(&self) -> usize {
        match self {
            Self::Scores { n_first } => *n_first,
            Self::Ranks { .. } => 1,
            Self::Embeddings { .. } | Self::Classes => 0,
        }
    }
}

async fn answer(
    app: Arc<App>,
    body: JsonBody,
    endpoint: Option<Endpoint>,
    read: impl FnOnce(&Reading<'_>, JsonBody) -> Result<Job, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let _presence = body.bring_named_or_only(&app).await?;
    let body = match endpoint {
        None => refuse_engines(&app, body, "/v1/embeddings")?,
        Some(endpoint) => match answer_by_engine(&app, body, endpoint).await {
            ControlFlow::Break(answered) => return answered,
            ControlFlow::Continue(body) => body,
        },
    };
    let (caller, state) = (body.caller.clone(), app.clone());
    let job = on_blocking_thread(&app.work.turns, &caller, body.n_bytes(), move |abandoned| {
        let caller = body.caller.clone();
        read(&Reading { app: &state, caller: &caller, abandoned }, body)
    })
    .await?;
    let Job { route, prepared, param, model, pooling, form, gives_logits, ignored } = job;
    let n_tokens = prepared.requests.iter().map(|request| request.prompt.len() as u64).sum();
    let session = admit(&route, prepared, param, &caller, &app.policy).await?;
    let memory = app.work.memory.reservation(Part::Answers);
    let phase = app.lifecycle.phase.subscribe();
    let (mut vectors, held) = collect_vectors(session, memory, phase, caller.id_text()).await?;
    if let (Form::Embeddings { dimensions: Some(n), .. }, Some(first)) = (&form, vectors.first())
        && *n > first.len()
    {
        return Err(ApiError::integer_above_max_value("dimensions", first.len() as i64));
    }
    // A number of an embedding takes about a dozen characters.
    let n_bytes = 12 * vectors.iter().map(Vec::len).sum::<usize>();
    let arrived = caller.arrived;
    let writing = move |out: FrameWriter| {
        let _held = held;
        if !gives_logits {
            vectors.iter_mut().for_each(|logits| pooling.activate(logits));
        }
        write((&model, &pooling), &form, &mut vectors, (n_tokens, arrived), out)
    };
    let frames = app.work.writing.write(&caller, n_bytes, writing).await?;
    let fields = [(header::CONTENT_TYPE, "application/json")];
    Ok(with_ignored(&app, (fields, Body::new(frames)), &ignored))
}

fn write(
    (model, pooling): (&str, &PoolingModel),
    form: &Form,
    vectors: &mut [Vec<f32>],
    (n_tokens, arrived): (u64, Instant),
    out: FrameWriter,
) -> Result<Frames, ApiError> {
    let created = now_unix_s();
    let usage = PooledUsage::new(n_tokens);
    match form {
        Form::Embeddings { view, dimensions, .. } => {
            if let Some(n) = dimensions {
                vectors.iter_mut().for_each(|vector| shorten(vector, *n, pooling.normalizes));
            }
            match view {
                EmbeddingView::OpenAi(format) => {
                    let embedding = |(i, vector)| Embedding::new(i, vector, *format);
                    let vectors = vectors.iter().map(Vec::as_slice).enumerate();
                    out.json(&PooledList::new(model, vectors.map(embedding).collect(), usage))
                }
                EmbeddingView::Ollama => {
                    out.json(&EmbedAnswer::new(model, vectors, n_tokens, arrived.elapsed()))
                }
                EmbeddingView::OllamaSingle => {
                    out.json(&EmbeddingAnswer { embedding: vectors.first().map_or(&[], Vec::as_slice) })
                }
            }
        }
        Form::Classes => {
            let PoolingOutput::Labels { names, .. } = &pooling.output else { return out.json(&()) };
            let classes =
                vectors.iter().enumerate().map(|(i, numbers)| classified(names, i, numbers)).collect();
            out.json(&PooledList::new(model, classes, usage).with_id("classify", created))
        }
        Form::Scores { .. } => {
            let scores = scores(pooling, vectors, form.n_first());
            let scores = scores.into_iter().enumerate().map(|(i, score)| Score::new(i, score)).collect();
            out.json(&PooledList::new(model, scores, usage).with_id("score", created))
        }
        Form::Ranks { top_n, documents } => {
            let scores = scores(pooling, vectors, form.n_first());
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let text = |i: usize| match documents.as_ref().map(|documents| &documents[i]) {
                Some(Prompt::Text(text)) => Some(text.as_str()),
                _ => None,
            };
            let ranked = order.into_iter().take(*top_n);
            let results = ranked.map(|i| RerankedDocument::new(i, text(i), scores[i])).collect();
            out.json(&Reranked::new(model, results, usage))
        }
    }
}

/// Classification of text number `i`: the label with its largest number.
fn classified<'a>(names: &'a [String], i: usize, numbers: &'a [f32]) -> Classification<'a> {
    let best = numbers.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(best, _)| best);
    Classification::new(i, names.get(best).map_or("", String::as_str), numbers)
}

/// Scores, one for each pair: the classifier's only output, or the cosine of the embeddings.
fn scores(pooling: &PoolingModel, vectors: &[Vec<f32>], n_first: usize) -> Vec<f32> {
    match pooling.output {
        PoolingOutput::Labels { .. } => vectors.iter().map(|vector| vector[0]).collect(),
        PoolingOutput::Embedding => {
            let (first, second) = vectors.split_at(n_first);
            let pairs = second.iter().enumerate();
            pairs.map(|(i, second)| cosine(&first[i.min(first.len() - 1)], second)).collect()
        }
    }
}
