//! What of a chat can be asked in other words: the user's last text, apart from everything around it. Does not know how two questions
//! are compared.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::app::App;
use crate::connection::RequestContext;
use crate::generation::{Caller, encode_conversation, tokenizer_of};
use crate::pooling::{Inputs, PooledInput, prepare, vector_aside};
use crate::response_cache::{CachePolicy, Question, SemanticCache};
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_api::openai::message::Role;
use throng_api::openai::pooling::PoolingOptions;
use throng_api::openai::{ChatRequest, Conversation, Prompt};

/// Longest question that is compared with others, in bytes.
const MAX_QUESTION_BYTES: usize = 8 << 10;
/// Longest conversation around it.
const MAX_CONVERSATION_BYTES: usize = 64 << 10;
/// What stands in the place of every question while all that is around it is named.
const ANY_QUESTION: &str = "?";

/// A question before its request has been prepared, which takes the conversation's texts.
#[derive(Debug)]
pub(super) struct Draft {
    text: String,
    /// With another text in the question's place.
    conversation: Conversation,
    max_tokens: Option<u32>,
}

impl Draft {
    /// The question of a chat, if similar ones may be looked for.
    pub fn wanted(semantic: &SemanticCache, context: &RequestContext, request: &ChatRequest) -> Option<Self> {
        let key_holder = context.key_holder();
        let organisation = key_holder.key.as_deref().map(|key| key.organisation.as_str());
        let is_wanted = context.cache_policy == CachePolicy::Use && semantic.config().is_for(organisation);
        is_wanted.then(|| Self::of(request)).flatten()
    }

    /// The question that a chat ends with, if it has one that can be asked in other words.
    fn of(request: &ChatRequest) -> Option<Self> {
        let (conversation, generation) = (&request.conversation, &request.generation);
        let last = conversation.messages.last().filter(|last| last.role == Role::User)?;
        let text = last.content.as_ref().filter(|text| !text.trim().is_empty())?;
        let is_short =
            text.len() <= MAX_QUESTION_BYTES && conversation.text_bytes() <= MAX_CONVERSATION_BYTES;
        // Log-probabilities of a prompt are those of one prompt, and a prompt that is cut has no question of its own.
        let is_plain = generation.prompt_logprobs.is_none()
            && generation.truncate_prompt_tokens.is_none()
            && !conversation.continues_final_message();
        (is_short && is_plain).then(|| {
            let mut around = conversation.clone();
            if let Some(last) = around.messages.last_mut() {
                last.content = Some(ANY_QUESTION.to_owned());
            }
            let max_tokens = generation.max_tokens.and_then(|n| u32::try_from(n).ok());
            Self { text: text.clone(), conversation: around, max_tokens }
        })
    }

    /// Tokenizes the question; without a model that gives its embedding there is nothing to compare.
    pub fn question(
        self,
        app: &App,
        semantic: &SemanticCache,
        model: &ModelEntry,
        caller: &Caller<'_>,
        context: &Arc<RequestContext>,
    ) -> Option<Question> {
        let question = self.prepare(app, semantic, model, caller, context);
        question.inspect_err(|error| semantic.failed(error.message())).ok()
    }

    fn prepare(
        mut self,
        app: &App,
        semantic: &SemanticCache,
        model: &ModelEntry,
        caller: &Caller<'_>,
        context: &Arc<RequestContext>,
    ) -> Result<Question, ApiError> {
        let Caller { memory, abandoned, .. } = *caller;
        let embedder = app.router.find(&semantic.config().model)?;
        let pooling = embedder.model.served.pooling.as_ref().ok_or_else(|| {
            ApiError::unsupported_by_model(
                "model",
                "The model of gateway.semantic_cache gives no embeddings.",
            )
        })?;
        let tokenizer = tokenizer_of(model, "messages")?;
        let frame = encode_conversation(model, tokenizer, &mut self.conversation, memory, abandoned)?;
        let prompt = Prompt::Text(self.text);
        let before = pooling.prompt(None)?;
        let inputs = Inputs { inputs: vec![PooledInput::Text(&prompt)], param: "messages", before };
        let options = PoolingOptions { truncate_prompt_tokens: Some(-1), ..Default::default() };
        let whose = (&caller.tenant, memory, abandoned);
        let prepared = prepare(&embedder.model, pooling, &inputs, &options, whose)?;
        let tenant = context.key_holder();
        let embedding =
            vector_aside((embedder, prepared), context.clone(), tenant, app.ledger.clone()).boxed();
        let request_id = context.id_text().to_owned();
        Ok(Question { request_id, frame: frame.tokens.into(), max_tokens: self.max_tokens, embedding })
    }
}
