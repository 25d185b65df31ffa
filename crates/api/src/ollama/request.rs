//! The bodies of `POST /api/chat` and `POST /api/generate`.

use serde_json::Value;
use throng_text::grammar::ConstraintSpec;

use super::messages::{read_images, read_messages};
use super::stay::{KEEP_ALIVE, KEEP_ALIVE_SHAPE, Stay};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Ignored, ModelName, Refused};
use crate::field::{Bound, Field, Range, ReadOptions, Shape, field, read_body};
use crate::json::{JsonType, MAX_TREE_VALUES, Node, TreeBudget};
use crate::spec::{
    ChatInput, ContentPart, Conversation, GenerationOptions, GenerationSpec, Infill, Input, MAX_IMAGES,
    MAX_MESSAGES, MAX_TOOLS, Message, ParamNames, Prompt, PromptsInput, Role, check_replies, read_function,
};

/// Maximum number of stop strings of a request.
const MAX_STOPS: usize = 64;
/// Maximum bytes of a stop string.
const MAX_STOP_BYTES: usize = 1024;
const EFFORTS: &[&str] = &["low", "medium", "high", "max"];
const FUNCTION_KEYS: &[&str] = &["name", "description", "parameters", "strict"];

/// A request while it is being read.
#[derive(Debug, Default)]
pub struct Body {
    options: GenerationOptions,
    messages: Vec<Message>,
    tools: Vec<Value>,
    system: Option<String>,
    prompt: Option<String>,
    suffix: Option<String>,
    images: Vec<ContentPart>,
    raw: Option<bool>,
    thinks: Option<bool>,
    effort: Option<&'static str>,
    budget: TreeBudget,
}

/// The parameters of both endpoints.
pub const COMMON_FIELDS: &[Field<Body>] = &[
    field("model", ModelName(|b| &mut b.options.model), "The model to use."),
    field("stream", Boolean(|b| &mut b.options.stream), "Answer line by line; true unless said."),
    field(
        "format",
        Custom(Shape::AnyOf(&[Shape::Text(16), Shape::Object]), |b, node, _| read_format(b, node)),
        "The form of the answer: json, or a JSON Schema.",
    ),
    field(
        "think",
        Custom(Shape::AnyOf(&[Shape::Boolean, Shape::Choice(EFFORTS)]), |b, node, _| {
            if node.json_type() == JsonType::String {
                b.effort = Some(EFFORTS[node.one_of(EFFORTS)?]);
                b.thinks = Some(true);
            } else {
                b.thinks = Some(node.boolean()?);
            }
            Ok(())
        }),
        "Whether the model thinks before it answers, or how much.",
    ),
    field(
        "options",
        Custom(Shape::Object, |b, node, _| read_options(&mut b.options, node)),
        "Sampling: temperature, top_k, top_p, min_p, seed, num_predict, repeat_penalty, presence_penalty, frequency_penalty, stop.",
    ),
    field("keep_alive", Custom(KEEP_ALIVE_SHAPE, |_, node, _| Stay::read(node).map(drop)), KEEP_ALIVE),
    field("logprobs", Refused(Shape::Boolean, |node| node.text() == "false"), "Not supported."),
    field("top_logprobs", Refused(Shape::Integer(0, 20), |node| node.text() == "0"), "Not supported."),
];

/// The parameters of `POST /api/chat` alone.
pub const CHAT_FIELDS: &[Field<Body>] = &[
    field(
        "messages",
        Custom(Shape::Array(MAX_MESSAGES, &Shape::Object), |b, node, _| {
            b.messages = read_messages(node, &mut b.budget)?;
            check_replies(&b.messages, |_, _| node.path())
        }),
        "The conversation: role (system, user, assistant, tool) and content.",
    ),
    field(
        "tools",
        Custom(Shape::Array(MAX_TOOLS, &Shape::Object), |b, node, _| read_tools(b, node)),
        "Tools that the model may call.",
    ),
];

/// The parameters of `POST /api/generate` alone.
pub const GENERATE_FIELDS: &[Field<Body>] = &[
    field(
        "prompt",
        Custom(Shape::Text(usize::MAX), |b, node, _| {
            b.prompt = Some(node.string(usize::MAX)?.into_owned());
            Ok(())
        }),
        "What the model answers.",
    ),
    field(
        "system",
        Custom(Shape::Text(usize::MAX), |b, node, _| {
            b.system = Some(node.string(usize::MAX)?.into_owned());
            Ok(())
        }),
        "Instructions before it.",
    ),
    field("raw", Boolean(|b| &mut b.raw), "Give the model the prompt as it is, without its chat template."),
    field("context", Ignored(Shape::Array(1 << 20, &Shape::Any)), "Has no effect here."),
    field(
        "suffix",
        Custom(Shape::Text(usize::MAX), |b, node, _| {
            b.suffix = Some(node.string(usize::MAX)?.into_owned()).filter(|text| !text.is_empty());
            Ok(())
        }),
        "Text behind the answer, for models that fill in the middle.",
    ),
    field("template", Refused(Shape::Text(usize::MAX), |node| node.text() == "\"\""), "Not supported."),
    field(
        "images",
        Custom(Shape::Array(MAX_IMAGES, &Shape::Text(usize::MAX)), |b, node, _| {
            b.images = read_images(node)?;
            Ok(())
        }),
        "Images before the prompt, as base64 or data URLs.",
    ),
];

/// Reads and checks the body of a chat.
///
/// # Errors
/// A 400 that names the parameter.
pub(super) fn parse_chat(body: &[u8], options: &ReadOptions) -> Result<GenerationSpec, ApiError> {
    let mut body = read(body, CHAT_FIELDS, "messages", options)?;
    if body.messages.is_empty() {
        return Err(ApiError::missing_required_parameter("messages"));
    }
    let messages = std::mem::take(&mut body.messages);
    Ok(body.into_spec(messages))
}

/// Reads and checks the body of `POST /api/generate`.
///
/// # Errors
/// A 400 that names the parameter.
pub(super) fn parse_generate(body: &[u8], options: &ReadOptions) -> Result<GenerationSpec, ApiError> {
    let mut body = read(body, GENERATE_FIELDS, "prompt", options)?;
    let prompt = body.prompt.take().ok_or_else(|| ApiError::missing_required_parameter("prompt"))?;
    if !body.images.is_empty() && (body.suffix.is_some() || body.raw == Some(true)) {
        let reason = "Images need the chat template, without 'raw' and 'suffix'.";
        return Err(ApiError::unsupported_parameter("images", reason));
    }
    if let Some(behind) = body.suffix.take() {
        let gap = Infill { before: prompt, behind, files: Vec::new(), param: "suffix" };
        let prompts = vec![Prompt::Infill(Box::new(gap))];
        let input = PromptsInput { prompts, add_special_tokens: true, repeats_texts: false };
        return Ok(GenerationSpec { options: body.options, input: Input::Prompts(input) });
    }
    if body.raw == Some(true) {
        let prompts = vec![Prompt::Text(prompt)];
        let input = PromptsInput { prompts, add_special_tokens: true, repeats_texts: false };
        return Ok(GenerationSpec { options: body.options, input: Input::Prompts(input) });
    }
    let system = body.system.take().map(|text| Message::new(Role::System, vec![ContentPart::Text(text)]));
    let mut content = std::mem::take(&mut body.images);
    content.push(ContentPart::Text(prompt));
    let messages = system.into_iter().chain([Message::new(Role::User, content)]).collect();
    Ok(body.into_spec(messages))
}

fn read(
    bytes: &[u8],
    fields: &'static [Field<Body>],
    prompt: &'static str,
    options: &ReadOptions,
) -> Result<Body, ApiError> {
    let mut common = Body::default();
    let mut own = Body::default();
    let ignored = read_body(
        bytes,
        &mut [
            &mut Bound { fields: COMMON_FIELDS, target: &mut common },
            &mut Bound { fields, target: &mut own },
        ],
        options,
    )?;
    let mut generation = common.options;
    generation.names = ParamNames { prompt, max_tokens: "options.num_predict", ..ParamNames::default() };
    generation.may_end_with_context = true;
    generation.stream = Some(generation.stream.unwrap_or(true));
    generation.settle(ignored, options);
    generation.check_together(false)?;
    Ok(Body { options: generation, thinks: common.thinks, effort: common.effort, ..own })
}

impl Body {
    fn into_spec(self, messages: Vec<Message>) -> GenerationSpec {
        let conversation = Conversation {
            messages,
            enable_thinking: self.thinks,
            reasoning_effort: self.effort,
            tools: self.tools,
            budget: self.budget,
            ..Conversation::default()
        };
        let chat = ChatInput {
            calls_tools: !conversation.tools.is_empty(),
            shows_reasoning: self.thinks != Some(false),
            conversation,
            ..ChatInput::default()
        };
        GenerationSpec { options: self.options, input: Input::Chat(Box::new(chat)) }
    }
}

fn read_format(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    if node.json_type() == JsonType::Object {
        node.check_complexity(MAX_TREE_VALUES)?;
        return body.options.constrain(node.path(), ConstraintSpec::JsonSchema(node.exact_tree()?));
    }
    match node.one_of(&["", "json"])? {
        0 => Ok(()),
        _ => body.options.constrain(node.path(), ConstraintSpec::JsonObject),
    }
}

fn read_tools(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    node.elements(MAX_TOOLS, |_, tool| {
        let mut is_function = false;
        tool.known_members(&["type", "function"], |key, value| {
            match key {
                "type" if !value.is_null() => drop(value.one_of(&["function"])?),
                "function" => {
                    read_function(&value, FUNCTION_KEYS)?;
                    is_function = true;
                }
                _ => {}
            }
            Ok(())
        })?;
        if is_function { Ok(()) } else { Err(ApiError::missing_required_parameter(tool.path_of("function"))) }
    })?;
    body.budget.take_tree(node)?;
    node.elements(MAX_TOOLS, |_, tool| {
        let mut tree = tool.exact_tree()?;
        if let Some(function) = tree.get_mut("function").and_then(Value::as_object_mut) {
            function.retain(|key, value| FUNCTION_KEYS.contains(&key.as_str()) && !value.is_null());
        }
        tree["type"] = "function".into();
        body.tools.push(tree);
        Ok(())
    })
}

/// Reads `options`. Options about loading are the operator's and have no effect.
fn read_options(options: &mut GenerationOptions, node: &Node<'_, '_>) -> Result<(), ApiError> {
    let penalty = Range::closed(-2.0, 2.0);
    node.members(64, |key, value| {
        if value.is_null() {
            return Ok(());
        }
        match key {
            "seed" => options.seed = Some(value.integer(i64::MIN, i64::MAX)?),
            // A negative number means no limit but the context.
            "num_predict" => {
                options.max_tokens = Some(value.integer(-2, i32::MAX.into())?).filter(|n| *n > 0);
            }
            "top_k" => options.top_k = Some(value.integer(-1, i32::MAX.into())?),
            "top_p" => options.top_p = Some(Range::above(0.0, 1.0).read_f32(&value)?),
            "min_p" => options.min_p = Some(Range::closed(0.0, 1.0).read_f32(&value)?),
            "temperature" => options.temperature = Some(Range::closed(0.0, 2.0).read_f32(&value)?),
            "repeat_penalty" => options.repetition_penalty = Some(Range::above(0.0, 100.0).read_f32(&value)?),
            "presence_penalty" => options.presence_penalty = Some(penalty.read_f32(&value)?),
            "frequency_penalty" => options.frequency_penalty = Some(penalty.read_f32(&value)?),
            "stop" => value.elements(MAX_STOPS, |_, element| {
                let text = element.string(MAX_STOP_BYTES)?;
                if text.is_empty() {
                    return Err(ApiError::invalid_value(element.path(), "A stop string must not be empty."));
                }
                options.stop.push(text.into_owned());
                Ok(())
            })?,
            _ => value.ignore(),
        }
        Ok(())
    })
}
