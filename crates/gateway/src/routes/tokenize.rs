//! Text to tokens and back, without a model's arithmetic. Refuses to know engines.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::json_body::{AppState, JsonBody, with_ignored};
use crate::generation::{encode_conversation, encode_text, off_the_workers, tokenizer_of};
use crate::openai::tokenize::{DetokenizeResponse, TokenizeResponse};
use crate::openai::{ApiError, DetokenizeRequest, TokenizeInput, TokenizeRequest};

/// `POST /tokenize`.
pub(super) async fn tokenize(State(app): AppState, body: JsonBody) -> Result<Response, ApiError> {
    let request = TokenizeRequest::parse(&body.bytes, &body.options)?;
    let route = app.router.find_or_only(request.model.as_deref())?.clone();
    off_the_workers(&app, body.context.id_text(), move || {
        let model = &*route.model;
        let tokens = match &request.input {
            TokenizeInput::Text { prompt, add_special_tokens } => {
                encode_text(model, tokenizer_of(model, "prompt")?, prompt, *add_special_tokens)?
            }
            TokenizeInput::Conversation(conversation) => {
                encode_conversation(model, tokenizer_of(model, "messages")?, conversation)?
            }
        };
        let tokenizer = tokenizer_of(model, "prompt")?;
        let text = |&id| tokenizer.vocabulary_text(id).unwrap_or_default();
        let response = TokenizeResponse {
            count: tokens.len(),
            max_model_len: model.limits().max_model_len,
            token_strs: request.return_token_strs.then(|| tokens.iter().map(text).collect()),
            tokens: &tokens,
        };
        Ok(with_ignored(Json(response), &request.ignored))
    })
    .await
}

/// `POST /detokenize`.
pub(super) async fn detokenize(State(app): AppState, body: JsonBody) -> Result<Response, ApiError> {
    let request = DetokenizeRequest::parse(&body.bytes, &body.options)?;
    let route = app.router.find_or_only(request.model.as_deref())?.clone();
    off_the_workers(&app, body.context.id_text(), move || {
        let model = &*route.model;
        request.check(model.limits().vocabulary_size)?;
        let prompt = tokenizer_of(model, "tokens")?.decode(&request.tokens, false);
        Ok(with_ignored(Json(DetokenizeResponse { prompt: &prompt }), &request.ignored))
    })
    .await
}
