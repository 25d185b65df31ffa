//! Renders conversations to prompts with a model's own Jinja template, and keeps the template's text apart
//! from users' text. Does not know tokens, and limits every template's work.

mod conversation;
mod environment;
mod history;
mod limits;
mod long_number;
mod partial_json;
mod percent;
mod python_json;
mod python_strings;
mod source;
mod turn_order;
mod variables;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use minijinja::Environment;
use minijinja::value::Value;
use serde_json::{Map, Value as Json, json};

use crate::disguise::Disguise;
use crate::error::{TemplateError, TokenizerError};
use crate::rendered_prompt::RenderedPrompt;
use crate::tokenizer::{SpecialTokens, TokenizerConfig};
use conversation::{ContentForm, Size, TextGuard, arranged, private_chars, survey};
use history::{HistoryForm, calls_of};
use limits::{BoundedOutput, Limits, classify};

/// Keys of `chat_template_kwargs` that only the server sets, or that configure transformers instead of the
/// template.
const RESERVED: &[&str] = &[
    "messages",
    "conversation",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
    "tokenizer_kwargs",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "padding",
    "truncation",
    "max_length",
];

/// Input of a rendering.
#[derive(Debug, Clone)]
pub struct TemplateInput<'a> {
    /// The messages, an array of objects as in the OpenAI API.
    pub messages: &'a Json,
    /// Offered tools, an array; `None`: none.
    pub tools: Option<&'a Json>,
    /// Documents for templates with retrieval, an array.
    pub documents: Option<&'a Json>,
    /// Whether the prompt ends with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Additional variables (`enable_thinking`); reserved names are refused.
    pub kwargs: Option<&'a Map<String, Json>>,
    /// Name of the template; `None`: chosen by the presence of tools and documents.
    pub template_name: Option<&'a str>,
    /// The tokenizer's control tokens: [`crate::Tokenizer::special_tokens`].
    pub special_tokens: &'a SpecialTokens,
    /// Seconds since 1970 for templates that print the date; `None` for now.
    pub now_unix_s: Option<i64>,
}

impl<'a> TemplateInput<'a> {
    /// Creates an ordinary input: an answer to `messages`.
    pub fn new(messages: &'a Json, special_tokens: &'a SpecialTokens) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            template_name: None,
            special_tokens,
            now_unix_s: None,
        }
    }
}

/// A model's chat templates, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    templates: BTreeMap<String, Compiled>,
}

#[derive(Debug)]
struct Compiled {
    env: Environment<'static>,
    source: String,
    literals: Vec<String>,
    /// Characters of the source that could be mistaken for stand-ins.
    private_chars: Vec<char>,
    variables: HashSet<String>,
    content_form: ContentForm,
    /// Form of past calls, probed when the first conversation with calls arrives.
    history: OnceLock<HistoryForm>,
    takes_system: OnceLock<bool>,
}

impl ChatTemplate {
    /// Compiles a single template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::from_named([("default".to_owned(), source.to_owned())])
    }

    /// Compiles several templates. With tools, `tool_use` is used if it exists; else, with documents,
    /// `rag`; else `default`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn from_named(named: impl IntoIterator<Item = (String, String)>) -> Result<Self, TemplateError> {
        let compiled = named.into_iter().map(|(name, source)| Ok((name, Compiled::new(&source)?)));
        Ok(Self { templates: compiled.collect::<Result<_, TemplateError>>()? })
    }

    /// Compiles the templates of a `tokenizer_config.json`; `None` if it has none.
    ///
    /// # Errors
    /// When the file is not a `tokenizer_config.json`, or a template does not compile.
    pub fn from_tokenizer_config(json: &[u8]) -> Result<Option<Self>, TemplateError> {
        let malformed = |error: TokenizerError| TemplateError::Syntax(error.to_string());
        let named = TokenizerConfig::parse(json).map_err(malformed)?.chat_templates;
        if named.is_empty() { Ok(None) } else { Self::from_named(named).map(Some) }
    }

    /// Whether some template reads a variable of this name; a variable that none reads has no effect.
    pub fn reads(&self, variable: &str) -> bool {
        self.templates.values().any(|compiled| compiled.variables.contains(variable))
    }

    /// Whether every template has this string in its code: one without `developer` does not support that
    /// role.
    pub fn mentions(&self, literal: &str) -> bool {
        self.templates.values().all(|compiled| compiled.literals.iter().any(|known| known == literal))
    }

    /// Whether the default template shows a system message.
    pub fn takes_system(&self, special_tokens: &SpecialTokens) -> bool {
        let default = self.templates.get("default");
        default.is_some_and(|compiled| compiled.takes_system(special_tokens))
    }

    /// Whether some template has this text in its source.
    pub(crate) fn has_in_source(&self, text: &str) -> bool {
        self.templates.values().any(|compiled| compiled.source.contains(text))
    }

    /// Whether only the server may set a variable.
    pub fn is_reserved(name: &str) -> bool {
        RESERVED.contains(&name) || name.ends_with("_token")
    }

    /// Renders the prompt.
    ///
    /// # Errors
    /// [`TemplateError`]. No client input makes a template exceed its limits on time and memory.
    pub fn render(&self, input: &TemplateInput<'_>) -> Result<RenderedPrompt, TemplateError> {
        let compiled = self.select(input)?;
        if input.continue_final_message && input.add_generation_prompt {
            let reason = "cannot be combined with add_generation_prompt";
            return Err(TemplateError::NothingToContinue(reason.to_owned()));
        }
        let mut variables = input.kwargs.iter().flat_map(|kwargs| kwargs.keys());
        if let Some(name) = variables.find(|name| Self::is_reserved(name)) {
            return Err(TemplateError::ReservedArgument { name: name.clone() });
        }
        compiled.render(input)
    }

    fn select(&self, input: &TemplateInput<'_>) -> Result<&Compiled, TemplateError> {
        let has = |name: &str| self.templates.contains_key(name);
        let name = match input.template_name {
            Some(name) => name,
            None if input.tools.is_some() && has("tool_use") => "tool_use",
            None if input.documents.is_some() && has("rag") => "rag",
            None => "default",
        };
        self.templates.get(name).ok_or_else(|| TemplateError::UnknownTemplate(name.to_owned()))
    }
}

impl Compiled {
    fn new(source: &str) -> Result<Self, TemplateError> {
        let env = environment::compile(source)?;
        let variables = variables::read_from_outside(source);
        let literals = source::literals(source);
        let mut compiled = Self {
            env,
            source: source.to_owned(),
            literals,
            private_chars: private_chars(source).collect(),
            variables,
            content_form: ContentForm::Both,
            history: OnceLock::new(),
            takes_system: OnceLock::new(),
        };
        compiled.content_form = compiled.probe_content_form();
        Ok(compiled)
    }

    /// Probes in which form the template takes content: one that expects a string prints a list of parts as
    /// it is, or fails; one that expects parts prints nothing of a string, or fails.
    fn probe_content_form(&self) -> ContentForm {
        const TEXT: &str = "a part of text";
        let tokens =
            SpecialTokens { named: vec![("bos_token".to_owned(), String::new())], ..Default::default() };
        let prints = |content: Json| {
            let messages = json!([{"role": "user", "content": content}]);
            let prompt = self.render(&TemplateInput::new(&messages, &tokens));
            prompt.is_ok_and(|prompt| {
                let text = prompt.text();
                text.contains(TEXT) && !text.contains("'text'") && !text.contains("\"text\"")
            })
        };
        match prints(json!([{"type": "text", "text": TEXT}])) {
            false => ContentForm::Text,
            true if prints(TEXT.into()) => ContentForm::Both,
            true => ContentForm::Parts,
        }
    }

    fn takes_system(&self, tokens: &SpecialTokens) -> bool {
        *self.takes_system.get_or_init(|| {
            let system = json!({"role": "system", "content": "a probing instruction"});
            let messages = json!([system, {"role": "user", "content": "ask"}]);
            // Not rearranged: in another order the instruction would become part of the user's message.
            let input = TemplateInput::new(&messages, tokens);
            let prompt = self.render_messages(&input, arranged(&messages, self.content_form));
            prompt.is_ok_and(|prompt| prompt.text().contains("a probing instruction"))
        })
    }

    /// Probes how the template shows past calls.
    fn history(&self, tokens: &SpecialTokens) -> HistoryForm {
        *self.history.get_or_init(|| {
            let function = json!({"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}});
            let tools = json!([{"type": "function", "function": function}]);
            HistoryForm::probed(|messages| {
                let input = TemplateInput { tools: Some(&tools), ..TemplateInput::new(messages, tokens) };
                let prompt = self.render_messages(&input, arranged(messages, self.content_form));
                prompt.ok().map(|prompt| prompt.text().into_owned())
            })
        })
    }

    fn render(&self, input: &TemplateInput<'_>) -> Result<RenderedPrompt, TemplateError> {
        match self.render_messages(input, self.arranged(input)) {
            // The conversation is valid, but the template accepts fewer orders of roles than clients send.
            Err(TemplateError::Refused(reason)) => {
                let mut orders = turn_order::alternatives(&self.arranged(input)).into_iter();
                let rendered = orders.find_map(|order| self.render_messages(input, order).ok());
                rendered.ok_or(TemplateError::Refused(reason))
            }
            rendered => rendered,
        }
    }

    /// The messages in the form of the template, in the request's order.
    fn arranged<'a>(&self, input: &TemplateInput<'a>) -> Vec<Cow<'a, Json>> {
        let mut messages = arranged(input.messages, self.content_form);
        if messages.iter().any(|message| !calls_of(message).is_empty()) {
            self.history(input.special_tokens).arrange(&mut messages);
        }
        messages
    }

    fn render_messages(
        &self,
        input: &TemplateInput<'_>,
        mut messages: Vec<Cow<'_, Json>>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let (mut size, mut used) = (Size::default(), HashSet::new());
        let values = [input.tools, input.documents].into_iter().flatten();
        values
            .chain(messages.iter().map(|message| &**message))
            .chain(input.kwargs.iter().flat_map(|kwargs| kwargs.values()))
            .for_each(|value| {
                survey(value, &mut size, &mut used);
            });
        used.extend(&self.private_chars);
        let guard = TextGuard::new(input.special_tokens, &self.literals);
        let (disguise, tag) = guard
            .disguise(&used)
            .ok_or_else(|| TemplateError::Render("too many private-use characters".to_owned()))?;
        let mark =
            input.continue_final_message.then(|| Continuation::mark(&mut messages, tag)).transpose()?;

        let limits = Limits::for_input(size.n_values, size.n_bytes);
        let disguise = Arc::new(disguise);
        let env = environment::for_request(&self.env, limits, &disguise, input.now_unix_s);
        let context = context(input, &messages, &guard, &disguise);
        // Most prompts are slightly longer than their content; growing the buffer step by step would hold
        // it twice.
        let bytes = Vec::with_capacity(size.n_bytes + size.n_bytes / 8);
        let mut output = BoundedOutput { bytes, limit: limits.n_bytes };
        let template = env.get_template(environment::TEMPLATE).map_err(|error| classify(&error))?;
        // The template library subtracts lengths unchecked in a slice with a negative step: where arithmetic
        // is checked, `messages[:3:-1]` of two messages panics.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(context, &mut output)));
        rendered
            .map_err(|_| TemplateError::Render("the template library failed".to_owned()))?
            .map_err(|error| classify(&error))?;
        let disguised =
            String::from_utf8(output.bytes).map_err(|error| TemplateError::Render(error.to_string()))?;
        let prompt = RenderedPrompt { disguised, disguise };
        match mark {
            Some(continuation) => continuation.cut(prompt),
            None => Ok(prompt),
        }
    }
}

/// All variables of the template.
fn context(
    input: &TemplateInput<'_>,
    messages: &[Cow<'_, Json>],
    guard: &TextGuard<'_>,
    disguise: &Disguise,
) -> Value {
    let optional = |value: Option<&Json>| value.map_or(Value::from(()), |value| guard.value(value, disguise));
    let tokens = input.special_tokens.named.iter().map(|(role, text)| (role.clone(), Value::from(text)));
    let kwargs =
        input.kwargs.into_iter().flatten().map(|(name, value)| (name.clone(), guard.value(value, disguise)));
    let own = [
        ("messages", messages.iter().map(|message| guard.message(message, disguise)).collect()),
        ("tools", optional(input.tools)),
        ("documents", optional(input.documents)),
        ("add_generation_prompt", Value::from(input.add_generation_prompt)),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::from_pairs(tokens.chain(kwargs).chain(own))
}

/// Finds the end of the last message in the rendered text by a mark inserted before, as transformers does.
struct Continuation {
    tag: char,
}

impl Continuation {
    /// Appends the mark to the last message's text.
    fn mark(messages: &mut [Cow<'_, Json>], tag: char) -> Result<Self, TemplateError> {
        let nothing = |reason: &str| TemplateError::NothingToContinue(reason.to_owned());
        let content = messages.last_mut().and_then(|message| message.to_mut().get_mut("content"));
        let text = match content.ok_or_else(|| nothing("the final message has no content"))? {
            Json::String(text) => text,
            Json::Array(parts) => match parts.iter_mut().rev().find_map(|part| part.get_mut("text")) {
                Some(Json::String(text)) => text,
                _ => return Err(nothing("the final message has no text")),
            },
            _ => return Err(nothing("the final message has no content")),
        };
        text.push(tag);
        // A space after the mark shows whether the template trims messages.
        text.push(' ');
        Ok(Self { tag })
    }

    /// The prompt up to the mark.
    fn cut(&self, mut prompt: RenderedPrompt) -> Result<RenderedPrompt, TemplateError> {
        let text = &mut prompt.disguised;
        let Some(at) = text.rfind(self.tag) else {
            let reason = "the chat template leaves the final message out";
            return Err(TemplateError::NothingToContinue(reason.to_owned()));
        };
        let keeps_spaces = text[at + self.tag.len_utf8()..].starts_with(' ');
        text.truncate(at);
        if !keeps_spaces {
            text.truncate(text.trim_end().len());
        }
        Ok(prompt)
    }
}
