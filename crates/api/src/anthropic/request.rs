//! The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use serde_json::Value;
use throng_text::grammar::ConstraintSpec;

use super::content::{Turns, read_system, read_turns};
use super::tools::{ToolUse, read_tool_choice, read_tools};
use crate::cache_hints::read_cache_control;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Ignored, Integer, ModelName, Number, Refused};
use crate::field::{Bound, Field, Range, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{MAX_TREE_VALUES, Node, TreeBudget};
use crate::spec::{
    CachePoint, ChatInput, Conversation, GenerationOptions, GenerationSpec, Input, MAX_CACHE_POINTS,
    MAX_MESSAGES, ParamNames, Role, check_replies,
};

/// Maximum number of stop sequences of a request.
const MAX_STOP_SEQUENCES: usize = 64;
/// Maximum bytes of a stop sequence.
const MAX_STOP_BYTES: usize = 1024;
/// Maximum bytes of an end user's id.
const MAX_USER_BYTES: usize = 512;
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// A request while it is being read.
#[derive(Debug, Default)]
pub struct Body {
    options: GenerationOptions,
    system: Turns,
    turns: Turns,
    tools: Option<Vec<Value>>,
    /// Time in seconds for which tools are kept.
    keep_tools_s: Option<u32>,
    /// Time in seconds for which the whole conversation is kept.
    keep_all_s: Option<u32>,
    tool_use: ToolUse,
    thinking: Thinking,
    effort: Option<&'static str>,
    budget: TreeBudget,
}

/// The `thinking` parameter.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Thinking {
    is_on: bool,
    is_shown: bool,
}

/// The parameters of both endpoints.
pub const FIELDS: &[Field<Body>] = &[
    field("model", ModelName(|b| &mut b.options.model), "The model to use."),
    field(
        "messages",
        Custom(Shape::Array(MAX_MESSAGES, &Shape::Object), |b, node, _| {
            b.turns = read_turns(node, &mut b.budget)?;
            check_replies(&b.turns.messages, |_, _| node.path())
        }),
        "The conversation: role (user, assistant) and content (text or blocks).",
    ),
    field(
        "system",
        Custom(Shape::AnyOf(&[Shape::Text(usize::MAX), Shape::Array(1024, &Shape::Object)]), |b, node, _| {
            b.system = read_system(node)?;
            Ok(())
        }),
        "Instructions, as text or blocks of text.",
    ),
    field(
        "max_tokens",
        Integer(1, i32::MAX as i64, |b| &mut b.options.max_tokens),
        "The most tokens to generate; where the context has room for fewer, as many as fit.",
    ),
    field("stream", Boolean(|b| &mut b.options.stream), "Answer by events; false unless said."),
    field(
        "include_timings",
        Boolean(|b| &mut b.options.include_timings),
        "Tell in usage.timings where the time of the message went; false unless said.",
    ),
    field(
        "stop_sequences",
        Custom(Shape::Array(MAX_STOP_SEQUENCES, &Shape::Text(MAX_STOP_BYTES)), |b, node, _| {
            node.elements(MAX_STOP_SEQUENCES, |_, element| {
                let text = element.string(MAX_STOP_BYTES)?;
                if text.is_empty() {
                    return Err(ApiError::invalid_value(
                        element.path(),
                        "A stop sequence must not be empty.",
                    ));
                }
                b.options.stop.push(text.into_owned());
                Ok(())
            })
        }),
        "Texts that end the answer.",
    ),
    field(
        "temperature",
        Number(Range::closed(0.0, 2.0), |b| &mut b.options.temperature),
        "Divides the logits; 0 always takes the most likely token.",
    ),
    field("top_p", Number(Range::above(0.0, 1.0), |b| &mut b.options.top_p), "Nucleus sampling."),
    field("top_k", Integer(-1, i32::MAX as i64, |b| &mut b.options.top_k), "Keep only this many tokens."),
    field(
        "tools",
        Custom(Shape::Array(128, &Shape::Object), |b, node, _| {
            let (tools, keep_s) = read_tools(node, &mut b.budget)?;
            (b.tools, b.keep_tools_s) = (Some(tools), keep_s);
            Ok(())
        }),
        "Tools that the model may use.",
    ),
    field(
        "tool_choice",
        Custom(Shape::Object, |b, node, _| {
            b.tool_use = read_tool_choice(node)?;
            Ok(())
        }),
        "Whether the model may, must or must not use tools.",
    ),
    field(
        "thinking",
        Custom(Shape::Object, |b, node, _| read_thinking(b, node)),
        "Whether the model thinks before it answers, and how many tokens of thoughts it may have.",
    ),
    field(
        "output_config",
        Custom(Shape::Object, |b, node, _| read_output_config(b, node)),
        "The form of the answer, and how much to think.",
    ),
    field(
        "metadata",
        Custom(Shape::Object, |b, node, _| {
            node.known_members(&["user_id"], |_, value| {
                if !value.is_null() {
                    b.options.user = Some(value.string(MAX_USER_BYTES)?.into_owned());
                }
                Ok(())
            })
        }),
        "The end user that the request is made for.",
    ),
    field("service_tier", Ignored(Shape::Choice(&["auto", "standard_only"])), "Has no effect here."),
    field(
        "cache_control",
        Custom(Shape::Object, |b, node, _| {
            b.keep_all_s = read_cache_control(node)?;
            Ok(())
        }),
        "Keep the whole conversation cached ahead of others, for ttl: '5m' unless said, or '1h'.",
    ),
    field("inference_geo", Ignored(Shape::Text(512)), "Has no effect here."),
    field("speed", Ignored(Shape::Choice(&["standard", "fast"])), "Has no effect here."),
    field("context_management", Ignored(Shape::Object), "Has no effect here."),
    field("container", Refused(Shape::Any, |_| false), "Not supported."),
    field("mcp_servers", Refused(Shape::Any, |node| node.is_empty_container()), "Not supported."),
];

/// Reads and checks the body of a message.
///
/// # Errors
/// A 400 that names the parameter.
pub(super) fn parse(body: &[u8], options: &ReadOptions) -> Result<GenerationSpec, ApiError> {
    let (mut body, ignored) = read(body, options)?;
    if body.options.model.is_some() && body.options.max_tokens.is_none() {
        return Err(ApiError::missing_required_parameter("max_tokens"));
    }
    let mut generation = std::mem::take(&mut body.options);
    generation.settle(ignored, options);
    generation.check_together(false)?;
    let chat = body.into_chat()?;
    Ok(GenerationSpec { options: generation, input: Input::Chat(Box::new(chat)) })
}

fn read(body: &[u8], options: &ReadOptions) -> Result<(Body, IgnoredParameters), ApiError> {
    let mut read = Body::default();
    read.options.names = ParamNames { prompt: "messages", ..ParamNames::default() };
    read.options.thinks_if_it_can = true;
    // Clients must send `max_tokens`, so agents send the maximum of their model.
    read.options.may_end_with_context = true;
    let ignored = read_body(body, &mut [&mut Bound { fields: FIELDS, target: &mut read }], options)?;
    if read.options.model.is_none() {
        return Err(ApiError::missing_required_parameter("model"));
    }
    if read.turns.messages.is_empty() {
        return Err(ApiError::missing_required_parameter("messages"));
    }
    Ok((read, ignored))
}

/// A request to count the tokens of a message.
#[derive(Debug)]
pub struct CountTokensRequest {
    /// Name of the model.
    pub model: String,
    /// Conversation for the chat template.
    pub conversation: Conversation,
    /// Parameters without effect.
    pub ignored: IgnoredParameters,
}

impl CountTokensRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (mut body, ignored) = read(body, options)?;
        let model = body.options.model.take().unwrap_or_default();
        Ok(Self { model, conversation: body.into_chat()?.conversation, ignored })
    }
}

impl Body {
    /// Places of `cache_control`, in the order of the prompt. Templates write tools with the system prompt.
    fn cache_points(&self) -> Result<Vec<CachePoint>, ApiError> {
        let n_system = self.system.messages.len();
        let behind = |n_messages| move |keep_s| CachePoint { n_messages, within: None, keep_s };
        let mut points: Vec<CachePoint> = self.keep_tools_s.map(behind(n_system)).into_iter().collect();
        points.extend(&self.system.points);
        let of_turns = self.turns.points.iter();
        points.extend(of_turns.map(|point| CachePoint { n_messages: n_system + point.n_messages, ..*point }));
        points.extend(self.keep_all_s.map(behind(n_system + self.turns.messages.len())));
        if points.len() > MAX_CACHE_POINTS {
            let reason = format!(
                "A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found {}.",
                points.len()
            );
            return Err(ApiError::invalid_value("cache_control", reason));
        }
        Ok(points)
    }

    fn into_chat(self) -> Result<ChatInput, ApiError> {
        let cache_points = self.cache_points()?;
        let Self { system, turns, tools, tool_use, thinking, effort, budget, .. } = self;
        let tools = tools.unwrap_or_default();
        tool_use.check(&tools)?;
        let mut messages = system.messages;
        messages.extend(turns.messages);
        let continues_answer = messages.last().is_some_and(|last| last.role == Role::Assistant);
        let conversation = Conversation {
            enable_thinking: Some(thinking.is_on),
            calls_no_tools: tool_use.never,
            continue_final_message: continues_answer.then_some(true),
            reasoning_effort: effort,
            budget,
            messages,
            tools,
            cache_points,
            ..Conversation::default()
        };
        Ok(ChatInput {
            calls_tools: !conversation.tools.is_empty() && !tool_use.never,
            must_call: tool_use.must,
            chosen_function: tool_use.name,
            only_first_call: tool_use.only_one,
            shows_reasoning: thinking.is_shown,
            conversation,
        })
    }
}

fn read_thinking(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    const TYPES: &[&str] = &["disabled", "enabled", "adaptive", "between_tools"];
    let (mut kind, mut is_omitted) = (None, false);
    node.known_members(&["type", "budget_tokens", "display"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => kind = Some(value.one_of(TYPES)?),
            "budget_tokens" => {
                body.options.thinking_token_budget = Some(value.integer(1, i32::MAX.into())?);
            }
            _ => is_omitted = value.one_of(&["summarized", "omitted"])? == 1,
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("type")))?;
    body.thinking = Thinking { is_on: kind > 0, is_shown: kind > 0 && !is_omitted };
    if kind != 1 {
        body.options.thinking_token_budget = None;
    }
    Ok(())
}

fn read_output_config(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    node.known_members(&["effort", "format"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "effort" => body.effort = Some(EFFORTS[value.one_of(EFFORTS)?]),
            _ => {
                let mut schema = None;
                value.known_members(&["type", "schema"], |key, value| {
                    match key {
                        "type" => drop(value.one_of(&["json_schema"])?),
                        _ => {
                            Shape::Object.check(&value)?;
                            value.check_complexity(MAX_TREE_VALUES)?;
                            schema = Some(value.exact_tree()?);
                        }
                    }
                    Ok(())
                })?;
                let missing = || ApiError::missing_required_parameter(value.path_of("schema"));
                let spec = ConstraintSpec::JsonSchema(schema.ok_or_else(missing)?);
                body.options.constrain(value.path(), spec)?;
            }
        }
        Ok(())
    })
}
