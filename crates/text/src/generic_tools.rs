//! Tools for a model whose chat template has none: a text describes them and how to call them, and past
//! calls and their results become text in the format [`crate::ToolCallFormat::Generic`]. Does not know
//! templates.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::exact_number;

const BEFORE: &str = "You can use tools. Each line describes one of them as JSON:\n";

const AFTER: &str = r#"
To use a tool, answer with nothing but a call of this form, with the tool's name and arguments that fit its parameters:
<tool_call>
{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}
</tool_call>
For several tools, write several calls. What a tool says is told to you in the next message, between <tool_response> and </tool_response>. When no tool is needed, answer in plain text."#;

/// The conversation as text alone, with `tools` described in its system message, or at the start of the
/// first user message if the template does not support system messages.
pub fn described(messages: Value, tools: &[Value], takes_system: bool) -> Value {
    let Value::Array(messages) = messages else { return messages };
    let mut said: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    // Whether the last message contains call results; a user message that follows is merged with it.
    let mut is_reply = false;
    for message in messages {
        match message["role"].as_str() {
            Some("tool") => {
                let (before, after) = ("<tool_response>\n".into(), "\n</tool_response>".into());
                let content = joined(&[&before, &message["content"], &after]);
                if is_reply {
                    append(&mut said, &content, "\n");
                } else {
                    said.push(json!({"role": "user", "content": content}));
                }
                is_reply = true;
            }
            Some("user") if is_reply => {
                append(&mut said, &message["content"], "\n\n");
                is_reply = false;
            }
            _ => {
                said.push(with_calls_as_text(message));
                is_reply = false;
            }
        }
    }
    if !tools.is_empty() {
        describe(&mut said, &description(tools), takes_system);
    }
    Value::Array(said)
}

/// Describes the tools to the model.
fn description(tools: &[Value]) -> String {
    let mut text = BEFORE.to_owned();
    for tool in tools {
        let _ = writeln!(text, "{}", exact_number::to_json(&tool["function"]));
    }
    text + AFTER
}

fn describe(messages: &mut Vec<Value>, description: &str, takes_system: bool) {
    let is_system = |message: &Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    let with_space =
        |before: bool| if before { format!("{description}\n\n") } else { format!("\n\n{description}") };
    match messages.first_mut() {
        Some(first) if takes_system && is_system(first) => {
            first["content"] = joined(&[&first["content"], &with_space(false).into()]);
        }
        _ if takes_system => messages.insert(0, json!({"role": "system", "content": description})),
        _ => match messages.iter_mut().find(|message| message["role"] == "user") {
            Some(user) => {
                user["content"] = joined(&[&with_space(true).into(), &user["content"]]);
            }
            None => messages.insert(0, json!({"role": "user", "content": description})),
        },
    }
}

/// Moves a message's calls into its content, as the model wrote them.
fn with_calls_as_text(mut message: Value) -> Value {
    let Some(members) = message.as_object_mut() else { return message };
    let Some(Value::Array(calls)) = members.remove("tool_calls") else { return message };
    let mut text = text_of(members.get("content").unwrap_or(&Value::Null));
    for call in &calls {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) if matches!(text.trim(), "" | "null") => "{}".to_owned(),
            Value::Null => "{}".to_owned(),
            arguments => text_of(arguments),
        };
        let separator = if text.is_empty() { "" } else { "\n" };
        let name = &function["name"];
        let _ = write!(
            text,
            "{separator}<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        );
    }
    members.insert("content".to_owned(), Value::from(text));
    message
}

fn append(messages: &mut [Value], content: &Value, separator: &str) {
    let Some(last) = messages.last_mut() else { return };
    last["content"] = joined(&[&last["content"], &separator.into(), content]);
}

/// Joins contents: a text, or a list of parts if one of them has more than text.
fn joined(contents: &[&Value]) -> Value {
    let has_more = |content: &&Value| {
        content.as_array().is_some_and(|parts| parts.iter().any(|part| part["type"] == "image"))
    };
    if !contents.iter().any(has_more) {
        return contents.iter().map(|content| text_of(content)).collect::<String>().into();
    }
    let parts = contents.iter().flat_map(|content| match content {
        Value::Array(parts) => parts.clone(),
        other => vec![json!({"type": "text", "text": text_of(other)})],
    });
    parts.filter(|part| part["text"] != "").collect()
}

/// The text of a string or of a list of parts; other content as JSON.
fn text_of(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| part["text"].is_string()) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Value> {
        vec![json!({"type": "function", "function": {"name": "now", "description": "Tells the time."}})]
    }

    #[test]
    fn numbers_of_tools_keep_their_digits() {
        let tool = r#"{"function":{"name":"f","parameters":{"enum":[18446744073709551616]}}}"#;
        let tool = exact_number::parse(tool).unwrap();
        let told = described(json!([]), &[tool], true);
        let text = told[0]["content"].as_str().unwrap();
        assert!(text.contains(r#"{"name":"f","parameters":{"enum":[18446744073709551616]}}"#), "{text}");
    }

    #[test]
    fn tools_are_described_and_calls_are_text() {
        let call = |name: &str, arguments: &str| json!({"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "When and where?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call("now", ""), call("here", "{\"a\": [1")]},
            {"role": "tool", "tool_call_id": "1", "content": "noon"},
            {"role": "tool", "tool_call_id": "2", "content": "Rome"},
            {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        ]);
        let told = described(messages.clone(), &tools(), true);
        let roles = |told: &Value| -> Vec<String> {
            told.as_array()
                .unwrap()
                .iter()
                .map(|message| message["role"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(roles(&told), ["system", "user", "assistant", "user"]);
        let text = |idx: usize| told[idx]["content"].as_str().unwrap();
        assert!(
            text(0).contains(r#"{"name":"now","description":"Tells the time."}"#)
                && text(0).ends_with("plain text.")
        );
        assert_eq!(
            text(2),
            "I look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"here\", \"arguments\": {\"a\": [1}\n</tool_call>"
        );
        assert_eq!(
            text(3),
            "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nRome\n</tool_response>\n\nAnd now?"
        );
        assert!(told.as_array().unwrap().iter().all(|message| message.get("tool_calls").is_none()));
        let told = described(messages, &tools(), false);
        assert_eq!(roles(&told), ["user", "assistant", "user"]);
        assert!(told[0]["content"].as_str().unwrap().ends_with("plain text.\n\nWhen and where?"));
    }

    #[test]
    fn a_system_message_goes_on_and_nothing_is_said_without_tools() {
        let messages = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]);
        let told = described(messages.clone(), &tools(), true);
        assert!(told[0]["content"].as_str().unwrap().starts_with("Be kind.\n\nYou can use tools."));
        assert_eq!(described(messages.clone(), &[], true), messages);
        assert_eq!(described(json!([]), &tools(), false)[0]["role"], "user");
    }

    #[test]
    fn images_stay_parts_beside_the_described_tools() {
        let image = json!({"type": "image"});
        let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
        let messages = json!([
            {"role": "user", "content": [image, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [image]},
        ]);
        let tools = [json!({"type": "function", "function": {"name": "look"}})];
        let told = described(messages, &tools, false);
        let parts = |idx: usize| told[idx]["content"].as_array().expect("parts");
        assert_eq!(parts(0)[1..], [image.clone(), json!({"type": "text", "text": "What?"})]);
        assert!(parts(0)[0]["text"].as_str().expect("text").starts_with("You can use tools."));
        assert_eq!(parts(2)[1], image);
        assert_eq!((parts(2).len(), &parts(2)[0]["text"]), (3, &json!("<tool_response>\n")));
    }
}
