//! The question of a chat for the semantic cache: the user's last text, apart from its conversation. Does
//! not compare questions.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::app::App;
use crate::caller::Caller;
use crate::generation::{PrepareContext, encode_conversation, tokenizer_of};
use crate::pooling::{Inputs, PooledInput, internal_vector, prepare};
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_api::openai::pooling::PoolingOptions;
use throng_api::spec::{ContentPart, Conversation, GenerationOptions, GenerationSpec, Input, Prompt, Role};
use throng_cache::{CachePolicy, Question, SemanticCache};

/// Longest question for the semantic cache, in bytes.
const MAX_QUESTION_BYTES: usize = 8 << 10;
/// Longest conversation around it, in bytes.
const MAX_CONVERSATION_BYTES: usize = 64 << 10;
/// Placeholder for the question in its frame.
const ANY_QUESTION: &str = "?";

/// A question before its request is prepared, which consumes the conversation's texts.
#[derive(Debug)]
pub(super) struct Draft {
    text: String,
    /// Conversation with the placeholder for the question.
    conversation: Conversation,
    max_tokens: Option<u32>,
}

impl Draft {
    /// The question of a chat, if the semantic cache may be used.
    pub fn wanted(semantic: &SemanticCache, caller: &Caller, spec: &GenerationSpec) -> Option<Self> {
        let key_holder = caller.key_holder();
        let organisation = key_holder.key.as_deref().map(|key| key.organisation.as_str());
        let is_wanted = caller.cache_policy == CachePolicy::Use && semantic.config().is_for(organisation);
        let Input::Chat(chat) = &spec.input else { return None };
        is_wanted.then(|| Self::of(&spec.options, &chat.conversation)).flatten()
    }

    /// The question at the end of a chat, if it consists of plain text.
    fn of(generation: &GenerationOptions, conversation: &Conversation) -> Option<Self> {
        let last = conversation.messages.last().filter(|last| last.role == Role::User)?;
        let text = last.text().filter(|text| !text.trim().is_empty())?;
        let is_short =
            text.len() <= MAX_QUESTION_BYTES && conversation.text_bytes() <= MAX_CONVERSATION_BYTES;
        // Log-probabilities of a prompt are those of one prompt, and a prompt that is cut has no question of
        // its own.
        let is_plain = generation.prompt_logprobs.is_none()
            && generation.truncate_prompt_tokens.is_none()
            && !conversation.continues_final_message()
            && conversation.images().next().is_none();
        (is_short && is_plain).then(|| {
            let mut around = conversation.clone();
            if let Some(last) = around.messages.last_mut() {
                last.content = Some(vec![ContentPart::from(ANY_QUESTION)]);
            }
            let max_tokens = generation.max_tokens.and_then(|n| u32::try_from(n).ok());
            Self { text: text.into_owned(), conversation: around, max_tokens }
        })
    }

    /// Tokenizes the question; `None` without a model for its embedding.
    pub fn question(
        self,
        app: &App,
        semantic: &SemanticCache,
        model: &ModelEntry,
        scope: &PrepareContext<'_>,
        caller: &Arc<Caller>,
    ) -> Option<Question> {
        let question = self.prepare(app, semantic, model, scope, caller);
        question.inspect_err(|error| semantic.failed(error.message())).ok()
    }

    fn prepare(
        mut self,
        app: &App,
        semantic: &SemanticCache,
        model: &ModelEntry,
        scope: &PrepareContext<'_>,
        caller: &Arc<Caller>,
    ) -> Result<Question, ApiError> {
        let PrepareContext { memory, abandoned, .. } = *scope;
        let embedder = app.models.router.find(&semantic.config().model)?;
        let pooling = embedder.model.served.pooling.as_ref().ok_or_else(|| {
            ApiError::unsupported_by_model(
                "model",
                "The model of gateway.semantic_cache gives no embeddings.",
            )
        })?;
        let tokenizer = tokenizer_of(model, "messages")?;
        let frame =
            encode_conversation(model, tokenizer, &mut self.conversation, "messages", memory, abandoned)?;
        let prompt = Prompt::Text(self.text);
        let before = pooling.prompt(None)?;
        let inputs = Inputs { inputs: vec![PooledInput::Text(&prompt)], param: "messages", before };
        let options = PoolingOptions { truncate_prompt_tokens: Some(-1), ..Default::default() };
        let whose = (&scope.tenant, memory, abandoned);
        let prepared = prepare(&embedder.model, pooling, &inputs, &options, whose)?;
        let tenant = caller.key_holder();
        let embedding =
            internal_vector((embedder, prepared), caller.clone(), tenant, app.policy.ledger.clone()).boxed();
        let request_id = caller.id_text().to_owned();
        Ok(Question { request_id, frame: frame.tokens.into(), max_tokens: self.max_tokens, embedding })
    }
}
