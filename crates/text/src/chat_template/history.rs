//! Past tool calls in the form that a template supports. Probes the template for the form: arguments as
//! text, as any JSON or as an object only; one call of a message or several; content and reasoning beside a
//! call. Does not know the formats of calls.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

use super::partial_json;
use crate::exact_number;

/// Form in which a template supports past calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HistoryForm {
    arguments: ArgumentForm,
    /// Whether it shows only the first of several calls in a message, or refuses several.
    takes_one_call: bool,
    /// Whether it refuses a message with a call that has both content and reasoning.
    merges_reasoning: bool,
}

/// Form of a call's arguments in a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentForm {
    /// The argument is text and printed as it is.
    Text,
    /// Any value, written as JSON.
    Json,
    /// An object, whose members it walks.
    Object,
    /// Unknown: the template does not show calls of an ordinary conversation.
    Unknown,
}

const NAMES: [&str; 2] = ["first_probe", "second_probe"];
const IDS: [&str; 2] = ["probe0001", "probe0002"];

impl HistoryForm {
    /// Probes a template with `shown`, which renders messages; `None`: the template refuses them.
    pub(super) fn probed(shown: impl Fn(&Json) -> Option<String>) -> Self {
        let prints =
            |messages: &Json, text: &str| shown(messages).is_some_and(|prompt| prompt.contains(text));
        // No template writes JSON with two spaces.
        let text = r#"{"throng":  "probe"}"#;
        let (list, object) = (json!(["throng probe"]), json!({"throng": "throng probe"}));
        let (arguments, value) = if prints(&conversation(1, &json!(text)), text) {
            (ArgumentForm::Text, json!(text))
        } else if prints(&conversation(1, &list), "throng probe") {
            (ArgumentForm::Json, object)
        } else if prints(&conversation(1, &object), "throng probe") {
            (ArgumentForm::Object, object)
        } else {
            let arguments = ArgumentForm::Unknown;
            return Self { arguments, takes_one_call: false, merges_reasoning: false };
        };
        let two = shown(&conversation(2, &value)).unwrap_or_default();
        let takes_one_call =
            prints(&conversation(1, &value), NAMES[0]) && !NAMES.iter().all(|name| two.contains(name));
        let mut with_both = conversation(1, &value);
        with_both[1]["content"] = json!("said");
        let takes_content = shown(&with_both).is_some();
        for name in super::conversation::REASONING {
            with_both[1][name] = json!("thought");
        }
        Self { arguments, takes_one_call, merges_reasoning: takes_content && shown(&with_both).is_none() }
    }

    /// Rewrites messages to this form.
    pub(super) fn arrange(self, messages: &mut Vec<Cow<'_, Json>>) {
        for message in messages.iter_mut() {
            let n_calls = calls_of(message).len();
            for idx in 0..n_calls {
                let arguments = message["tool_calls"][idx]["function"]["arguments"].as_str();
                if let Some(arguments) = arguments.and_then(|text| self.arguments(text)) {
                    message.to_mut()["tool_calls"][idx]["function"]["arguments"] = arguments;
                }
            }
            if self.merges_reasoning && n_calls > 0 {
                merge_reasoning(message);
            }
        }
        if self.takes_one_call && messages.iter().any(|message| calls_of(message).len() > 1) {
            *messages = with_one_call_each(std::mem::take(messages));
        }
    }

    /// Parses arguments, which are text in OpenAI's API. `None`: they are not valid JSON, because the
    /// answer was truncated or the model made a mistake, and stay text.
    fn arguments(self, text: &str) -> Option<Json> {
        let word = text.trim();
        let parsed = || exact_number::parse(word).ok();
        let object = || parsed().filter(Json::is_object);
        let is_absent = matches!(word, "" | "null");
        match self.arguments {
            ArgumentForm::Unknown => object(),
            ArgumentForm::Text => is_absent.then(|| json!("{}")),
            _ if is_absent => Some(json!({})),
            ArgumentForm::Json => parsed().or_else(|| partial_json::closed(word)),
            ArgumentForm::Object => object()
                .or_else(|| partial_json::closed(word).filter(Json::is_object))
                .or_else(|| Some(json!({"arguments": text}))),
        }
    }
}

/// The calls of a message.
pub(super) fn calls_of(message: &Json) -> &[Json] {
    message.get("tool_calls").and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// A conversation with `n_calls` calls with these arguments, and their results.
fn conversation(n_calls: usize, arguments: &Json) -> Json {
    let call = |idx: usize| {
        let function = json!({"name": NAMES[idx], "arguments": arguments});
        json!({"id": IDS[idx], "type": "function", "function": function})
    };
    let calls: Vec<Json> = (0..n_calls).map(call).collect();
    let mut messages = vec![
        json!({"role": "user", "content": "ask"}),
        json!({"role": "assistant", "content": "", "tool_calls": calls}),
    ];
    let reply = |id: &&str| json!({"role": "tool", "tool_call_id": id, "content": "reply"});
    messages.extend(IDS[..n_calls].iter().map(reply));
    Json::Array(messages)
}

/// Appends the content of a message with calls to its reasoning.
fn merge_reasoning(message: &mut Cow<'_, Json>) {
    let text = |key: &str| message.get(key).and_then(Json::as_str).filter(|text| !text.is_empty());
    let names = super::conversation::REASONING;
    let Some(reasoning) = names.iter().find_map(|name| text(name)) else { return };
    let Some(content) = text("content") else { return };
    let merged = format!("{reasoning}\n\n{content}");
    let Json::Object(members) = message.to_mut() else { return };
    members.insert("content".to_owned(), json!(""));
    for name in names {
        if let Some(value @ Json::String(_)) = members.get_mut(name) {
            *value = json!(merged);
        }
    }
}

/// Splits a message with several calls into one for each call, followed by its result.
fn with_one_call_each(messages: Vec<Cow<'_, Json>>) -> Vec<Cow<'_, Json>> {
    let mut arranged = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(message) = messages.next() {
        if calls_of(&message).len() < 2 {
            arranged.push(message);
            continue;
        }
        let mut replies = Vec::new();
        while let Some(reply) = messages.next_if(|message| message["role"] == "tool") {
            replies.push(reply);
        }
        for (idx, call) in calls_of(&message).iter().enumerate() {
            // The first message keeps the content and the reasoning.
            let mut one = match idx {
                0 => message.as_object().cloned().unwrap_or_default(),
                _ => Map::from_iter([
                    ("role".to_owned(), json!("assistant")),
                    ("content".to_owned(), json!("")),
                ]),
            };
            one.insert("tool_calls".to_owned(), json!([call]));
            arranged.push(Cow::Owned(Json::Object(one)));
            let is_reply = |reply: &Cow<'_, Json>| reply["tool_call_id"] == call["id"];
            if let Some(at) = replies.iter().position(is_reply) {
                arranged.push(replies.remove(at));
            }
        }
        arranged.extend(replies);
    }
    arranged
}
