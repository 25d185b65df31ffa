//! The objects of answers and of lists of models.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

/// A line of an answer, or a whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    pub model: &'a str,
    pub created_at: &'a str,
    #[serde(flatten)]
    pub said: Said<'a>,
    pub done: bool,
    #[serde(flatten)]
    pub end: Option<End>,
}

/// Content of a line: a message for chat, text for generate.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Said<'a> {
    Chat {
        message: Message<'a>,
    },
    Generate {
        response: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        thinking: &'a str,
    },
}

/// A piece of a message, or a whole one.
#[derive(Debug, Serialize)]
pub(super) struct Message<'a> {
    pub role: &'static str,
    pub content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall<'a>>,
}

/// A whole call of a tool.
#[derive(Debug, Serialize)]
pub(super) struct ToolCall<'a> {
    pub function: Function<'a>,
}

#[derive(Debug, Serialize)]
pub(super) struct Function<'a> {
    pub name: &'a str,
    pub arguments: Value,
}

impl<'a> ToolCall<'a> {
    /// Creates a call. Arguments that are not an object, such as truncated ones, are wrapped in one.
    pub fn new(name: &'a str, arguments: &str) -> Self {
        let arguments = match serde_json::from_str(arguments) {
            Ok(Value::Object(object)) => Value::Object(object),
            _ if arguments.trim().is_empty() => Value::Object(serde_json::Map::new()),
            _ => serde_json::json!({"INVALID_JSON": arguments}),
        };
        Self { function: Function { name, arguments } }
    }
}

/// The end of an answer. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct End {
    pub done_reason: &'static str,
    pub total_duration: u64,
    pub load_duration: u64,
    pub prompt_eval_count: u64,
    pub prompt_eval_duration: u64,
    pub eval_count: u64,
    pub eval_duration: u64,
}

/// The answer to a request without a prompt, which only loads or unloads its model.
#[derive(Debug, Serialize)]
pub struct LoadAnswer<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    said: Said<'a>,
    done: bool,
    done_reason: &'static str,
}

impl<'a> LoadAnswer<'a> {
    /// Creates the answer for chat or generate, after the model was loaded or unloaded.
    pub fn new(model: &'a str, is_chat: bool, is_loaded: bool) -> Self {
        let message = Message { role: "assistant", content: "", thinking: "", tool_calls: Vec::new() };
        let said =
            if is_chat { Said::Chat { message } } else { Said::Generate { response: "", thinking: "" } };
        let done_reason = if is_loaded { "load" } else { "unload" };
        Self { model, created_at: jiff::Timestamp::now().to_string(), said, done: true, done_reason }
    }
}

/// The models of `GET /api/tags` and `GET /api/ps`.
#[derive(Debug, Serialize)]
pub struct ModelList {
    /// Models, one entry for each name.
    pub models: Vec<ModelEntry>,
}

/// A model in a list. Unknown values are empty or 0.
#[derive(Debug, Serialize)]
pub struct ModelEntry {
    name: String,
    model: String,
    modified_at: &'static str,
    expires_at: Cow<'static, str>,
    size: u64,
    size_vram: u64,
    digest: &'static str,
    details: Details,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: &'static str,
    families: Option<Vec<String>>,
    parameter_size: &'static str,
    quantization_level: &'static str,
}

impl ModelEntry {
    /// Creates an entry. `context_length` is in tokens, if known.
    pub fn new(name: String, context_length: Option<u32>) -> Self {
        Self {
            model: name.clone(),
            name,
            modified_at: "1970-01-01T00:00:00Z",
            expires_at: Cow::Borrowed("9999-12-31T23:59:59Z"),
            size: 0,
            size_vram: 0,
            digest: "",
            details: Details::default(),
            context_length,
        }
    }

    /// Adds the bytes of the model in memory.
    #[must_use]
    pub fn with_bytes(self, n_bytes: u64) -> Self {
        Self { size: n_bytes, ..self }
    }

    /// Adds the time after which the model is unloaded if nobody asks for it.
    #[must_use]
    pub fn with_stay(self, stay: Duration) -> Self {
        match jiff::Timestamp::now().checked_add(stay) {
            Ok(time) => Self { expires_at: Cow::Owned(time.to_string()), ..self },
            Err(_) => self,
        }
    }
}

/// The model of `POST /api/show`.
#[derive(Debug, Clone, Serialize)]
pub struct ModelDescription {
    modified_at: &'static str,
    modelfile: &'static str,
    parameters: &'static str,
    template: &'static str,
    details: Details,
    model_info: BTreeMap<&'static str, Value>,
    capabilities: Vec<&'static str>,
}

impl ModelDescription {
    /// Creates the description of a model. `context_length` is in tokens.
    pub fn new(capabilities: Vec<&'static str>, context_length: u32) -> Self {
        let model_info = BTreeMap::from([
            ("general.architecture", Value::from("throng")),
            ("throng.context_length", Value::from(context_length)),
        ]);
        let (modified_at, details) = ("1970-01-01T00:00:00Z", Details::default());
        Self { modified_at, modelfile: "", parameters: "", template: "", details, model_info, capabilities }
    }
}
