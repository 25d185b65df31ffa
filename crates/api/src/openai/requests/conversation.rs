//! What a chat template is given, from chat completions and from tokenize alike. Does not know templates.

use serde_json::{Map, Value};

use super::generation_fields::UNSUPPORTED;
use super::generation_values::is_empty;
use super::message::{MAX_MESSAGES, Message, Messages, Role, read_messages};
use super::tools::{MAX_TOOLS, read_tools};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Refused};
use crate::field::{Field, Shape, field};
use crate::ignored::IgnoredParameters;
use crate::json::{MAX_MEMBERS, Node, TreeBudget};

/// Most documents of a request.
const MAX_DOCUMENTS: usize = 1024;

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables of chat templates that only the server sets, or that steer transformers rather than templates;
/// so are all names that end with `_token`.
const RESERVED_VARIABLES: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "chat_template",
    "raise_exception",
    "strftime_now",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "padding",
    "truncation",
    "max_length",
    "tokenizer_kwargs",
    "conversation",
];

/// A conversation with what else its template reads.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// What was said, at least one message where the request has `messages`.
    pub messages: Vec<Message>,
    /// The tools on offer, checked, as trees.
    pub tools: Vec<Value>,
    /// Whether the parameter was given, if only as an empty list.
    pub(super) has_tools_parameter: bool,
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
    /// The client's own variables for the template, none of them reserved.
    pub chat_template_kwargs: Map<String, Value>,
    /// The parameter of the last message that leaves it open.
    open_message: Option<String>,
    /// Variables of the template that change nothing.
    pub ignored: IgnoredParameters,
    /// What the trees of all parameters may still take.
    pub(super) budget: TreeBudget,
}

/// The parameters that make up a conversation.
pub const CONVERSATION_FIELDS: &[Field<Conversation>] = &[
    field(
        "messages",
        Custom(Shape::Array(MAX_MESSAGES, &Shape::Object), |c, node, _| {
            let Messages { messages, open } = read_messages(node, &mut c.budget)?;
            (c.messages, c.open_message) = (messages, open);
            Ok(())
        }),
        "The conversation: role (system, developer, user, assistant, tool) and content (text or text parts).",
    ),
    field(
        "tools",
        Custom(Shape::Array(MAX_TOOLS, &Shape::Object), |c, node, _| {
            c.tools = read_tools(node, &mut c.budget)?;
            c.has_tools_parameter = true;
            Ok(())
        }),
        "Tools that the template describes to the model.",
    ),
    field(
        "documents",
        Custom(Shape::Array(MAX_DOCUMENTS, &Shape::Object), |c, node, _| {
            c.documents = read_documents(node, &mut c.budget)?;
            Ok(())
        }),
        "Documents for templates that know them.",
    ),
    field(
        "add_generation_prompt",
        Boolean(|c| &mut c.add_generation_prompt),
        "End the prompt with the beginning of the model's turn; true unless continue_final_message.",
    ),
    field(
        "continue_final_message",
        Boolean(|c| &mut c.continue_final_message),
        "Leave the last message open, so that the model goes on with it.",
    ),
    field(
        "add_special_tokens",
        Boolean(|c| &mut c.add_special_tokens),
        "Add special tokens to those of the template; false unless said.",
    ),
    field(
        "reasoning_effort",
        Custom(Shape::Choice(EFFORTS), |c, node, _| {
            c.reasoning_effort = Some(EFFORTS[node.one_of(EFFORTS)?]);
            Ok(())
        }),
        "How much to think, for templates that know it.",
    ),
    field(
        "chat_template_kwargs",
        Custom(Shape::Object, |c, node, _| {
            c.chat_template_kwargs = read_variables(node, &mut c.budget)?;
            Ok(())
        }),
        "Variables for the template, such as enable_thinking.",
    ),
    field("chat_template", Refused(Shape::Any, |_| false), UNSUPPORTED),
    field("mm_processor_kwargs", Refused(Shape::Object, is_empty), UNSUPPORTED),
    field("media_io_kwargs", Refused(Shape::Object, is_empty), UNSUPPORTED),
];

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
    pub(super) fn check_together(&mut self) -> Result<(), ApiError> {
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

fn unknown_variable(key: &str) -> ApiError {
    ApiError::unknown_parameter(format!("chat_template_kwargs.{}", crate::error::echo(key)))
}

fn read_documents(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Vec<Value>, ApiError> {
    budget.take_tree(node)?;
    let mut documents = Vec::new();
    node.elements(MAX_DOCUMENTS, |_, document| {
        Shape::Object.check(&document)?;
        documents.push(document.tree()?);
        Ok(())
    })?;
    Ok(documents)
}

fn read_variables(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    Shape::Object.check(node)?;
    budget.take_tree(node)?;
    node.members(MAX_MEMBERS, |key, value| {
        if RESERVED_VARIABLES.contains(&key) || key.ends_with("_token") {
            return Err(unknown_variable(key));
        }
        match variables.insert(key.to_owned(), value.tree()?) {
            Some(_) => Err(ApiError::duplicate_key(value.path())),
            None => Ok(()),
        }
    })?;
    Ok(variables)
}
