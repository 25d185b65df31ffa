//! Rearranges a conversation that a template refused: many accept a single system message, at the start,
//! and alternating turns, while clients send instructions in the middle and several messages of one role in
//! a row. Does not know templates.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::history::calls_of;

/// A conversation in the form for a template.
type Messages<'a> = Vec<Cow<'a, Json>>;

/// Orders to try, the closest to the original first, without orders that equal it.
pub(super) fn alternatives<'a>(messages: &Messages<'a>) -> Vec<Messages<'a>> {
    let gathered = with_system_first(messages);
    let alternating = with_alternating_roles(&gathered);
    let folded = with_system_in_first_user(&alternating);
    let mut orders: Vec<Messages<'a>> = Vec::new();
    for order in [gathered, alternating, folded] {
        if order != *messages && !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// Merges all system messages into one at the start.
fn with_system_first<'a>(messages: &Messages<'a>) -> Messages<'a> {
    let (system, others): (Messages<'a>, Messages<'a>) =
        messages.iter().cloned().partition(|message| is_system(message));
    let mut system = system.into_iter();
    let first = system.next().map(|first| system.fold(first, |one, next| merged(one, &next)));
    first.into_iter().chain(others).collect()
}

/// Merges consecutive messages of one role. Inserts an empty user turn before an assistant turn at the
/// start, and an empty assistant turn between call results and a user turn.
fn with_alternating_roles<'a>(messages: &Messages<'a>) -> Messages<'a> {
    let mut turns: Messages<'a> = Vec::with_capacity(messages.len());
    for message in messages {
        let begins = turns.iter().all(|turn| is_system(turn));
        if begins && message["role"] == "assistant" {
            turns.push(Cow::Owned(json!({"role": "user", "content": ""})));
        }
        if message["role"] == "user" && turns.last().is_some_and(|turn| is_of_call(turn)) {
            turns.push(Cow::Owned(json!({"role": "assistant", "content": ""})));
        }
        match turns.last_mut() {
            Some(last) if is_plain(last) && is_plain(message) && last["role"] == message["role"] => {
                *last = merged(std::mem::take(last), message);
            }
            _ => turns.push(message.clone()),
        }
    }
    turns
}

/// Moves the system message to the start of the first user message.
fn with_system_in_first_user<'a>(messages: &Messages<'a>) -> Messages<'a> {
    let Some((system, others)) = messages.split_first().filter(|(first, _)| is_system(first)) else {
        return messages.clone();
    };
    let mut turns = others.to_vec();
    match turns.iter_mut().find(|turn| turn["role"] == "user") {
        Some(user) => {
            let mut folded = merged(system.clone(), user);
            folded.to_mut()["role"] = json!("user");
            *user = folded;
        }
        None => turns.insert(0, Cow::Owned(json!({"role": "user", "content": system["content"]}))),
    }
    turns
}

fn is_system(message: &Json) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

/// Whether a message has tool calls or the result of one.
fn is_of_call(message: &Json) -> bool {
    message["role"] == "tool" || !calls_of(message).is_empty()
}

/// Whether a message contains only text, so that it can be merged with another one of its role.
fn is_plain(message: &Json) -> bool {
    matches!(message["content"], Json::String(_) | Json::Array(_)) && !is_of_call(message)
}

/// Appends the second message's content to that of the first.
fn merged<'a>(mut first: Cow<'a, Json>, second: &Json) -> Cow<'a, Json> {
    let content = match (&first["content"], &second["content"]) {
        (Json::String(one), Json::String(two)) if one.is_empty() || two.is_empty() => {
            json!(format!("{one}{two}"))
        }
        (Json::String(one), Json::String(two)) => json!(format!("{one}\n\n{two}")),
        (one, two) => Json::Array(parts(one).into_iter().chain(parts(two)).collect()),
    };
    if let Json::Object(members) = first.to_mut() {
        members.insert("content".to_owned(), content);
    }
    first
}

/// Content as a list of parts.
fn parts(content: &Json) -> Vec<Json> {
    match content {
        Json::Array(parts) => parts.clone(),
        Json::String(text) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}
