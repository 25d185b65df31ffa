//! Past calls and tools in the form that the model's template takes: with ids that the family reads, and as
//! text if the template does not describe tools. Does not render templates.

use serde_json::Value;
use throng_text::{ChatTemplate, Tokenizer, ToolCallFormat, generic_tools};

use crate::served_model::ModelEntry;
use throng_api::spec::Conversation;

/// Takes the messages and the tools out of the chat, for the template.
pub(super) fn messages_and_tools(
    model: &ModelEntry,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &mut Conversation,
) -> (Value, Value) {
    let mut messages = conversation.take_messages_for_template(template.mentions("developer"));
    let tools = std::mem::take(&mut conversation.tools);
    match model.served.answer_format.tool_calls {
        Some(ToolCallFormat::Generic) => {
            let takes_system = template.takes_system(tokenizer.special_tokens());
            let described = if conversation.calls_no_tools { &[][..] } else { tools.as_slice() };
            (generic_tools::described(messages, described, takes_system), Value::Array(Vec::new()))
        }
        Some(format) => {
            format.make_ids_readable(&mut messages);
            (messages, Value::Array(tools))
        }
        None => (messages, Value::Array(tools)),
    }
}
