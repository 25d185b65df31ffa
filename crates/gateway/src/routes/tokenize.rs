//! Tokenization of text and its inverse, without computing the model. Does not know engines.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use throng_fleet::upstream::{Endpoint, named_model};
use throng_http::memory::Part;

use super::by_engine::answer_by_engine;
use super::json_body::{AppState, JsonBody, with_ignored};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::{
    Abandoned, EncodedMedia, FrameWriter, Frames, encode_conversation, encode_text, on_blocking_thread,
    tokenizer_of,
};
use crate::rejection::{Rejection, memory_full};
use crate::served_model::ModelEntry;
use throng_api::anthropic::CountTokensRequest;
use throng_api::openai::tokenize::{DetokenizeResponse, TokenStrings, TokenizeResponse};
use throng_api::openai::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
use throng_api::responses::CreateRequest;
use throng_api::spec::Conversation;
use throng_api::{ApiError, IgnoredParameters};

/// `POST /tokenize`.
pub(super) async fn tokenize(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, Some(Endpoint::Tokenize), |app, body, abandoned| {
        let (key_holder, (mut request, mut memory)) =
            (body.caller.key_holder(), body.read(TokenizeRequest::parse)?);
        let route = app.find_model(&key_holder, request.model.as_deref())?;
        let model = &*route.model;
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
    answer(app, body, None, |app, body, abandoned| {
        let (key_holder, (mut request, memory)) =
            (body.caller.key_holder(), body.read(CountTokensRequest::parse)?);
        let model = app.find_model(&key_holder, Some(&request.model))?.model;
        let n_tokens = n_tokens_of(app, &model, &mut request.conversation, "messages", abandoned)?;
        drop(memory);
        let count = serde_json::json!({"input_tokens": n_tokens});
        Ok((writer(app).json(&count)?, request.ignored))
    })
    .await
    .map_err(Rejection::from)
}

/// `POST /v1/responses/input_tokens`.
pub(super) async fn input_tokens(State(app): AppState, body: JsonBody) -> Result<Response, Rejection> {
    answer(app, body, None, |app, body, abandoned| {
        let (key_holder, (mut request, memory)) =
            (body.caller.key_holder(), body.read(CreateRequest::parse_to_count)?);
        let model = app.find_model(&key_holder, request.model.as_deref())?.model;
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
    answer(app, body, Some(Endpoint::Detokenize), |app, body, _| {
        let (key_holder, (request, mut memory)) =
            (body.caller.key_holder(), body.read(DetokenizeRequest::parse)?);
        let route = app.find_model(&key_holder, request.model.as_deref())?;
        let model = &*route.model;
        request.check(model.limits().vocabulary_size)?;
        let tokenizer = tokenizer_of(model, "tokens")?;
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

/// Runs `work` for a model of this gateway. For a model of upstream engines, asks their `endpoint`.
async fn answer(
    app: Arc<App>,
    body: JsonBody,
    endpoint: Option<Endpoint>,
    work: impl FnOnce(&App, JsonBody, &Abandoned) -> Result<(Frames, IgnoredParameters), ApiError>
    + Send
    + 'static,
) -> Result<Response, ApiError> {
    body.bring_model(&app, None).await?;
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
    let (caller, state) = (body.caller.clone(), app.clone());
    let (frames, ignored) = on_blocking_thread(&app.work.turns, &caller, body.n_bytes(), move |abandoned| {
        work(&state, body, abandoned)
    })
    .await?;
    let fields = [(header::CONTENT_TYPE, "application/json")];
    Ok(with_ignored(&app, (fields, Body::new(frames)), &ignored))
}
