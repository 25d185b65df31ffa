//! From a checked body to requests an engine can take: the template, the tokenizer, the sampling parameters. Runs
//! on threads of its own, a bounded number at a time, for a prompt may be megabytes. Refuses to know sockets.

use std::sync::Arc;

use serde_json::Value;
use throng_core::request::{Request, RequestId, SamplingParams, TenantId, TokenId};
use throng_text::{DetokenizeOptions, EncodeOptions, TemplateError, TemplateInput, TextError, Tokenizer};

use super::session::TextOptions;
use crate::app::App;
use crate::openai::{
    ApiError, ChatRequest, CompletionRequest, Conversation, GenerationRequest, Prompt, check_prompt,
};
use crate::served_model::ModelEntry;

/// A request that an engine can take, with what its answer needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// One a prompt; their ids are still to be given.
    pub requests: Vec<Request>,
    /// The texts of the prompts, where the answer repeats them.
    pub echo: Option<Vec<String>>,
    /// How answers become text; `None` without a tokenizer.
    pub text: Option<TextOptions>,
}

/// Runs `work` away from the threads that serve sockets.
///
/// # Errors
/// What `work` gives; 500 should it panic.
pub(crate) async fn off_the_workers<T: Send + 'static>(
    app: &App,
    request_id: &str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let internal = || ApiError::internal_error(request_id);
    let _permit = app.tokenizing.acquire().await.map_err(|_| internal())?;
    tokio::task::spawn_blocking(work).await.map_err(|_| internal())?
}

/// Prepares a chat completion.
///
/// # Errors
/// 400 for what the model cannot take.
pub(crate) fn prepare_chat(
    model: &ModelEntry,
    tenant: TenantId,
    request: &ChatRequest,
) -> Result<Prepared, ApiError> {
    request.generation.check(model.limits())?;
    let tokenizer = tokenizer_of(model, "messages")?;
    let mut prompt = encode_conversation(model, tokenizer, &request.conversation)?;
    request.generation.truncate(&mut prompt, model.limits());
    check_prompt(&prompt, model.limits(), "messages")?;
    let mut encode_word = |word: &str| encode_word(tokenizer, word);
    let sampling =
        request.sampling_params(prompt.len(), &model.facts(), fastrand::u64(..), &mut encode_word)?;
    let options = detokenize_options(&request.generation, request.conversation.continues_final_message());
    let text = TextOptions { tokenizer: tokenizer.clone(), detokenize: options };
    let requests = vec![engine_request(&request.generation, tenant, prompt, sampling)];
    Ok(Prepared { requests, echo: None, text: Some(text) })
}

/// Prepares a text completion.
///
/// # Errors
/// 400 for what the model cannot take.
pub(crate) fn prepare_completion(
    model: &ModelEntry,
    tenant: TenantId,
    request: &CompletionRequest,
) -> Result<Prepared, ApiError> {
    let generation = &request.generation;
    generation.check(model.limits())?;
    let tokenizer = model.served.tokenizer.as_ref();
    if tokenizer.is_none() && !generation.stop.is_empty() {
        return Err(no_tokenizer("stop"));
    }
    let mut requests = Vec::with_capacity(request.prompts.len());
    let mut texts = Vec::new();
    for prompt in &request.prompts {
        let mut tokens = prompt_tokens(model, prompt, request.add_special_tokens)?;
        generation.truncate(&mut tokens, model.limits());
        check_prompt(&tokens, model.limits(), "prompt")?;
        let mut encode_word =
            |word: &str| encode_word(tokenizer.ok_or_else(|| no_tokenizer("bad_words"))?, word);
        let facts = model.facts();
        let sampling = request.sampling_params(tokens.len(), &facts, fastrand::u64(..), &mut encode_word)?;
        if request.echo {
            texts.push(prompt_text(tokenizer, prompt));
        }
        requests.push(engine_request(generation, tenant.clone(), tokens, sampling));
    }
    let text = tokenizer
        .map(|t| TextOptions { tokenizer: t.clone(), detokenize: detokenize_options(generation, true) });
    Ok(Prepared { requests, echo: request.echo.then_some(texts), text })
}

/// The tokens of a conversation as the model's template writes it.
///
/// # Errors
/// 400 for a model without template, a conversation it refuses, a text that cannot fit.
pub(crate) fn encode_conversation(
    model: &ModelEntry,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<Vec<TokenId>, ApiError> {
    let Some(template) = &model.served.chat_template else {
        let reason = "This model has no chat template; use /v1/completions.";
        return Err(ApiError::unsupported_by_model("messages", reason));
    };
    conversation.check_template_variables(|name| template.reads(name))?;
    let messages = conversation.messages_for_template(template.mentions("developer"));
    let tools = Value::Array(conversation.tools.clone());
    let documents = Value::Array(conversation.documents.clone());
    let variables = conversation.template_variables();
    let mut input = TemplateInput::new(&messages, tokenizer.special_tokens());
    input.tools = (!conversation.tools.is_empty()).then_some(&tools);
    input.documents = (!conversation.documents.is_empty()).then_some(&documents);
    input.add_generation_prompt = conversation.adds_generation_prompt();
    input.continue_final_message = conversation.continues_final_message();
    input.kwargs = (!variables.is_empty()).then_some(&variables);
    let rendered = template.render(&input).map_err(|error| template_error(&error))?;
    tokenizer
        .encode_rendered(&rendered, conversation.adds_special_tokens())
        .map_err(|error| text_error(&error, "messages", model))
}

/// The tokens of a text prompt.
///
/// # Errors
/// 400 for a text that cannot fit.
pub(crate) fn encode_text(
    model: &ModelEntry,
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: bool,
) -> Result<Vec<TokenId>, ApiError> {
    // The whole prompt is the client's own, control tokens included: nobody else's text stands in it.
    let options = EncodeOptions { add_special_tokens, parse_special: true };
    tokenizer.encode(text, options).map_err(|error| text_error(&error, "prompt", model))
}

/// The model's tokenizer.
///
/// # Errors
/// 400 that names `param` when it has none.
pub(crate) fn tokenizer_of<'m>(model: &'m ModelEntry, param: &str) -> Result<&'m Arc<Tokenizer>, ApiError> {
    model.served.tokenizer.as_ref().ok_or_else(|| no_tokenizer(param))
}

fn no_tokenizer(param: &str) -> ApiError {
    let reason = "This model has no tokenizer: send token ids as the prompt of /v1/completions.";
    ApiError::unsupported_by_model(param, reason)
}

fn prompt_tokens(
    model: &ModelEntry,
    prompt: &Prompt,
    add_special_tokens: bool,
) -> Result<Vec<TokenId>, ApiError> {
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Text(text) => encode_text(model, tokenizer_of(model, "prompt")?, text, add_special_tokens),
    }
}

fn prompt_text(tokenizer: Option<&Arc<Tokenizer>>, prompt: &Prompt) -> String {
    match (prompt, tokenizer) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Tokens(tokens), Some(tokenizer)) => tokenizer.decode(tokens, false),
        (Prompt::Tokens(_), None) => String::new(),
    }
}

fn encode_word(tokenizer: &Tokenizer, word: &str) -> Result<Vec<TokenId>, ApiError> {
    let options = EncodeOptions { add_special_tokens: false, parse_special: false };
    tokenizer.encode(word, options).map_err(|_| ApiError::string_above_max_length("bad_words", 0))
}

fn detokenize_options(generation: &GenerationRequest, continues_prompt: bool) -> DetokenizeOptions {
    DetokenizeOptions {
        skip_special_tokens: generation.skips_special_tokens(),
        spaces_between_special_tokens: generation.spaces_between_special_tokens.unwrap_or(true),
        stop: generation.stop.clone(),
        include_stop_str_in_output: generation.include_stop_str_in_output.unwrap_or(false),
        continues_prompt,
    }
}

fn engine_request(
    generation: &GenerationRequest,
    tenant: TenantId,
    prompt: Vec<TokenId>,
    sampling: SamplingParams,
) -> Request {
    Request {
        id: RequestId(0),
        tenant,
        cache_salt: generation.cache_salt.as_deref().map(Arc::from),
        prompt: prompt.into(),
        n: generation.n(),
        priority: generation.priority(),
        sampling: Arc::new(sampling),
    }
}

fn template_error(error: &TemplateError) -> ApiError {
    match error {
        TemplateError::ReservedArgument { name } => {
            ApiError::unknown_parameter(format!("chat_template_kwargs.{name}"))
        }
        TemplateError::NothingToContinue(reason) => {
            ApiError::invalid_value("continue_final_message", reason.clone())
        }
        other => ApiError::template_error(&other.to_string()),
    }
}

fn text_error(error: &TextError, param: &str, model: &ModelEntry) -> ApiError {
    match error {
        TextError::TooLong { n_bytes, .. } => {
            ApiError::text_too_long(param, *n_bytes, model.limits().max_model_len)
        }
        TextError::Encode(_) => ApiError::invalid_value(param, "This text cannot be tokenized."),
    }
}
