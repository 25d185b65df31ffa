//! Turns a checked request into requests for a replica, with the template, the tokenizer and the sampling
//! parameters. Reserves their memory. Does not know sockets and threads.

use std::borrow::Cow;
use std::mem::size_of;
use std::sync::Arc;

use serde_json::Value;
use throng_api::spec::{
    ChatInput, Conversation, GenerationOptions, GenerationSpec, Infill, Input, OutputConstraint, Prompt,
    PromptsInput, RenderedConversation, beam_bytes, check_prompt, not_with_beams,
};
use throng_api::{ApiError, ConstraintParam};
use throng_core::request::{CacheMark, SamplingParams, TenantId, TokenId};
use throng_fleet::adapters::LoadedAdapter;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_text::{
    DetokenizeOptions, EncodeOptions, InfillText, InfillTokens, PromptTrail, TemplateInput, Tokenizer,
};

use throng_fleet::constraint::OutputForm;

use throng_fleet::replica::{Continuations, ReplicaRequest, RequestedAdapter};

use super::client_error::{template_error, text_error};
use super::constraining::{chat_constraint, constraint, output_constraint};
use super::images::{ConversationImages, EncodedMedia};
use super::past_calls::messages_and_tools;
use super::reading::AnswerReading;
use super::session::TextOptions;
use super::shortening::{encode_fitting, room_for_prompt};
use super::work::Abandoned;
use crate::config::RENDER_FACTOR;
use crate::rejection::memory_full;
use crate::served_model::ModelEntry;
use throng_cache::Question;

/// A request for a replica, with the data that its answer needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Requests, one for each prompt.
    pub requests: Vec<ReplicaRequest>,
    /// Texts of the prompts, if the answer repeats them.
    pub echo: Option<Vec<String>>,
    /// Settings for decoding tokens to text; `None` without a tokenizer.
    pub text: Option<TextOptions>,
    /// Parser of reasoning and calls; `None` if text is content as it is.
    pub reading: Option<AnswerReading>,
    /// Parameter that constrains the outputs, for errors.
    pub constraint_param: Option<ConstraintParam>,
    /// Whether equal requests have equal answers: sampling is greedy or has a seed.
    pub is_deterministic: bool,
    /// Number of prompt tokens that represent images.
    pub n_image_tokens: u64,
    /// The prompt along the tokens of earlier turns, if those of this turn are kept.
    pub trail: Option<PromptTrail>,
    /// Adapter of the request, kept in memory until its end.
    pub adapter: Option<LoadedAdapter>,
    /// Memory reserved until the end.
    pub memory: Vec<Reservation>,
    /// The question, if similar ones are searched for.
    pub question: Option<Box<Question>>,
}

impl Prepared {
    /// Creates requests without text and adapter, with deterministic answers and their reserved memory.
    pub fn new(requests: Vec<ReplicaRequest>, memory: Vec<Reservation>) -> Self {
        Self {
            requests,
            echo: None,
            text: None,
            reading: None,
            constraint_param: None,
            is_deterministic: true,
            n_image_tokens: 0,
            trail: None,
            adapter: None,
            memory,
            question: None,
        }
    }

    /// Sets the adapter, with its name.
    pub fn with_adapter(mut self, name: &str, adapter: Option<LoadedAdapter>) -> Self {
        let requested =
            |adapter: &LoadedAdapter| RequestedAdapter { adapter: adapter.adapter, name: name.into() };
        let requested = adapter.as_ref().map(requested);
        self.requests.iter_mut().for_each(|request| request.adapter.clone_from(&requested));
        Self { adapter, ..self }
    }

    /// Sets the question.
    pub fn with_question(self, question: Option<Question>) -> Self {
        Self { question: question.map(Box::new), ..self }
    }
}

/// Tenant, memory and cancellation of a request that is being prepared.
#[derive(Debug)]
pub(crate) struct PrepareContext<'a> {
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Budget for reservations.
    pub memory: &'a Arc<MemoryBudget>,
    /// Flag that is set when the client has disconnected.
    pub abandoned: &'a Abandoned,
}

/// Bytes of a choice other than its tokens: its text so far, its stop strings' automata, its entry in the
/// scheduler.
const CHOICE_BYTES: usize = 512;
/// Bytes of a prompt's token: in the request and in its sequence.
const PROMPT_TOKEN_BYTES: usize = 2 * size_of::<TokenId>();

/// Bytes of a value of the template's input beside its text.
const VALUE_BYTES: usize = 512;

/// Prepares a request. Takes the texts out of a conversation, and records parameters without effect.
///
/// # Errors
/// 400 for a request that the model does not support.
pub(crate) fn prepare(
    model: &ModelEntry,
    scope: &PrepareContext<'_>,
    spec: &mut GenerationSpec,
) -> Result<Prepared, ApiError> {
    spec.ignore_unread_variables(|name| model.template_reads(name));
    let GenerationSpec { options, input } = spec;
    options.check(model.limits())?;
    match input {
        Input::Chat(chat) => prepare_chat(model, scope, options, chat),
        Input::Prompts(prompts) => prepare_prompts(model, scope, options, prompts),
    }
}

fn prepare_chat(
    model: &ModelEntry,
    scope: &PrepareContext<'_>,
    options: &GenerationOptions,
    chat: &mut ChatInput,
) -> Result<Prepared, ApiError> {
    let names = options.names;
    let tokenizer = tokenizer_of(model, names.prompt)?;
    let mut reading = AnswerReading::of(model, chat)?;
    let asked = output_constraint(&model.served.answer_format, options, chat)?;
    if let Some(asked) = asked.as_ref().filter(|_| options.searches_beams()) {
        return Err(not_with_beams(&asked.param));
    }
    let room = room_for_prompt(options, model.limits().max_model_len);
    let n_tokens = |encoded: &EncodedConversation| encoded.tokens.len();
    let encoded = encode_fitting(&mut chat.conversation, room, n_tokens, |conversation| {
        encode_conversation(model, tokenizer, conversation, names.prompt, scope.memory, scope.abandoned)
    });
    let EncodedConversation { tokens: prompt, in_reasoning, cache_marks, media, trail } = encoded?;
    if let Some(reading) = &mut reading {
        reading.in_reasoning(in_reasoning);
    }
    let whole = &prompt;
    let prompt = options.truncated(whole, model.limits());
    if media.is_some() && prompt.len() < whole.len() {
        let reason = "A prompt with images cannot be cut.";
        return Err(ApiError::unsupported_parameter("truncate_prompt_tokens", reason));
    }
    let trail = trail.filter(|_| prompt.len() == whole.len());
    check_prompt(prompt, model.limits(), names.prompt)?;
    let mut encode_word = |word: &str| encode_word(tokenizer, word);
    let sampling =
        options.sampling_params(prompt.len(), &model.facts(), fastrand::u64(..), &mut encode_word)?;
    let mut detokenize = detokenize_options(options, chat.conversation.continues_final_message());
    if reading.is_some() {
        detokenize.markers = model.served.answer_format.control_tokens();
    }
    let text = TextOptions { tokenizer: tokenizer.clone(), detokenize };
    let n_held = held_bytes(prompt, &sampling, options.n_generated());
    let mut memory = scope.memory.reservation(Part::Prompts);
    memory.set(n_held).map_err(memory_full)?;
    let tenant = scope.tenant.clone();
    let constraint_param = asked.as_ref().map(OutputConstraint::blamed);
    let constraint = chat_constraint(model, options, chat, asked.as_ref(), in_reasoning)?;
    memory.set(n_held + source_bytes(constraint.as_ref())).map_err(memory_full)?;
    let is_deterministic = options.is_deterministic(&sampling);
    let mut request = replica_request(options, tenant, prompt, sampling, constraint);
    request.cache_marks.extend(cache_marks);
    let mut held = vec![memory];
    let mut n_image_tokens = 0;
    if let Some(encoded) = media {
        n_image_tokens = encoded.n_tokens;
        request.media = Some(encoded.media);
        held.push(encoded.memory);
    }
    let prepared = Prepared::new(vec![request], held);
    let text = Some(text);
    Ok(Prepared { text, reading, constraint_param, is_deterministic, n_image_tokens, trail, ..prepared })
}

fn prepare_prompts(
    model: &ModelEntry,
    scope: &PrepareContext<'_>,
    options: &GenerationOptions,
    input: &PromptsInput,
) -> Result<Prepared, ApiError> {
    let names = options.names;
    let tokenizer = model.served.tokenizer.as_ref();
    if tokenizer.is_none() && !options.stop.is_empty() {
        return Err(no_tokenizer("stop"));
    }
    if options.thinking_budget().is_some() {
        let reason = "Only chat completions tell reasoning apart.";
        return Err(ApiError::unsupported_parameter("thinking_token_budget", reason));
    }
    let constraint = options
        .constraint()
        .map(|asked| constraint(model, asked, options.n_generated()))
        .transpose()?
        .flatten();
    let mut requests = Vec::with_capacity(input.prompts.len());
    let mut texts = Vec::new();
    let mut memory = scope.memory.reservation(Part::Prompts);
    let mut n_held = source_bytes(constraint.as_ref());
    for prompt in &input.prompts {
        scope.abandoned.check()?;
        let tokens = prompt_tokens(model, prompt, input.add_special_tokens, scope)?;
        let tokens = options.truncated(&tokens, model.limits());
        check_prompt(tokens, model.limits(), names.prompt)?;
        let mut encode_word =
            |word: &str| encode_word(tokenizer.ok_or_else(|| no_tokenizer("bad_words"))?, word);
        let facts = model.facts();
        let mut sampling =
            options.sampling_params(tokens.len(), &facts, fastrand::u64(..), &mut encode_word)?;
        if matches!(prompt, Prompt::Infill(_)) {
            let ends = tokenizer.and_then(|tokenizer| tokenizer.infill_tokens());
            sampling.stop_token_ids.extend(ends.map_or(&[][..], InfillTokens::ends));
        }
        n_held += held_bytes(tokens, &sampling, options.n_generated());
        if input.repeats_texts {
            let text = prompt_text(tokenizer, prompt);
            n_held += text.len();
            texts.push(text);
        }
        memory.cover(n_held).map_err(memory_full)?;
        let tenant = scope.tenant.clone();
        requests.push(replica_request(options, tenant, tokens, sampling, constraint.clone()));
    }
    let text = tokenizer
        .map(|t| TextOptions { tokenizer: t.clone(), detokenize: detokenize_options(options, true) });
    let echo = input.repeats_texts.then_some(texts);
    let constraint_param = options.constraint().map(OutputConstraint::blamed);
    let is_deterministic = requests.iter().all(|request| options.is_deterministic(&request.sampling));
    let prepared = Prepared::new(requests, vec![memory]);
    Ok(Prepared { echo, text, constraint_param, is_deterministic, ..prepared })
}

/// Bytes that a prompt with `n` choices holds from its admission to its end.
fn held_bytes(prompt: &[TokenId], sampling: &SamplingParams, n: u32) -> usize {
    let ids = |tokens: &[TokenId]| std::mem::size_of_val(tokens);
    let words: usize = sampling.bad_words.iter().map(|word| size_of::<Vec<TokenId>>() + ids(word)).sum();
    prompt.len() * PROMPT_TOKEN_BYTES
        + std::mem::size_of_val(sampling.logit_bias.as_slice())
        + sampling.allowed_token_ids.as_deref().map_or(0, ids)
        + ids(&sampling.stop_token_ids)
        + words
        + n as usize * CHOICE_BYTES
        + beam_bytes(sampling)
}

/// Bytes of the source of a constraint, if it is kept.
fn source_bytes(constraint: Option<&OutputForm>) -> usize {
    constraint.and_then(|form| form.source.as_ref()).map_or(0, |source| source.held_bytes())
}

/// A conversation as a prompt.
#[derive(Debug)]
pub(crate) struct EncodedConversation {
    /// Token ids of the prompt.
    pub tokens: Vec<TokenId>,
    /// Whether it ends inside the model's reasoning.
    pub in_reasoning: bool,
    /// Prefixes that the client asks to keep cached.
    pub cache_marks: Vec<CacheMark>,
    /// Its images, if it has some.
    pub media: Option<EncodedMedia>,
    /// The prompt along the tokens of earlier turns.
    pub trail: Option<PromptTrail>,
}

/// Encodes a conversation with the model's template. Takes its texts, so that they are in memory only once.
///
/// # Errors
/// 400 for a model without template, a conversation that it refuses, a text that is too long, or an image
/// that cannot be used; 503 without memory.
pub(crate) fn encode_conversation(
    model: &ModelEntry,
    tokenizer: &Tokenizer,
    conversation: &mut Conversation,
    param: &str,
    memory: &Arc<MemoryBudget>,
    abandoned: &Abandoned,
) -> Result<EncodedConversation, ApiError> {
    let Some(template) = &model.served.chat_template else {
        let reason = "This model has no chat template; use /v1/completions.";
        return Err(ApiError::unsupported_by_model(param, reason));
    };
    let n_bytes = conversation.text_bytes();
    if n_bytes > tokenizer.max_text_bytes() {
        return Err(ApiError::text_too_long(param, n_bytes, model.limits().max_model_len));
    }
    let n_work_bytes = n_bytes * RENDER_FACTOR + conversation.n_values() * VALUE_BYTES;
    let _work = memory.reserve(Part::Bodies, n_work_bytes).map_err(memory_full)?;
    let input = model.served.images.as_deref();
    let images =
        ConversationImages::of(conversation, input, model.limits().max_model_len, memory, abandoned)?;
    let (points, n_messages) = (std::mem::take(&mut conversation.cache_points), conversation.messages.len());
    let (mut messages, tools) = messages_and_tools(model, template, tokenizer, conversation);
    let variables = conversation.take_template_variables(&model.served.chat_template_defaults);
    let documents = Value::Array(std::mem::take(&mut conversation.documents));
    let mut input = TemplateInput::new(&messages, tokenizer.special_tokens());
    let given = |list: &Value| list.as_array().is_some_and(|items| !items.is_empty());
    let [tools, documents] = [&tools, &documents].map(|list| given(list).then_some(list));
    let kwargs = (!variables.is_empty()).then_some(&variables);
    (input.tools, input.documents, input.kwargs) = (tools, documents, kwargs);
    input.add_generation_prompt = conversation.adds_generation_prompt();
    input.continue_final_message = conversation.continues_final_message();
    let render = |input: &TemplateInput<'_>| {
        let mut rendered = template.render(input).map_err(|error| template_error(&error))?;
        images.as_ref().map_or(Ok(()), |images| images.expand(&mut rendered, param))?;
        Ok::<_, ApiError>(rendered)
    };
    let rendered = render(&input)?;
    abandoned.check()?;
    let in_reasoning = model.served.answer_format.reasoning.is_some_and(|format| {
        let last = messages.as_array().and_then(|messages| messages.last());
        match last.and_then(|last| last["content"].as_str()) {
            Some(text) if input.continue_final_message => format.is_open_after(text),
            _ => input.add_generation_prompt && format.opens().iter().any(|open| rendered.ends_with(open)),
        }
    });
    // LLaVA's chat templates write no BOS token: transformers' processors let the tokenizer add it.
    let bos = tokenizer.special_tokens().named.iter().find(|(name, _)| name == "bos_token");
    let has_bos = bos.is_some_and(|(_, text)| rendered.begins_with(text));
    let adds_special_tokens = conversation.adds_special_tokens(model.served.images.is_some() && !has_bos);
    let encoded = match conversation.trail.as_ref().filter(|_| images.is_none()) {
        Some(trail) => tokenizer
            .encode_rendered_along(&rendered, adds_special_tokens, trail, abandoned.flag())
            .map(|(tokens, trail)| (tokens, Some(trail))),
        None => tokenizer
            .encode_rendered_unless(&rendered, adds_special_tokens, abandoned.flag())
            .map(|tokens| (tokens, None)),
    };
    let (tokens, trail) = encoded.map_err(|error| text_error(&error, param, model))?;
    let TemplateInput { add_generation_prompt, continue_final_message, .. } = input;
    let mut whole =
        RenderedConversation { messages: &mut messages, n_messages, rendered: &rendered, tokens: &tokens };
    let cache_marks = whole.cache_marks(&points, tokenizer, |messages| {
        let plain = TemplateInput::new(messages, tokenizer.special_tokens());
        let shape = TemplateInput { add_generation_prompt, continue_final_message, ..plain };
        render(&TemplateInput { tools, documents, kwargs, ..shape }).ok()
    });
    let media = images.map(|images| images.place(&tokens, param)).transpose()?;
    Ok(EncodedConversation { tokens, in_reasoning, cache_marks, media, trail })
}

/// Encodes a text prompt.
///
/// # Errors
/// 400 for a text that is too long, 503 without memory.
pub(crate) fn encode_text(
    model: &ModelEntry,
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: bool,
    memory: &Arc<MemoryBudget>,
    abandoned: &Abandoned,
) -> Result<Vec<TokenId>, ApiError> {
    // A longer text is refused before anything is made of it.
    let n_bytes = text.len().min(tokenizer.max_text_bytes());
    let _work = memory.reserve(Part::Bodies, n_bytes * RENDER_FACTOR).map_err(memory_full)?;
    // The whole prompt is the client's own, control tokens included: nobody else's text stands in it.
    let options = EncodeOptions { add_special_tokens, parse_special: true };
    let tokens = tokenizer.encode_unless(text, options, abandoned.flag());
    tokens.map_err(|error| text_error(&error, "prompt", model))
}

/// The model's tokenizer.
///
/// # Errors
/// 400 with `param` if the model has none.
pub(crate) fn tokenizer_of<'m>(model: &'m ModelEntry, param: &str) -> Result<&'m Arc<Tokenizer>, ApiError> {
    model.served.tokenizer.as_ref().ok_or_else(|| no_tokenizer(param))
}

fn no_tokenizer(param: &str) -> ApiError {
    let reason = "This model has no tokenizer: send token ids as the prompt of /v1/completions.";
    ApiError::unsupported_by_model(param, reason)
}

fn prompt_tokens<'p>(
    model: &ModelEntry,
    prompt: &'p Prompt,
    add_special_tokens: bool,
    scope: &PrepareContext<'_>,
) -> Result<Cow<'p, [TokenId]>, ApiError> {
    match prompt {
        // Copied once it is known to fit, as the engine's request.
        Prompt::Tokens(tokens) => Ok(Cow::Borrowed(tokens)),
        Prompt::Text(text) => {
            let tokenizer = tokenizer_of(model, "prompt")?;
            encode_text(model, tokenizer, text, add_special_tokens, scope.memory, scope.abandoned)
                .map(Cow::Owned)
        }
        Prompt::Infill(gap) => encode_infill(model, gap, add_special_tokens, scope).map(Cow::Owned),
    }
}

/// Encodes a prompt for filling in the middle.
fn encode_infill(
    model: &ModelEntry,
    gap: &Infill,
    add_special_tokens: bool,
    scope: &PrepareContext<'_>,
) -> Result<Vec<TokenId>, ApiError> {
    let tokenizer = tokenizer_of(model, gap.param)?;
    let Some(tokens) = tokenizer.infill_tokens() else {
        let reason = "This model has no tokens for filling in the middle.";
        return Err(ApiError::unsupported_by_model(gap.param, reason));
    };
    let n_bytes = gap.text_bytes();
    if n_bytes > tokenizer.max_text_bytes() {
        return Err(ApiError::text_too_long(gap.param, n_bytes, model.limits().max_model_len));
    }
    let _work = scope.memory.reserve(Part::Bodies, n_bytes * RENDER_FACTOR).map_err(memory_full)?;
    let text = InfillText { before: &gap.before, behind: &gap.behind, files: &gap.files };
    let encoded = tokenizer.encode_infill_unless(tokens, text, add_special_tokens, scope.abandoned.flag());
    encoded.map_err(|error| text_error(&error, gap.param, model))
}

fn prompt_text(tokenizer: Option<&Arc<Tokenizer>>, prompt: &Prompt) -> String {
    match (prompt, tokenizer) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Tokens(tokens), Some(tokenizer)) => tokenizer.decode(tokens, false),
        (Prompt::Tokens(_), None) | (Prompt::Infill(_), _) => String::new(),
    }
}

fn encode_word(tokenizer: &Tokenizer, word: &str) -> Result<Vec<TokenId>, ApiError> {
    let options = EncodeOptions { add_special_tokens: false, parse_special: false };
    tokenizer.encode(word, options).map_err(|_| ApiError::string_above_max_length("bad_words", 0))
}

fn detokenize_options(generation: &GenerationOptions, continues_prompt: bool) -> DetokenizeOptions {
    DetokenizeOptions {
        skip_special_tokens: generation.skips_special_tokens(),
        spaces_between_special_tokens: generation.spaces_between_special_tokens.unwrap_or(true),
        stop: generation.stop.clone(),
        include_stop_str_in_output: generation.include_stop_str_in_output.unwrap_or(false),
        markers: Vec::new(),
        continues_prompt,
    }
}

fn replica_request(
    generation: &GenerationOptions,
    tenant: TenantId,
    prompt: &[TokenId],
    sampling: SamplingParams,
    constraint: Option<OutputForm>,
) -> ReplicaRequest {
    ReplicaRequest {
        tenant,
        cache_salt: generation.cache_salt.as_deref().map(Arc::from),
        session: generation.prompt_cache_key.as_deref().map(Arc::from),
        cache_marks: generation.keep_cached_s.map(whole_mark).into_iter().collect(),
        constraint,
        adapter: None,
        prompt: prompt.into(),
        media: None,
        priority: generation.priority(),
        sampling: Arc::new(sampling),
        continuations: Continuations::New { n: generation.n_continuations() },
        holder: None,
    }
}

fn whole_mark(keep_s: u32) -> CacheMark {
    CacheMark { n_tokens: CacheMark::WHOLE, keep_s }
}
