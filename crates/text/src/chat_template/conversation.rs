//! A conversation as the template sees it: reasoning under every name it goes by, tool arguments as values, text
//! parts as text, and user text disguised wherever it could spell a control token. Refuses to know the engine.

use std::collections::HashSet;

use minijinja::value::Value;
use serde_json::Value as Json;

use crate::disguise::Disguise;
use crate::tokenizer::SpecialTokens;

/// Stand-ins come from here on: the private planes, which no text in any language uses.
const FIRST_STAND_IN: char = '\u{f0000}';

/// The names a message's reasoning goes by; templates read the first, gpt-oss's the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// `messages` rearranged as vLLM and transformers do before a template sees them. Text parts are joined by
/// newlines for a template that takes content as a string.
pub(super) fn arranged(messages: &Json, takes_parts: bool) -> Json {
    let Json::Array(messages) = messages else { return messages.clone() };
    let arrange = |message: &Json| {
        let mut message = message.clone();
        if let Json::Object(fields) = &mut message {
            let reasoning =
                REASONING.iter().filter_map(|name| fields.get(*name)).find(|value| !value.is_null());
            if let Some(reasoning) = reasoning.cloned() {
                fields.entry("thinking").or_insert(reasoning.clone());
                fields.insert("reasoning_content".to_owned(), reasoning);
            }
            if !takes_parts && let Some(text) = fields.get("content").and_then(joined_parts) {
                fields.insert("content".to_owned(), Json::String(text));
            }
            if let Some(Json::Array(calls)) = fields.get_mut("tool_calls") {
                calls.iter_mut().for_each(parse_arguments);
            }
        }
        message
    };
    Json::Array(messages.iter().map(arrange).collect())
}

/// The text of a list of text parts; `None` for anything else.
fn joined_parts(content: &Json) -> Option<String> {
    let parts = content.as_array()?;
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    Some(texts?.join("\n"))
}

/// OpenAI's API has arguments as a string of JSON, templates want the object.
fn parse_arguments(call: &mut Json) {
    if let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
        && let Some(text) = arguments.as_str()
        && let Ok(parsed @ Json::Object(_)) = serde_json::from_str(text)
    {
        *arguments = parsed;
    }
}

/// How much a JSON value holds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) n_values: usize,
    pub(super) n_bytes: usize,
}

/// Adds what `value` holds to `size`, and the private characters in it to `used`.
pub(super) fn survey(value: &Json, size: &mut Size, used: &mut HashSet<char>) {
    size.n_values += 1;
    let mut text = |text: &str| {
        size.n_bytes += text.len();
        used.extend(private_chars(text));
    };
    match value {
        Json::String(string) => text(string),
        Json::Array(items) => items.iter().for_each(|item| survey(item, size, used)),
        Json::Object(fields) => {
            fields.keys().for_each(|key| text(key));
            fields.values().for_each(|item| survey(item, size, used));
        }
        _ => {}
    }
}

/// The characters of `text` that could be mistaken for stand-ins.
pub(super) fn private_chars(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| *c >= FIRST_STAND_IN)
}

/// Hides in user text what could become part of a control token.
#[derive(Debug)]
pub(super) struct TextGuard<'a> {
    control: &'a [String],
    /// Spellings anyone may write although they start like a control token.
    free: Vec<&'a str>,
    /// First characters of control tokens, and whether they are hidden wherever they stand. Letters are hidden
    /// only where a control token is spelled out: templates compare words.
    firsts: Vec<(char, bool)>,
}

impl<'a> TextGuard<'a> {
    /// `literals` are the strings in the template's own code, which it looks for in texts.
    pub(super) fn new(tokens: &'a SpecialTokens, literals: &'a [String]) -> Self {
        let control = tokens.control.as_slice();
        let mut firsts: Vec<(char, bool)> = Vec::new();
        for c in control.iter().filter_map(|text| text.chars().next()) {
            if firsts.iter().all(|first| first.0 != c) {
                firsts.push((c, !c.is_alphanumeric() && !c.is_whitespace()));
            }
        }
        let starts_control = |text: &str| control.iter().any(|control| control.starts_with(text));
        let free = tokens.plain_added.iter().chain(literals).map(String::as_str);
        let free = free.filter(|text| {
            !starts_control(text) && text.starts_with(|c| firsts.iter().any(|first| first.0 == c))
        });
        Self { control, free: free.collect(), firsts }
    }

    /// A stand-in for each first character, none of them in `used`; `None` if there are not enough left.
    pub(super) fn disguise(&self, used: &HashSet<char>) -> Option<(Disguise, char)> {
        let mut unused = (FIRST_STAND_IN..=char::MAX).filter(|c| !used.contains(c));
        let pairs =
            self.firsts.iter().map(|&(first, _)| Some((first, unused.next()?))).collect::<Option<_>>()?;
        Some((Disguise::new(pairs), unused.next()?))
    }

    fn hide(&self, text: &str, disguise: &Disguise) -> String {
        let mut hidden = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let first = self.firsts.iter().find(|first| first.0 == c);
            let stand_in = first.and_then(|&(_, always)| {
                let rest = &text[at..];
                let spells_control = || self.control.iter().any(|control| rest.starts_with(control.as_str()));
                let is_free = || self.free.iter().any(|free| rest.starts_with(free));
                // The long list of control tokens is asked last: a text of nothing but `<` must not be slow.
                ((always && !is_free()) || spells_control()).then(|| disguise.hide(c)).flatten()
            });
            hidden.push(stand_in.unwrap_or(c));
        }
        hidden
    }

    /// `value` for the template, disguised.
    pub(super) fn value(&self, value: &Json, disguise: &Disguise) -> Value {
        match value {
            Json::Null => Value::from(()),
            Json::Bool(bool) => Value::from(*bool),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::from(number),
                (None, Some(number)) => Value::from(number),
                (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::from(self.hide(text, disguise)),
            Json::Array(items) => {
                Value::from(items.iter().map(|item| self.value(item, disguise)).collect::<Vec<_>>())
            }
            Json::Object(fields) => Value::from_pairs(
                fields.iter().map(|(key, item)| (self.hide(key, disguise), self.value(item, disguise))),
            ),
        }
    }
}
