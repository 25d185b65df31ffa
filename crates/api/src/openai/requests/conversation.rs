//! The parameters of a conversation, shared by chat completions and tokenize.

use serde_json::{Map, Value};

use super::generation_fields::UNSUPPORTED;
use super::generation_values::is_empty;
use super::message::{Messages, read_messages};
use super::tools::read_tools;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Refused};
use crate::field::{Field, Shape, field};
use crate::json::{MAX_MEMBERS, Node, TreeBudget};
use crate::spec::{Conversation, MAX_MESSAGES, MAX_TOOLS};

/// Maximum number of documents of a request.
const MAX_DOCUMENTS: usize = 1024;

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Chat template variables that only the server sets, or that configure transformers instead of the
/// template. All names that end with `_token` are reserved too.
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

/// The parameters that make up a conversation.
pub const CONVERSATION_FIELDS: &[Field<Conversation>] = &[
    field(
        "messages",
        Custom(Shape::Array(MAX_MESSAGES, &Shape::Object), |c, node, _| {
            let Messages { messages, open, cache_points } = read_messages(node, &mut c.budget)?;
            (c.messages, c.open_message, c.cache_points) = (messages, open, cache_points);
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
