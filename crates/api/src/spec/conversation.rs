//! Conversations: messages, tools, documents and variables for a chat template. Does not know templates.

use serde_json::{Map, Value};

use super::message::{Message, Role};
use crate::error::ApiError;
use crate::ignored::IgnoredParameters;
use crate::json::TreeBudget;

/// A conversation with what else its template reads.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// What was said, at least one message where the request has `messages`.
    pub messages: Vec<Message>,
    /// The tools on offer, checked, as trees.
    pub tools: Vec<Value>,
    /// Whether the parameter was given, if only as an empty list.
    pub(crate) has_tools_parameter: bool,
    /// The model must not call them.
    pub calls_no_tools: bool,
    /// Documents to answer from, as objects.
    pub documents: Vec<Value>,
    /// Whether the prompt ends with the beginning of the model's turn.
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is left open, so that the model goes on with it.
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds special tokens to those of the template.
    pub add_special_tokens: Option<bool>,
    /// How much to think, for templates that know it.
    pub reasoning_effort: Option<&'static str>,
    /// Whether the model thinks before it answers, for templates that know `enable_thinking`.
    pub enable_thinking: Option<bool>,
    /// The client's own variables for the template, none of them reserved.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the oldest turns may be left out of a conversation that is too long.
    pub may_drop_turns: bool,
    /// The parameter of the last message that leaves it open.
    pub(crate) open_message: Option<String>,
    /// Variables of the template that change nothing.
    pub ignored: IgnoredParameters,
    /// What the trees of all parameters may still take.
    pub(crate) budget: TreeBudget,
}

impl Conversation {
    /// Whether it is only messages: no tools, documents or variables for the template.
    pub fn is_plain(&self) -> bool {
        self.tools.is_empty() && self.documents.is_empty() && self.chat_template_kwargs.is_empty()
    }

    /// Whether the prompt ends with the beginning of the model's turn.
    pub fn adds_generation_prompt(&self) -> bool {
        self.add_generation_prompt.unwrap_or(!self.continues_final_message())
    }

    /// Whether the last message is left open.
    pub fn continues_final_message(&self) -> bool {
        self.continue_final_message.unwrap_or(false)
    }

    /// Whether the tokenizer adds special tokens to those of the template.
    pub fn adds_special_tokens(&self) -> bool {
        self.add_special_tokens.unwrap_or(false)
    }

    /// Checks what one parameter alone cannot tell. A last message that says so itself is left open.
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

    /// Bytes of all texts in the messages.
    pub fn text_bytes(&self) -> usize {
        self.messages.iter().map(Message::text_bytes).sum()
    }

    /// Values of the trees that a template is given.
    pub fn n_values(&self) -> usize {
        self.budget.n_taken()
    }

    /// Takes the messages out, as the template walks them. A template that knows no role `developer` gets
    /// `system`.
    pub fn take_messages_for_template(&mut self, knows_developer: bool) -> Value {
        let role = |role: Role| match role {
            Role::Developer if !knows_developer => Role::System.as_str(),
            role => role.as_str(),
        };
        let messages = std::mem::take(&mut self.messages);
        messages
            .into_iter()
            .map(|message| {
                let role = role(message.role);
                message.into_template_value(role)
            })
            .collect()
    }

    /// Takes out the variables for the template beside those that the server sets; `defaults` hold where the
    /// request says nothing.
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

    /// Drops the client's variables that the template does not read, and notes their names in
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
