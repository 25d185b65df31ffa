//! Tokenization of text and its inverse, without computing the model. Does not know engines.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use throng_fleet::upstream::{Endpoint, named_model};
use throng_http::memory::{Part, Reservation};

use super::by_engine::answer_by_engine;
use super::json_body::{AppState, JsonBody, with_ignored};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::{
    Abandoned, EncodedMedia, FrameWriter, Frames, encode_conversation, encode_text, in_turn,
    on_blocking_thread, tokenizer_of,
};
use crate::rejection::{Rejection, memory_full};
use crate::served_model::ModelEntry;
use throng_api::anthropic::CountTokensRequest;
use throng_api::openai::tokenize::{DetokenizeResponse, TokenStrings, TokenizeResponse};
use throng_api::openai::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
use throng_api::responses::{CountedInput, CreateRequest};
use throng_api::spec::Conversation;
use throng_api::{ApiError, IgnoredParameters, ReadOptions};
use throng_fetch::has_urls;

/// `POST /tokenize`.
pub(super) async fn tokenize(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Tokenize), TokenizeRequest::parse, |app, work| {
        let Work { mut request, mut memory, model, abandoned } = work;
        let model = &*model;
        request.ignore_unread_variables(|name| model.template_reads(name));
        let mut image_spans = Vec::new();
        let tokens = match &mut request.input {
            TokenizeInput::Text { prompt, add_special_tokens } => {
                let tokenizer = tokenizer_of(model, "prompt")?;
                encode_text(model, tokenizer, prompt, *add_special_tokens, &app.work.memory, abandoned)?
            }
            TokenizeInput::Conversation(conversation) => {
                let tokenizer = tokenizer_of(model, "messages")?;
                let memory = &app.work.memory;
                let encoded =
                    encode_conversation(model, tokenizer, conversation, "messages", memory, abandoned)?;
                image_spans.extend(encoded.media.iter().flat_map(EncodedMedia::spans));
                encoded.tokens
            }
        };
        memory.cover(std::mem::size_of_val(tokens.as_slice())).map_err(memory_full)?;
        let tokenizer = tokenizer_of(model, "prompt")?;
        let text = |id| tokenizer.vocabulary_text(id).unwrap_or_default();
        let response = TokenizeResponse {
            count: tokens.len(),
            max_model_len: model.limits().max_model_len,
            tokens: &tokens,
            token_strs: request.return_token_strs.then_some(TokenStrings { tokens: &tokens, text: &text }),
            image_spans,
        };
        Ok((writer(app).json(&response)?, request.ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/messages/count_tokens`.
pub(super) async fn count(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, None, CountTokensRequest::parse, |app, work| {
        let Work { mut request, memory, model, abandoned } = work;
        let n_tokens = n_tokens_of(app, &model, &mut request.conversation, "messages", abandoned)?;
        drop(memory);
        let count = serde_json::json!({"input_tokens": n_tokens});
        Ok((writer(app).json(&count)?, request.ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/responses/input_tokens`.
pub(super) async fn input_tokens(State(app): AppState, mut body: JsonBody) -> Result<Response, Rejection> {
    body.gather_turn(&app).await?;
    let context = body.counted_context(&app).await?;
    let read = move |bytes: &[u8], options: &ReadOptions| {
        CreateRequest::parse_to_count(bytes, options)?.into_counted(&context)
    };
    answer(app, body, None, read, |app, work| {
        let Work { mut request, memory, model, abandoned } = work;
        let n_tokens = n_tokens_of(app, &model, &mut request.conversation, "input", abandoned)?;
        drop(memory);
        let count = serde_json::json!({"object": "response.input_tokens", "input_tokens": n_tokens});
        Ok((writer(app).json(&count)?, request.ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /detokenize`.
pub(super) async fn detokenize(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Detokenize), DetokenizeRequest::parse, |app, work| {
        let Work { request, mut memory, model, .. } = work;
        request.check(model.limits().vocabulary_size)?;
        let tokenizer = tokenizer_of(&model, "tokens")?;
        let bytes_of = |&token| tokenizer.token_bytes(token).map_or(0, <[u8]>::len);
        let n_bytes: usize = request.tokens.iter().map(bytes_of).sum();
        if n_bytes > app.config.api.max_answer_bytes {
            return Err(ApiError::answer_too_large(None, app.config.api.max_answer_bytes));
        }
        // Bytes that are no UTF-8 become characters of three.
        memory.set(memory.n_bytes() + 4 * n_bytes).map_err(memory_full)?;
        let prompt = tokenizer.decode(&request.tokens, false);
        Ok((writer(app).json(&DetokenizeResponse { prompt: &prompt })?, request.ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// Number of tokens of a conversation in the model's chat template; `param` is the parameter with its
/// messages.
fn n_tokens_of(
    app: &App,
    model: &ModelEntry,
    conversation: &mut Conversation,
    param: &'static str,
    abandoned: &Abandoned,
) -> Result<usize, ApiError> {
    conversation.ignore_unread_variables(|name| model.template_reads(name));
    let tokenizer = tokenizer_of(model, param)?;
    let encoded = encode_conversation(model, tokenizer, conversation, param, &app.work.memory, abandoned)?;
    Ok(encoded.tokens.len())
}

fn writer(app: &App) -> FrameWriter {
    FrameWriter::new(app.config.api.max_answer_bytes, app.work.memory.reservation(Part::Answers))
}

/// `GET /tokenizer_info`.
pub(super) async fn info(
    State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
) -> Result<Response, Rejection> {
    if !app.config.api.tokenizer_info {
        return Err(ApiError::unknown_url("GET", "/tokenizer_info").into());
    }
    let key_holder = caller.key_holder();
    let route = app.find_model(&key_holder, None)?;
    let config = route.model.served.tokenizer_config.as_deref();
    let config = config.ok_or_else(|| ApiError::unsupported_by_model("model", "It has no tokenizer."))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], config.to_owned()).into_response())
}

/// A request that needs only tokens.
trait TextRequest: Send + 'static {
    /// The name of its model, if it has one.
    fn model(&self) -> Option<&str>;

    /// Conversation of the request, if it has one.
    fn conversation_mut(&mut self) -> Option<&mut Conversation>;
}

impl TextRequest for TokenizeRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        match &mut self.input {
            TokenizeInput::Text { .. } => None,
            TokenizeInput::Conversation(conversation) => Some(conversation),
        }
    }
}

impl TextRequest for CountTokensRequest {
    fn model(&self) -> Option<&str> {
        Some(&self.model)
    }

    fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        Some(&mut self.conversation)
    }
}

impl TextRequest for CountedInput {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        Some(&mut self.conversation)
    }
}

impl TextRequest for DetokenizeRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        None
    }
}

/// A request with its model.
struct Work<'a, R> {
    request: R,
    memory: Reservation,
    model: Arc<ModelEntry>,
    abandoned: &'a Abandoned,
}

/// Reads a request for a model of this gateway, fetches its images, and runs `work`. For a model of upstream
/// engines, sends it to their `endpoint`.
async fn answer<R: TextRequest>(
    app: Arc<App>,
    body: JsonBody,
    endpoint: Option<Endpoint>,
    read: impl FnOnce(&[u8], &ReadOptions) -> Result<R, ApiError> + Send + 'static,
    work: impl FnOnce(&App, Work<'_, R>) -> Result<(Frames, IgnoredParameters), ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let _presence = body.bring_named_or_only(&app).await?;
    let body = match endpoint {
        Some(endpoint) => match answer_by_engine(&app, body, endpoint).await {
            ControlFlow::Break(answered) => return answered,
            ControlFlow::Continue(body) => body,
        },
        None => {
            let named = named_model(body.bytes());
            app.check_permission(&body.caller.key_holder(), named.as_deref(), body.is_repeatable())?;
            if app.models.upstreams.asked_for(None, body.bytes()).is_some() {
                let reason = "The tokens of messages are counted for models of this server alone.";
                return Err(ApiError::unsupported_by_model("model", reason));
            }
            body
        }
    };
    let (caller, state, n_bytes) = (body.caller.clone(), app.clone(), body.n_bytes());
    let read = move |abandoned: &Abandoned| {
        let key_holder = body.caller.key_holder();
        let (mut request, memory) = body.read(read)?;
        let model = state.find_model(&key_holder, request.model())?.model;
        let fetches = state.remote_images.is_some() && model.served.images.is_some();
        if fetches && request.conversation_mut().is_some_and(|conversation| has_urls(conversation)) {
            return Ok(ControlFlow::Continue((request, memory, model, work)));
        }
        work(&state, Work { request, memory, model, abandoned }).map(ControlFlow::Break)
    };
    let (frames, ignored) = match in_turn(&app.work.turns, &caller, n_bytes, read).await? {
        ControlFlow::Break(answered) => answered,
        ControlFlow::Continue((mut request, memory, model, work)) => {
            let fetched = match (&app.remote_images, request.conversation_mut()) {
                (Some(images), Some(conversation)) => Some(images.fetch(conversation).await?),
                _ => None,
            };
            let n_bytes = n_bytes + fetched.as_ref().map_or(0, |fetched| fetched.n_bytes);
            let state = app.clone();
            let work = move |abandoned: &Abandoned| {
                let answered = work(&state, Work { request, memory, model, abandoned });
                drop(fetched);
                answered
            };
            on_blocking_thread(&app.work.turns, &caller, n_bytes, work).await?
        }
    };
    let fields = [(header::CONTENT_TYPE, "application/json")];
    Ok(with_ignored(&app, (fields, Body::new(frames)), &ignored))
}
