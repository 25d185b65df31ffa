//! Prepares a conversation for the template: reasoning under all of its field names, text parts as
//! text, and user text with stand-ins for the first characters of control tokens. Does not know the engine.

use std::borrow::Cow;
use std::collections::HashSet;

use minijinja::value::Value;
use serde_json::{Value as Json, json};

use super::long_number::long_number;
use crate::disguise::Disguise;
use crate::exact_number;
use crate::tokenizer::SpecialTokens;

/// The first stand-in, in the private-use planes, which no language uses.
const FIRST_STAND_IN: char = '\u{f0000}';

/// The field names of a message's reasoning; most templates read the first, gpt-oss's the second.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Forms in which a template takes the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// The content is a string.
    Text,
    /// A list of parts.
    Parts,
    /// A string or a list of parts.
    Both,
}

/// Arranges `messages` for a template, except for past calls: see [`super::history`]. Unchanged parts are
/// not copied. Text parts are joined by newlines for a template that takes content as a string, and a string
/// becomes a part for one that takes only parts.
pub(super) fn arranged(messages: &Json, form: ContentForm) -> Vec<Cow<'_, Json>> {
    messages.as_array().into_iter().flatten().map(|message| arranged_message(message, form)).collect()
}

fn arranged_message(message: &Json, form: ContentForm) -> Cow<'_, Json> {
    let mut message = Cow::Borrowed(message);
    let content = message.get("content");
    let changed = match form {
        ContentForm::Text => content.and_then(joined_parts).map(Json::String),
        ContentForm::Parts => {
            content.and_then(Json::as_str).map(|text| json!([{"type": "text", "text": text}]))
        }
        ContentForm::Both => None,
    };
    if let Some(changed) = changed {
        message.to_mut()["content"] = changed;
    }
    message
}

/// The text of a list of text parts; `None` for other values.
fn joined_parts(content: &Json) -> Option<String> {
    let parts = content.as_array()?;
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    Some(texts?.join("\n"))
}

/// The size of a JSON value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) n_values: usize,
    pub(super) n_bytes: usize,
}

/// Adds the size of `value` to `size`, and its private-use characters to `used`.
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

/// Replaces characters of user text that could become part of a control token.
#[derive(Debug)]
pub(super) struct TextGuard<'a> {
    control: &'a [String],
    /// Strings that users may write although they start like a control token.
    free: Vec<&'a str>,
    /// First characters of control tokens, and whether every occurrence is replaced. Letters are replaced
    /// only where they begin the spelling of a control token, because templates compare words.
    firsts: Vec<(char, bool)>,
}

impl<'a> TextGuard<'a> {
    /// Creates a guard. `literals` are the strings in the template's own code, which it may search for in
    /// texts.
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
            text.starts_with(|c| firsts.iter().any(|first| first.0 == c)) && !starts_control(text)
        });
        Self { control, free: free.collect(), firsts }
    }

    /// A stand-in for each first character, none of them in `used`; `None` if too few are unused.
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
                // The long list of control tokens is searched last, so that a text of many `<` is not slow.
                ((always && !is_free()) || spells_control()).then(|| disguise.hide(c)).flatten()
            });
            hidden.push(stand_in.unwrap_or(c));
        }
        hidden
    }

    /// A message for the template, disguised, with its reasoning under all field names.
    pub(super) fn message(&self, message: &Json, disguise: &Disguise) -> Value {
        let value = self.value(message, disguise);
        let reasoning = |name: &&&str| message.get(**name).is_some_and(|value| !value.is_null());
        let Some(name) = REASONING.iter().find(reasoning) else { return value };
        let hidden = |key: &str| value.get_attr(&self.hide(key, disguise)).unwrap_or_default();
        let keys = message.as_object().into_iter().flat_map(|fields| fields.keys());
        let mut pairs: Vec<(String, Value)> =
            keys.map(|key| (self.hide(key, disguise), hidden(key))).collect();
        for alias in ["thinking", "reasoning_content"] {
            let is_set = message.get(alias).is_some_and(|value| alias == "thinking" || !value.is_null());
            if !is_set {
                pairs.retain(|(key, _)| key != alias);
                pairs.push((alias.to_owned(), hidden(name)));
            }
        }
        Value::from_pairs(pairs)
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
            Json::Object(fields) if let Some(number) = exact_number::exact_text(fields) => {
                long_number(number)
            }
            Json::Object(fields) => Value::from_pairs(
                fields.iter().map(|(key, item)| (self.hide(key, disguise), self.value(item, disguise))),
            ),
        }
    }
}
