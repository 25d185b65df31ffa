//! Converts items to the messages that a chat template reads. Items are stored; messages are made anew for
//! each request.

mod chain;

use std::collections::{HashMap, VecDeque};

use super::item::{Author, Content, Ids, Item, Output, decode_opaque};
use super::mcp_tool::model_name;
use crate::error::{ApiError, echo};
use crate::image_source::{detail_of, of_data_url};
use crate::spec::{ContentPart, ImagePart, ImageSource, MAX_MESSAGES, Message, Role, ToolCall};

pub use self::chain::History;

/// Introduction of a summary in the place of older items.
const SUMMARY: &str = "A summary of the conversation so far:\n\n";

/// Converts items to messages. Items of one turn of the model become one message, followed by the result of
/// each call, whatever its place among the items.
///
/// # Errors
/// `invalid_value` for a call without result and a result without call; `array_above_max_length`.
pub(super) fn messages_of<'a>(
    items: impl Iterator<Item = &'a Item> + Clone,
) -> Result<Vec<Message>, ApiError> {
    let (outputs, decisions) = (outputs_of(items.clone()), decisions_of(items.clone()));
    let mut turns = Turns { outputs, decisions, ..Turns::default() };
    for item in items {
        turns.add(item)?;
        if turns.messages.len() > MAX_MESSAGES {
            return Err(ApiError::array_above_max_length("input", MAX_MESSAGES));
        }
    }
    turns.flush()?;
    match turns.outputs.into_iter().filter(|(_, left)| !left.is_empty()).map(|(id, _)| id).min() {
        None => Ok(turns.messages),
        Some(call_id) => {
            let reason =
                format!("No tool call found for function call output with call_id {}.", echo(&call_id));
            Err(ApiError::invalid_value("input", reason))
        }
    }
}

/// The results of calls that have the same id, in order: some models use their ids again in each turn.
type Outputs = HashMap<String, VecDeque<Vec<ContentPart>>>;

fn outputs_of<'a>(items: impl Iterator<Item = &'a Item>) -> Outputs {
    let mut outputs = Outputs::new();
    for item in items {
        let (Item::FunctionCallOutput(result) | Item::CustomToolCallOutput(result)) = item else { continue };
        let parts = match &result.output {
            Output::Text(text) => vec![ContentPart::Text(text.clone())],
            Output::Parts(parts) => parts.iter().map(part_of).collect(),
        };
        outputs.entry(result.call_id.clone()).or_default().push_back(parts);
    }
    outputs
}

/// Results of calls that waited for approval, by the ids of their approval requests.
type Decisions = HashMap<String, String>;

fn decisions_of<'a>(items: impl Iterator<Item = &'a Item> + Clone) -> Decisions {
    const WAITS: &str = "The user has not approved this call.";
    let requests = items.clone().filter_map(|item| match item {
        Item::McpApprovalRequest(request) => Some((request.id.clone(), WAITS.to_owned())),
        _ => None,
    });
    let mut decisions: Decisions = requests.collect();
    for item in items {
        let (id, told) = match item {
            Item::McpApprovalResponse(response) if !response.approve => {
                let reason = response.reason.as_deref().map(|reason| format!(" Reason: {reason}"));
                let told = format!("The user denied this call.{}", reason.unwrap_or_default());
                (&response.approval_request_id, told)
            }
            Item::McpCall(call) => match &call.approval_request_id {
                Some(id) => (id, call.told()),
                None => continue,
            },
            _ => continue,
        };
        if let Some(decision) = decisions.get_mut(id) {
            *decision = told;
        }
    }
    decisions
}

fn part_of(content: &Content) -> ContentPart {
    let Content::InputImage { image_url, detail, origin } = content else {
        return ContentPart::Text(content.text().to_owned());
    };
    // It was read from a request, so that its URL is valid.
    let source = of_data_url(image_url, String::new).unwrap_or_else(|_| ImageSource::Url(image_url.clone()));
    let detail = detail.as_deref().and_then(detail_of);
    let param = if origin.0.is_empty() { "input" } else { &origin.0 }.to_owned();
    ContentPart::Image(Box::new(ImagePart { source, detail, param }))
}

/// Messages so far, and the model's unfinished turn.
#[derive(Debug, Default)]
struct Turns {
    messages: Vec<Message>,
    open: Option<Message>,
    outputs: Outputs,
    decisions: Decisions,
    /// Turn of its response whose calls the server ran, if the open message has such calls.
    served_turn: Option<u32>,
    /// Calls so far that the server ran.
    n_served: usize,
}

impl Turns {
    fn add(&mut self, item: &Item) -> Result<(), ApiError> {
        let turn = Ids::turn_of(item.id());
        let is_call = matches!(
            item,
            Item::FunctionCall(_) | Item::CustomToolCall(_) | Item::McpCall(_) | Item::McpApprovalRequest(_)
        );
        // The results of the server's own calls are no items behind which another turn would begin.
        if self.served_turn.is_some_and(|served| served != turn || !is_call) {
            self.flush()?;
        }
        match item {
            Item::Message(message) if message.role == Author::Assistant => self.say(&message.content),
            Item::Message(message) => {
                let role = match message.role {
                    Author::System => Role::System,
                    Author::Developer => Role::Developer,
                    Author::User | Author::Assistant => Role::User,
                };
                self.flush()?;
                self.messages.push(Message::new(role, message.content.iter().map(part_of).collect()));
                Ok(())
            }
            Item::Reasoning(reasoning) => {
                let text = reasoning.text();
                if self
                    .open
                    .as_ref()
                    .is_some_and(|open| open.content.is_some() || !open.tool_calls.is_empty())
                {
                    self.flush()?;
                }
                match &mut self.open().reasoning {
                    _ if text.is_empty() => {}
                    Some(before) => {
                        before.push('\n');
                        before.push_str(&text);
                    }
                    none => *none = Some(text),
                }
                Ok(())
            }
            Item::FunctionCall(call) => self.call(&call.call_id, &call.name, call.arguments.clone()),
            Item::CustomToolCall(call) => {
                let arguments = serde_json::json!({"input": call.input}).to_string();
                self.call(&call.call_id, &call.name, arguments)
            }
            Item::McpListTools(_) => Ok(()),
            // Its approval request became the call and has its result.
            Item::McpCall(call)
                if call.approval_request_id.as_ref().is_some_and(|id| self.decisions.contains_key(id)) =>
            {
                self.flush()
            }
            Item::McpCall(call) => {
                let told = call.told();
                self.served_call(turn, &call.server_label, &call.name, call.arguments.clone(), told)
            }
            Item::McpApprovalRequest(call) => {
                let told = self.decisions.get(&call.id).cloned().unwrap_or_default();
                self.served_call(turn, &call.server_label, &call.name, call.arguments.clone(), told)
            }
            Item::McpApprovalResponse(_) => self.flush(),
            // A result ends the turn that called; it was placed when that turn was.
            Item::FunctionCallOutput(_) | Item::CustomToolCallOutput(_) => self.flush(),
            Item::Compaction(compaction) => {
                self.flush()?;
                let Some(summary) = decode_opaque(&compaction.encrypted_content) else {
                    let reason = "The 'encrypted_content' of a compaction was not made by this server.";
                    return Err(ApiError::invalid_value("input", reason));
                };
                let text = ContentPart::Text(format!("{SUMMARY}{summary}"));
                self.messages.push(Message::new(Role::User, vec![text]));
                Ok(())
            }
        }
    }

    fn open(&mut self) -> &mut Message {
        let empty = || Message { content: None, ..Message::new(Role::Assistant, Vec::new()) };
        self.open.get_or_insert_with(empty)
    }

    /// Adds text of the model: text after calls belongs to the same answer; other text starts a new answer.
    fn say(&mut self, content: &[Content]) -> Result<(), ApiError> {
        let is_rest = self.open.as_ref().is_some_and(|open| !open.tool_calls.is_empty());
        if !is_rest && self.open.as_ref().is_some_and(|open| open.content.is_some()) {
            self.flush()?;
        }
        let mut text: String = content.iter().map(Content::text).collect();
        let open = self.open();
        if let Some([ContentPart::Text(before)]) = open.content.as_deref() {
            text.insert_str(0, before);
        }
        open.content = Some(vec![ContentPart::Text(text)]);
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: String) -> Result<(), ApiError> {
        let open = self.open();
        if open.tool_calls.iter().any(|call| call.id == id) {
            let reason = format!("Two tool calls have the call_id {}.", echo(id));
            return Err(ApiError::invalid_value("input", reason));
        }
        open.tool_calls.push(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments });
        Ok(())
    }

    /// A call that the server runs. Its id is its number, so that later turns have the same prompt.
    fn served_call(
        &mut self,
        turn: u32,
        server_label: &str,
        name: &str,
        arguments: String,
        told: String,
    ) -> Result<(), ApiError> {
        let id = format!("call_served_{}", self.n_served);
        (self.n_served, self.served_turn) = (self.n_served + 1, Some(turn));
        self.outputs.entry(id.clone()).or_default().push_back(vec![ContentPart::Text(told)]);
        self.call(&id, &model_name(server_label, name), arguments)
    }

    /// Ends the turn of the model: its message, then the result of each of its calls.
    fn flush(&mut self) -> Result<(), ApiError> {
        self.served_turn = None;
        let Some(message) = self.open.take() else { return Ok(()) };
        let mut results = Vec::new();
        for call in &message.tool_calls {
            let Some(content) = self.outputs.get_mut(&call.id).and_then(VecDeque::pop_front) else {
                let reason = format!("No tool output found for function call {}.", echo(&call.id));
                return Err(ApiError::invalid_value("input", reason));
            };
            results
                .push(Message { tool_call_id: Some(call.id.clone()), ..Message::new(Role::Tool, content) });
        }
        if message.content.is_some() || message.reasoning.is_some() || !message.tool_calls.is_empty() {
            self.messages.push(message);
        }
        self.messages.extend(results);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn messages(items: Value) -> Result<Vec<Message>, ApiError> {
        let items: Vec<Item> = serde_json::from_value(items).expect("items");
        messages_of(items.iter())
    }

    fn said(role: &str, text: &str) -> Value {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        json!({"type": "message", "id": "m", "status": "completed", "role": role, "content": [{"type": kind, "text": text}]})
    }

    fn call(id: &str) -> Value {
        json!({"type": "function_call", "id": "f", "call_id": id, "name": "now", "arguments": "{}", "status": "completed"})
    }

    fn output(id: &str) -> Value {
        json!({"type": "function_call_output", "id": "o", "call_id": id, "output": "noon", "status": "completed"})
    }

    #[test]
    fn the_items_of_a_turn_are_one_message() {
        let thought = json!({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
        let found = messages(json!([
            said("user", "?"),
            thought,
            said("assistant", "let me see"),
            call("a"),
            call("b"),
            output("b"),
            output("a"),
            said("assistant", "noon"),
            said("user", "thanks")
        ]));
        let found = found.expect("messages");
        let roles: Vec<_> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "user"]);
        assert_eq!((found[1].reasoning.as_deref(), found[1].tool_calls.len()), (Some("hm"), 2));
        assert_eq!(found[1].text().as_deref(), Some("let me see"));
        assert_eq!(found[2].tool_call_id.as_deref(), Some("a"));
    }

    #[test]
    fn results_follow_their_calls_wherever_they_stand() {
        let found = messages(json!([call("a"), said("user", "wait"), output("a")])).expect("messages");
        let roles: Vec<_> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["assistant", "tool", "user"]);
    }

    fn served(id: &str, output: &str) -> Value {
        json!({"type": "mcp_call", "id": id, "server_label": "web", "name": "get", "arguments": "{}",
               "output": output, "status": "completed"})
    }

    #[test]
    fn turns_of_one_response_are_told_apart_where_the_server_ran_the_calls() {
        let own = "0".repeat(32);
        let found = messages(json!([
            said("user", "?"),
            served(&format!("mcp_{own}b0000"), "a"),
            served(&format!("mcp_{own}b0001"), "b"),
            served(&format!("mcp_{own}b0002t1"), "c"),
            said("assistant", "done"),
        ]));
        let found = found.expect("messages");
        let roles: Vec<_> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]);
        assert_eq!(found[1].tool_calls[0].name, "web__get");
        assert_eq!(found[5].text().as_deref(), Some("c"));
    }

    #[test]
    fn a_call_that_was_approved_has_its_result_and_one_that_was_not_has_the_reason() {
        let request = |id: &str| json!({"type": "mcp_approval_request", "id": id, "server_label": "web", "name": "get", "arguments": "{}"});
        let answer = |id: &str, approve: bool| {
            json!({"type": "mcp_approval_response", "id": "", "approval_request_id": id, "approve": approve,
                   "reason": "no"})
        };
        let mut approved = served("mcp_1", "rain");
        approved["approval_request_id"] = "a".into();
        let items = json!([
            said("user", "?"),
            request("a"),
            request("b"),
            answer("a", true),
            answer("b", false),
            approved
        ]);
        let found = messages(items).expect("messages");
        let roles: Vec<_> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
        assert_eq!(found[2].text().as_deref(), Some("rain"));
        assert_eq!(found[3].text().as_deref(), Some("The user denied this call. Reason: no"));
        let found =
            messages(json!([said("user", "?"), request("a"), said("user", "never mind")])).expect("messages");
        assert_eq!(found[2].text().as_deref(), Some("The user has not approved this call."));
    }

    #[test]
    fn calls_and_results_must_match() {
        for (items, words) in [
            (json!([call("a")]), "No tool output found for function call a."),
            (json!([output("a")]), "No tool call found for function call output with call_id a."),
            (
                json!([call("a"), output("a"), output("a")]),
                "No tool call found for function call output with call_id a.",
            ),
        ] {
            assert_eq!(messages(items).expect_err(words).message(), words);
        }
    }
}
