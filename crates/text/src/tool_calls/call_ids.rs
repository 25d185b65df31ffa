//! Ids of tool calls: some models only understand ids of their own form, and generate them too. Does not
//! know the formats of calls.

use std::collections::HashMap;

use serde_json::Value;

use super::ToolCallFormat;

/// Form of ids that a family understands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum IdForm {
    /// Ids are not shown to the model.
    #[default]
    Any,
    /// Nine letters and digits.
    Short,
    /// `functions.NAME:IDX`, numbered through the conversation.
    Numbered,
}

const SHORT_LEN: usize = 9;

impl IdForm {
    fn of(format: ToolCallFormat) -> Self {
        match format {
            ToolCallFormat::Mistral => Self::Short,
            ToolCallFormat::KimiK2 => Self::Numbered,
            _ => Self::Any,
        }
    }

    /// Whether the family understands this id for a call of this tool.
    fn fits(self, id: &str, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Short => id.len() == SHORT_LEN && id.bytes().all(|b| b.is_ascii_alphanumeric()),
            Self::Numbered => id
                .strip_prefix("functions.")
                .and_then(|id| id.strip_prefix(name))
                .and_then(|id| id.strip_prefix(':'))
                .is_some_and(|idx| !idx.is_empty() && idx.bytes().all(|b| b.is_ascii_digit())),
        }
    }

    /// Creates an id of this form for a call with this index, which is not in `used`; always the same one
    /// for the same `id`.
    fn made(self, id: &str, name: &str, idx: usize, used: &[String]) -> String {
        let made = |attempt: usize| match self {
            Self::Numbered => format!("functions.{name}:{}", idx + attempt),
            _ => short(&format!("{id} {attempt}")),
        };
        let is_free = |id: &String| !used.contains(id);
        (0..=used.len()).map(made).find(is_free).unwrap_or_default()
    }
}

impl ToolCallFormat {
    /// Whether models with this format only understand ids of nine letters and digits.
    pub fn has_short_ids(self) -> bool {
        IdForm::of(self) == IdForm::Short
    }
}

/// Nine letters and digits derived from a text: its FNV-1a hash.
fn short(text: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let digit = |_| {
        let digit = DIGITS[(hash % 62) as usize];
        hash /= 62;
        char::from(digit)
    };
    (0..SHORT_LEN).map(digit).collect()
}

/// Assigns ids to the calls of one answer, if the family has a form of its own.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    form: IdForm,
    /// Number of calls in the conversation so far.
    n_past: usize,
    used: Vec<String>,
}

impl CallIds {
    /// Creates the ids for an answer in this format after `n_past` calls.
    pub(crate) fn new(format: Option<ToolCallFormat>, n_past: usize) -> Self {
        Self { form: format.map(IdForm::of).unwrap_or_default(), n_past, used: Vec::new() }
    }

    /// The id of the next call: the generated one if it is valid; `None` if any id is acceptable.
    pub(super) fn next(&mut self, name: &str, written: Option<&str>) -> Option<String> {
        let fits = |id: &&str| self.form.fits(id, name) && !self.used.iter().any(|used| used == id);
        let id = match (self.form, written.filter(fits)) {
            (IdForm::Any, _) => None,
            (_, Some(id)) => Some(id.to_owned()),
            (IdForm::Short, None) => None,
            (IdForm::Numbered, None) => {
                Some(self.form.made("", name, self.n_past + self.used.len(), &self.used))
            }
        };
        self.used.extend(id.clone());
        id
    }
}

impl ToolCallFormat {
    /// Replaces ids from other models by ids that the family understands, in calls and their results.
    /// `messages` are in the form of OpenAI's API.
    pub fn make_ids_readable(self, messages: &mut Value) {
        let form = IdForm::of(self);
        if form == IdForm::Any {
            return;
        }
        let mut n_calls = 0;
        let mut renamed: HashMap<String, String> = HashMap::new();
        for message in messages.as_array_mut().into_iter().flatten() {
            if let Some(Value::String(id)) = message.get_mut("tool_call_id")
                && let Some(made) = renamed.get(id)
            {
                id.clone_from(made);
            }
            let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { continue };
            renamed.clear();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut used: Vec<String> = calls.iter().map(|call| text(&call["id"])).collect();
            for (idx, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.is_object()) {
                let (id, name) = (text(&call["id"]), text(&call["function"]["name"]));
                if !form.fits(&id, &name) {
                    let made = form.made(&id, &name, n_calls + idx, &used);
                    call["id"] = Value::from(made.clone());
                    used.push(made.clone());
                    renamed.insert(id, made);
                }
            }
            n_calls += calls.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_of_other_models_are_made_readable_and_the_models_own_stay() {
        let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
        let reply = |id: &str| json!({"role": "tool", "tool_call_id": id});
        let sent = json!([
            {"role": "assistant", "tool_calls": [call("functions.f:0"), call("call_1"), call("toolu_2")]},
            reply("call_1"), reply("functions.f:0"), reply("toolu_2"),
            {"role": "assistant", "tool_calls": [call("call_1")]}, reply("call_1"),
        ]);
        let mut kimi = sent.clone();
        ToolCallFormat::KimiK2.make_ids_readable(&mut kimi);
        let ids = |messages: &Value| -> Vec<String> {
            let ids = messages.as_array().unwrap().iter().flat_map(|message| {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                calls
                    .iter()
                    .map(|call| call["id"].clone())
                    .chain(message.get("tool_call_id").cloned())
                    .collect::<Vec<_>>()
            });
            ids.map(|id| id.as_str().unwrap().to_owned()).collect()
        };
        let f = |idx: usize| format!("functions.f:{idx}");
        assert_eq!(ids(&kimi), [f(0), f(1), f(2), f(1), f(0), f(2), f(3), f(3)]);
        let mut mistral = sent.clone();
        ToolCallFormat::Mistral.make_ids_readable(&mut mistral);
        let mistral = ids(&mistral);
        assert!(mistral.iter().all(|id| IdForm::Short.fits(id, "f")), "{mistral:?}");
        assert_eq!((&mistral[1], &mistral[0], &mistral[2]), (&mistral[3], &mistral[4], &mistral[5]));
        assert!(mistral[0] != mistral[1] && mistral[1] != mistral[2]);
        let mut hermes = sent.clone();
        ToolCallFormat::Hermes.make_ids_readable(&mut hermes);
        assert_eq!(hermes, sent);
    }

    #[test]
    fn the_ids_of_an_answer_are_the_models_or_go_on_counting() {
        let mut ids = CallIds::new(Some(ToolCallFormat::KimiK2), 3);
        let f = |idx: usize| Some(format!("functions.f:{idx}"));
        assert_eq!(ids.next("f", Some("functions.f:7")), f(7));
        assert_eq!(ids.next("f", Some("functions.f:7")), f(4));
        assert_eq!(ids.next("f", Some("functions.g:1")), f(5));
        assert_eq!(ids.next("f", None), f(6));
        let mut ids = CallIds::new(Some(ToolCallFormat::Mistral), 0);
        assert_eq!(ids.next("f", Some("a1B2c3D4e")).as_deref(), Some("a1B2c3D4e"));
        assert_eq!((ids.next("f", Some("a1B2c3D4e")), ids.next("f", Some("short"))), (None, None));
        assert_eq!(CallIds::new(Some(ToolCallFormat::Hermes), 0).next("f", Some("x")), None);
    }
}
