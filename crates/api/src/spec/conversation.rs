//! Conversations: messages, tools, documents and variables for a chat template. Does not know templates.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use throng_text::TokenTrail;

use super::cache_points::CachePoint;
use super::image::ImagePart;
use super::message::{Message, Role};
use crate::error::ApiError;
use crate::ignored::IgnoredParameters;
use crate::json::TreeBudget;

/// A conversation with the other inputs of its chat template.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Messages; at least one if the request has `messages`.
    pub messages: Vec<Message>,
    /// Offered tools, checked, as trees.
    pub tools: Vec<Value>,
    /// Whether the request has the parameter `tools`, even as an empty list.
    pub(crate) has_tools_parameter: bool,
    /// Whether the model must not call tools.
    pub calls_no_tools: bool,
    /// Documents to answer from, as objects.
    pub documents: Vec<Value>,
    /// Whether the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is left open for the model to continue.
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds special tokens to those of the template.
    pub add_special_tokens: Option<bool>,
    /// Reasoning effort, for templates that support it.
    pub reasoning_effort: Option<&'static str>,
    /// Whether the model reasons before it answers, for templates that support `enable_thinking`.
    pub enable_thinking: Option<bool>,
    /// The client's own template variables, none of them reserved.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the oldest turns of a conversation that is too long may be dropped.
    pub may_drop_turns: bool,
    /// Places up to which the client asks to keep what is computed, at most [`MAX_CACHE_POINTS`].
    ///
    /// [`MAX_CACHE_POINTS`]: super::MAX_CACHE_POINTS
    pub cache_points: Vec<CachePoint>,
    /// Path of the parameter that leaves the last message open.
    pub(crate) open_message: Option<String>,
    /// Template variables without effect.
    pub ignored: IgnoredParameters,
    /// Tokens of the turns before, empty in the first one, if those of this turn are kept.
    pub trail: Option<Arc<TokenTrail>>,
    /// Remaining tree values of the request.
    pub(crate) budget: TreeBudget,
}

impl Conversation {
    /// Whether it has only messages: no tools, documents or template variables.
    pub fn is_plain(&self) -> bool {
        self.tools.is_empty() && self.documents.is_empty() && self.chat_template_kwargs.is_empty()
    }

    /// Whether the prompt ends with the start of the assistant's turn.
    pub fn adds_generation_prompt(&self) -> bool {
        self.add_generation_prompt.unwrap_or(!self.continues_final_message())
    }

    /// Whether the last message is left open for the model to continue.
    pub fn continues_final_message(&self) -> bool {
        self.continue_final_message.unwrap_or(false)
    }

    /// Whether the tokenizer adds special tokens to those of the template; the request may set it.
    pub fn adds_special_tokens(&self, by_default: bool) -> bool {
        self.add_special_tokens.unwrap_or(by_default)
    }

    /// Checks combinations of parameters. Leaves the last message open if one of its own parameters requires
    /// it.
    pub(crate) fn check_together(&mut self) -> Result<(), ApiError> {
        if let Some(open) = &self.open_message {
            for (said, other) in [
                (self.continue_final_message == Some(false), "continue_final_message"),
                (self.add_generation_prompt == Some(true), "add_generation_prompt"),
            ] {
                if said {
                    return Err(ApiError::mutually_exclusive(open.clone(), other));
                }
            }
            self.continue_final_message = Some(true);
        }
        if self.continues_final_message() && self.adds_generation_prompt() {
            return Err(ApiError::mutually_exclusive("continue_final_message", "add_generation_prompt"));
        }
        Ok(())
    }

    /// The images of all messages, in order.
    pub fn images(&self) -> impl Iterator<Item = &ImagePart> {
        self.messages.iter().flat_map(Message::images)
    }

    /// The images in the order of the messages, to replace their sources.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut ImagePart> {
        self.messages.iter_mut().flat_map(Message::images_mut)
    }

    /// Refuses images for a model that takes only text.
    ///
    /// # Errors
    /// `unsupported_parameter` with the path of the first image.
    pub fn refuse_images(&self) -> Result<(), ApiError> {
        self.images().next().map_or(Ok(()), |image| Err(ApiError::only_text(image.param.clone())))
    }

    /// Total bytes of all texts in the messages.
    pub fn text_bytes(&self) -> usize {
        self.messages.iter().map(Message::text_bytes).sum()
    }

    /// Number of values in the trees for the template.
    pub fn n_values(&self) -> usize {
        self.budget.n_taken()
    }

    /// Takes the messages, in the form of the template. The role `developer` becomes `system` for templates
    /// that do not support it.
    pub fn take_messages_for_template(&mut self, knows_developer: bool) -> Value {
        self.take_messages(knows_developer, &|_| json!({"type": "image"}))
    }

    /// Takes the messages like [`Self::take_messages_for_template`], with images in the form of
    /// `image_value`.
    pub(crate) fn take_messages(
        &mut self,
        knows_developer: bool,
        image_value: &dyn Fn(&ImagePart) -> Value,
    ) -> Value {
        let role = |role: Role| match role {
            Role::Developer if !knows_developer => Role::System.as_str(),
            role => role.as_str(),
        };
        let messages = std::mem::take(&mut self.messages);
        messages
            .into_iter()
            .map(|message| {
                let role = role(message.role);
                message.into_template_value(role, image_value)
            })
            .collect()
    }

    /// Takes the template variables except those that the server sets, with `defaults` for missing ones.
    pub fn take_template_variables(&mut self, defaults: &Map<String, Value>) -> Map<String, Value> {
        let mut variables = std::mem::take(&mut self.chat_template_kwargs);
        if let Some(effort) = self.reasoning_effort {
            variables.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        if let Some(is_on) = self.enable_thinking {
            variables.entry("enable_thinking").or_insert_with(|| is_on.into());
        }
        for (name, value) in defaults {
            variables.entry(name).or_insert_with(|| value.clone());
        }
        variables
    }

    /// Drops the client's variables that the template does not read, and adds their names to
    /// [`Self::ignored`].
    pub fn ignore_unread_variables(&mut self, is_read: impl Fn(&str) -> bool) {
        let ignored = &mut self.ignored;
        self.chat_template_kwargs.retain(|key, _| {
            let is_read = is_read(key);
            if !is_read {
                ignored.add(&format!("chat_template_kwargs.{key}"));
            }
            is_read
        });
    }
}
