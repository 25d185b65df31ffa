//! The parameters of a response, row by row. Does not know how they act together.

use serde_json::value::RawValue;
use throng_core::fleet::overload::ServiceClass;
use throng_text::grammar::ConstraintSpec;

use super::input::{Entry, MAX_ITEMS, read_input};
use super::tools::{ToolChoice, Tools, raw, read_metadata, read_tool_choice, read_tools};
use crate::cache_hints::{MAX_KEY_BYTES, RETENTIONS, read_retention};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Hint, Ignored, Integer, ModelName, Number, Refused, Text};
use crate::field::{Field, Range, ReadOptions, Shape, field};
use crate::json::{JsonType, MAX_TREE_VALUES, Node, TreeBudget};
use crate::spec::{GenerationOptions, MAX_DESCRIPTION_BYTES, MAX_NAME_BYTES, MAX_TOOLS};

/// Maximum number of alternatives that are reported for a token.
const MAX_TOP_LOGPROBS: i64 = 20;
const MAX_LABEL_BYTES: usize = 512;
const MAX_TOKENS: i64 = i32::MAX as i64;
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const VERBOSITIES: &[&str] = &["low", "medium", "high"];
const SUMMARIES: &[&str] = &["auto", "concise", "detailed"];
const SERVICE_TIERS: &[&str] = &["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"];
/// Values of `include`. Only the first two concern items of this server.
const INCLUDABLE: &[&str] = &[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// A request while its fields are read.
#[derive(Debug, Clone, Default)]
pub struct Body {
    pub(super) options: GenerationOptions,
    pub(super) input: Option<Vec<Entry>>,
    pub(super) instructions: Option<String>,
    pub(super) tools: Tools,
    pub(super) tool_choice: ToolChoice,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) top_logprobs: Option<i64>,
    pub(super) max_tool_calls: Option<i64>,
    pub(super) effort: Option<&'static str>,
    pub(super) summary: Option<&'static str>,
    pub(super) format: Option<Box<RawValue>>,
    pub(super) verbosity: Option<&'static str>,
    pub(super) metadata: Option<Box<RawValue>>,
    pub(super) service_tier: Option<&'static str>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) safety_identifier: Option<String>,
    pub(super) user: Option<String>,
    pub(super) includes_logprobs: bool,
    pub(super) includes_encrypted: bool,
    pub(super) truncates: bool,
    pub(super) store: Option<bool>,
    pub(super) background: Option<bool>,
    pub(super) previous_response_id: Option<String>,
    pub(super) conversation: Option<String>,
    pub(super) budget: TreeBudget,
}

/// The parameters of both endpoints.
pub const FIELDS: &[Field<Body>] = &[
    field("model", ModelName(|b| &mut b.options.model), "The model to use."),
    field(
        "input",
        Custom(
            Shape::AnyOf(&[Shape::Text(usize::MAX), Shape::Array(MAX_ITEMS, &Shape::Object)]),
            |b, node, _| {
                b.input = Some(read_input(node, &mut b.budget)?);
                Ok(())
            },
        ),
        "A text of the user, or items: messages, calls of functions and their outputs, reasoning, references to kept items.",
    ),
    field(
        "instructions",
        Text(usize::MAX, |b| &mut b.instructions),
        "A system message before the conversation; that of an earlier response does not go on.",
    ),
    field(
        "previous_response_id",
        Text(MAX_NAME_BYTES, |b| &mut b.previous_response_id),
        "The kept response whose conversation goes on.",
    ),
    field(
        "conversation",
        Custom(Shape::AnyOf(&[Shape::Text(MAX_NAME_BYTES), Shape::Object]), |b, node, _| {
            b.conversation = Some(read_conversation(node)?);
            Ok(())
        }),
        "The kept conversation whose items come before the input, and that gets the items of this turn.",
    ),
    field(
        "store",
        Boolean(|b| &mut b.store),
        "Whether the response is kept; true unless said, where there is a store.",
    ),
    field(
        "background",
        Boolean(|b| &mut b.background),
        "Answer at once and go on without the client, who asks for the response later; needs a store.",
    ),
    field("stream", Boolean(|b| &mut b.options.stream), "Answer by events; false unless said."),
    field(
        "stream_options",
        Custom(Shape::Object, |_, node, _| {
            node.known_members(&["include_obfuscation"], |_, value| {
                if value.is_null() { Ok(()) } else { value.boolean().map(drop) }
            })
        }),
        "include_obfuscation has no effect here.",
    ),
    field(
        "max_output_tokens",
        Integer(1, MAX_TOKENS, |b| &mut b.options.max_tokens),
        "The most tokens to generate, reasoning included; where the context has room for fewer, as many as fit.",
    ),
    field(
        "temperature",
        Number(Range::closed(0.0, 2.0), |b| &mut b.options.temperature),
        "Divides the logits; 0 always takes the most likely token.",
    ),
    field("top_p", Number(Range::above(0.0, 1.0), |b| &mut b.options.top_p), "Nucleus sampling."),
    field("top_k", Integer(-1, MAX_TOKENS, |b| &mut b.options.top_k), "Keep only this many tokens."),
    field(
        "min_p",
        Number(Range::closed(0.0, 1.0), |b| &mut b.options.min_p),
        "Keep tokens at least this likely, relative to the likeliest.",
    ),
    field("seed", Integer(i64::MIN, i64::MAX, |b| &mut b.options.seed), "The key of the random numbers."),
    field(
        "presence_penalty",
        Number(Range::closed(-2.0, 2.0), |b| &mut b.options.presence_penalty),
        "Subtracted from the logits of tokens that the answer has.",
    ),
    field(
        "frequency_penalty",
        Number(Range::closed(-2.0, 2.0), |b| &mut b.options.frequency_penalty),
        "Subtracted from the logits of tokens for each time that the answer has them.",
    ),
    field(
        "top_logprobs",
        Integer(0, MAX_TOP_LOGPROBS, |b| &mut b.top_logprobs),
        "Report this many of the most likely tokens beside each; needs message.output_text.logprobs in include.",
    ),
    field(
        "include",
        Custom(Shape::Array(16, &Shape::Choice(INCLUDABLE)), |b, node, _| {
            node.elements(16, |_, element| {
                match element.one_of(INCLUDABLE)? {
                    0 => b.includes_encrypted = true,
                    1 => b.includes_logprobs = true,
                    _ => {}
                }
                Ok(())
            })
        }),
        "What items show besides: log-probabilities, and reasoning for clients that keep no other form of it.",
    ),
    field(
        "tools",
        Custom(Shape::Array(MAX_TOOLS, &Shape::Object), |b, node, _| {
            b.tools = read_tools(node, &mut b.budget)?;
            Ok(())
        }),
        "Tools that the model may call: functions, custom tools, which take free text, and servers of the type mcp.",
    ),
    field(
        "tool_choice",
        Custom(Shape::AnyOf(&[Shape::Choice(&["none", "auto", "required"]), Shape::Object]), |b, node, _| {
            b.tool_choice = read_tool_choice(node)?;
            Ok(())
        }),
        "Whether the model may, must or must not call tools: auto, required, none, a tool to call, or allowed_tools.",
    ),
    field(
        "parallel_tool_calls",
        Boolean(|b| &mut b.parallel_tool_calls),
        "Whether an answer may have several calls; true unless said.",
    ),
    field(
        "max_tool_calls",
        Integer(1, MAX_TOKENS, |b| &mut b.max_tool_calls),
        "The most calls of tools that the gateway runs for the response.",
    ),
    field(
        "text",
        Custom(Shape::Object, read_text),
        "The form of the answer: format is text, json_object or json_schema.",
    ),
    field(
        "reasoning",
        Custom(Shape::Object, read_reasoning),
        "effort: how much to think, for templates that know it. summary: show the thoughts as a summary.",
    ),
    field(
        "truncation",
        Custom(Shape::Choice(&["auto", "disabled"]), |b, node, _| {
            b.truncates = node.one_of(&["auto", "disabled"])? == 0;
            Ok(())
        }),
        "auto: the oldest turns of a conversation that is too long are left out; disabled unless said.",
    ),
    field(
        "metadata",
        Custom(Shape::StringMap, |b, node, _| {
            b.metadata = read_metadata(node)?;
            Ok(())
        }),
        "Kept with the response and given back.",
    ),
    field(
        "service_tier",
        Custom(Shape::Choice(SERVICE_TIERS), |b, node, _| {
            let tier = SERVICE_TIERS[node.one_of(SERVICE_TIERS)?];
            b.options.service_class = match tier {
                "flex" => Some(ServiceClass::Batch),
                "priority" | "fast" | "ultrafast" => Some(ServiceClass::Interactive),
                _ => None,
            };
            b.service_tier = Some(tier);
            Ok(())
        }),
        "The class of service: 'flex' is batch, 'priority' interactive.",
    ),
    field("user", Text(MAX_LABEL_BYTES, |b| &mut b.user), "The end user that the request is made for."),
    field(
        "safety_identifier",
        Text(MAX_LABEL_BYTES, |b| &mut b.safety_identifier),
        "The end user that the request is made for, where user is not given.",
    ),
    field(
        "prompt_cache_key",
        Text(MAX_KEY_BYTES, |b| &mut b.prompt_cache_key),
        "Given back. Requests with one key go to one worker where its load permits, since they begin alike.",
    ),
    field(
        "prompt_cache_retention",
        Custom(Shape::Choice(RETENTIONS), |b, node, _| {
            b.options.keep_cached_s = Some(read_retention(node)?);
            Ok(())
        }),
        "How long what is computed is kept ahead of others: 'in_memory' five minutes, or '24h'.",
    ),
    field("prompt_cache_options", Ignored(Shape::Object), "Has no effect here."),
    field("client_metadata", Ignored(Shape::Object), "Has no effect here."),
    field("image", Ignored(Shape::Object), "Has no effect here."),
    field("background_options", Hint(Shape::Object, |node| node.is_empty_container()), "Has no effect here."),
    field(
        "context_management",
        Refused(Shape::Any, |node| node.is_empty_container()),
        "Not supported; use /v1/responses/compact.",
    ),
    field("prompt", Refused(Shape::Any, |_| false), "Not supported: there are no stored prompts."),
    field("moderation", Refused(Shape::Any, |_| false), "Not supported: rules are the operator's."),
    field("access_programs", Refused(Shape::Any, |node| node.is_empty_container()), "Not supported."),
];

fn read_conversation(node: &Node<'_, '_>) -> Result<String, ApiError> {
    if node.json_type() == JsonType::String {
        return Ok(node.string(MAX_NAME_BYTES)?.into_owned());
    }
    let mut id = None;
    node.known_members(&["id"], |_, value| {
        id = Some(value.string(MAX_NAME_BYTES)?.into_owned());
        Ok(())
    })?;
    id.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("id")))
}

fn read_reasoning(body: &mut Body, node: &Node<'_, '_>, _: &ReadOptions) -> Result<(), ApiError> {
    const KEYS: &[&str] = &["effort", "summary", "generate_summary", "context", "mode"];
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "effort" => body.effort = Some(EFFORTS[value.one_of(EFFORTS)?]),
            "summary" | "generate_summary" => {
                // Codex says none where it wants no summary.
                body.summary = match value.text() {
                    r#""none""# => None,
                    _ => Some(SUMMARIES[value.one_of(SUMMARIES)?]),
                };
            }
            _ => value.ignore(),
        }
        Ok(())
    })
}

fn read_text(body: &mut Body, node: &Node<'_, '_>, _: &ReadOptions) -> Result<(), ApiError> {
    node.known_members(&["format", "verbosity"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "format" => {
                read_format(body, &value)?;
                body.format = Some(raw(&value)?);
            }
            _ => {
                let verbosity = VERBOSITIES[value.one_of(VERBOSITIES)?];
                if verbosity != "medium" {
                    value.ignore();
                }
                body.verbosity = Some(verbosity);
            }
        }
        Ok(())
    })
}

fn read_format(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    const FORMATS: &[&str] = &["text", "json_object", "json_schema"];
    const KEYS: &[&str] = &["type", "name", "schema", "strict", "description"];
    let (mut format, mut is_named, mut schema) = (None, false, None);
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => format = Some(FORMATS[value.one_of(FORMATS)?]),
            "name" => {
                is_named = true;
                value.string(MAX_LABEL_BYTES)?;
            }
            "description" => drop(value.string(MAX_DESCRIPTION_BYTES)?),
            "strict" => drop(value.boolean()?),
            _ => {
                Shape::Object.check(&value)?;
                value.check_complexity(MAX_TREE_VALUES)?;
                schema = Some(value.exact_tree()?);
            }
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    match format.ok_or_else(|| missing("type"))? {
        "json_object" => body.options.constrain(node.path(), ConstraintSpec::JsonObject),
        "json_schema" if !is_named => Err(missing("name")),
        "json_schema" => {
            let schema = schema.ok_or_else(|| missing("schema"))?;
            body.options.constrain(node.path(), ConstraintSpec::JsonSchema(schema))
        }
        _ => Ok(()),
    }
}
