//! The bodies of `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use std::collections::BTreeMap;

use throng_core::fleet::overload::ServiceClass;

use super::fields::{Body, FIELDS};
use super::history::messages_of;
use super::input::{Entry, name_items};
use super::item::{Ids, Item};
use super::mcp_tool::{McpServer, ServerTool};
use super::socket::{MESSAGE_FIELDS, MessageHead};
use super::state_parameters::{ServedTools, TurnContext};
use super::tools::Tools;
use super::view::{Echo, ResponseView};
use crate::dialect::Request;
use crate::error::ApiError;
use crate::field::{Bound, Part, ReadOptions, read_body};
use crate::ignored::IgnoredParameters;
use crate::spec::{
    ChatInput, ContentPart, Conversation, GenerationOptions, GenerationSpec, Input, Message, ParamNames, Role,
};

/// A request that was read and checked, except for the kept history of its conversation.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    pub(super) body: Body,
}

impl CreateRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(bytes: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (body, ignored) = Self::read(bytes, &mut [], options)?;
        Self::check(body, ignored, options)
    }

    /// Reads and checks a message of a WebSocket connection, whose response is always streamed.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse_message(bytes: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut head = MessageHead::default();
        let bound = &mut Bound { fields: MESSAGE_FIELDS, target: &mut head };
        let (mut body, ignored) = Self::read(bytes, &mut [bound], options)?;
        if body.background == Some(true) {
            let reason =
                "Background mode is for POST /v1/responses; a WebSocket connection answers by events.";
            return Err(ApiError::unsupported_parameter("background", reason));
        }
        body.options.stream = Some(true);
        Self::check(body, ignored, options)
    }

    fn check(mut body: Body, ignored: IgnoredParameters, options: &ReadOptions) -> Result<Self, ApiError> {
        if body.options.model.is_none() {
            return Err(ApiError::missing_required_parameter("model"));
        }
        body.options.settle(ignored, options);
        body.options.check_together(false)?;
        body.options.logprobs = body.includes_logprobs.then(|| body.top_logprobs.unwrap_or(0));
        if body.background == Some(true) && body.store == Some(false) {
            let reason = "Background mode requires 'store' to be true.";
            return Err(ApiError::invalid_value("background", reason));
        }
        Ok(Self { body })
    }

    /// Reads the body of a request to count tokens, which needs no model in this step.
    fn read(
        bytes: &[u8],
        beside: &mut [&mut dyn Part],
        options: &ReadOptions,
    ) -> Result<(Body, IgnoredParameters), ApiError> {
        let mut body = Body::default();
        body.options.names =
            ParamNames { prompt: "input", max_tokens: "max_output_tokens", logprobs: "top_logprobs" };
        body.options.thinks_if_it_can = true;
        body.options.may_end_with_context = true;
        let bound = &mut Bound { fields: FIELDS, target: &mut body };
        let mut parts: Vec<&mut dyn Part> = vec![bound];
        parts.extend(beside.iter_mut().map(|part| &mut **part as &mut dyn Part));
        let ignored = read_body(bytes, &mut parts, options)?;
        if body.previous_response_id.is_some() && body.conversation.is_some() {
            return Err(ApiError::mutually_exclusive("previous_response_id", "conversation"));
        }
        let has_input = body.input.as_ref().is_some_and(|input| !input.is_empty());
        if !has_input && body.previous_response_id.is_none() && body.conversation.is_none() {
            return Err(ApiError::missing_required_parameter("input"));
        }
        Ok((body, ignored))
    }

    /// Reads the request to count the tokens of an input.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse_to_count(bytes: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (mut body, ignored) = Self::read(bytes, &mut [], options)?;
        body.options.ignored = ignored;
        Ok(Self { body })
    }

    /// The input whose tokens are counted, behind what is kept of its conversation.
    ///
    /// # Errors
    /// Errors of [`Self::into_request`].
    pub fn into_counted(self, context: &TurnContext) -> Result<CountedInput, ApiError> {
        let Parts { mut options, chat, .. } = self.into_parts(context)?;
        let model = options.model.take();
        Ok(CountedInput { model, conversation: chat.conversation, ignored: options.ignored })
    }

    /// The request after the kept history of its conversation, and its own items with their ids.
    ///
    /// # Errors
    /// A 400 for items that do not belong together, and for references to items that are not kept.
    pub fn into_request(self, context: &TurnContext) -> Result<(Request, Vec<Item>), ApiError> {
        let parts = self.into_parts(context)?;
        let mut options = parts.options;
        if context.is_warmup {
            // Its prompt is computed, so that its prefix is in the cache; the token that comes of it is not shown.
            options.max_tokens = Some(1);
        }
        let spec = GenerationSpec { options, input: Input::Chat(Box::new(parts.chat)) };
        Ok((Request { spec, view: Box::new(parts.view) }, parts.items))
    }

    /// The servers whose tools the gateway is to call.
    pub fn servers(&self) -> &[McpServer] {
        &self.body.tools.servers
    }

    /// The most calls of such tools that it allows.
    pub fn max_tool_calls(&self) -> Option<u32> {
        self.body.max_tool_calls.map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// The most output tokens that it allows.
    pub fn max_output_tokens(&self) -> Option<u64> {
        self.body.options.max_tokens.and_then(|n| u64::try_from(n).ok())
    }

    /// Items of the input. References to items that `context` does not have are left out; they are refused
    /// with the whole request.
    pub fn items<'a>(&'a self, context: &'a TurnContext) -> impl Iterator<Item = &'a Item> {
        self.body.input.iter().flatten().filter_map(|entry| match entry {
            Entry::Item(item) => Some(item),
            Entry::Reference(id) => context.find(id).ok(),
        })
    }

    /// Whether the answer is a stream of events.
    pub fn is_streaming(&self) -> bool {
        self.body.options.is_streaming()
    }

    /// Class of service that the body names.
    pub fn service_class(&self) -> Option<ServiceClass> {
        self.body.options.service_class
    }

    /// User of the client's service for whom the request is made.
    pub fn user(&self) -> Option<&str> {
        self.body.user.as_deref().or(self.body.safety_identifier.as_deref())
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        self.body.options.model()
    }

    pub(super) fn into_parts(self, context: &TurnContext) -> Result<Parts, ApiError> {
        let mut body = self.body;
        let ids = context.ids.clone().unwrap_or_default();
        let mut items = Vec::new();
        for entry in body.input.take().unwrap_or_default() {
            items.push(match entry {
                Entry::Item(item) => item,
                Entry::Reference(id) => context.find(&id)?.clone(),
            });
        }
        name_items(&mut items, &ids);
        let mut tools = std::mem::take(&mut body.tools);
        let no_tools = ServedTools::default();
        let served = context.served.as_ref().unwrap_or(&no_tools);
        tools.add_served(&served.tools, context.served.is_some())?;
        if served.turn > 0 {
            body.tool_choice.relax();
        }
        body.tool_choice.never |= served.is_exhausted;
        body.tool_choice.apply(&mut tools.offered)?;
        if let Some(max_tokens) = &mut body.options.max_tokens {
            *max_tokens = max_tokens.saturating_sub_unsigned(served.n_output_tokens).max(1);
        }
        let before = context.history.iter().chain(&items);
        let mut messages = messages_of(before.chain(&served.first).chain(&served.turns))?;
        if let Some(instructions) = &body.instructions {
            let text = vec![ContentPart::Text(instructions.clone())];
            messages.insert(0, Message::new(Role::System, text));
        }
        if messages.is_empty() {
            return Err(ApiError::empty_array("input"));
        }
        let mut options = std::mem::take(&mut body.options);
        options.seed = options.seed.or(context.seed);
        options.user = body.user.clone().or_else(|| body.safety_identifier.clone());
        options.prompt_cache_key = body.prompt_cache_key.clone().filter(|key| !key.is_empty());
        let view = body.view(&options, &tools, ids, context);
        let mut chat = body.into_chat(messages, tools);
        chat.conversation.trail.clone_from(&context.trail);
        Ok(Parts { chat, options, view, items })
    }
}

/// Parts of a request that are read separately.
pub(super) struct Parts {
    pub options: GenerationOptions,
    pub chat: ChatInput,
    pub view: ResponseView,
    pub items: Vec<Item>,
}

impl Body {
    fn view(
        &mut self,
        options: &GenerationOptions,
        tools: &Tools,
        ids: Ids,
        context: &TurnContext,
    ) -> ResponseView {
        let echo = Echo {
            background: self.background.unwrap_or(false),
            conversation: self.conversation.take(),
            instructions: self.instructions.take(),
            max_output_tokens: options.max_tokens,
            max_tool_calls: self.max_tool_calls,
            metadata: self.metadata.take(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id.take(),
            prompt_cache_key: self.prompt_cache_key.take(),
            effort: self.effort,
            summary: self.summary,
            safety_identifier: self.safety_identifier.take(),
            service_tier: self.service_tier,
            store: context.is_storing,
            format: self.format.take(),
            verbosity: self.verbosity,
            tool_choice: self.tool_choice.shown.take(),
            tools: tools.shown.clone(),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            presence_penalty: options.presence_penalty.unwrap_or(0.0),
            frequency_penalty: options.frequency_penalty.unwrap_or(0.0),
            truncation: if self.truncates { "auto" } else { "disabled" },
            user: self.user.take(),
        };
        ResponseView {
            ids,
            echo,
            custom_tools: tools.custom.clone(),
            namespaces: tools.namespaces.clone(),
            shows_summary: self.summary.is_some(),
            shows_encrypted: self.includes_encrypted,
            shows_logprobs: self.includes_logprobs,
            slot: context.slot.clone(),
            call_ids: context.call_ids.clone(),
            framing: context.framing.clone(),
            is_warmup: context.is_warmup,
            first: context.served.as_ref().map_or_else(Vec::new, |served| served.first.clone()),
            served_tools: served_tools(context),
        }
    }

    fn into_chat(self, messages: Vec<Message>, tools: Tools) -> ChatInput {
        let choice = self.tool_choice;
        let conversation = Conversation {
            messages,
            tools: tools.offered,
            calls_no_tools: choice.never,
            reasoning_effort: self.effort,
            enable_thinking: (self.effort == Some("none")).then_some(false),
            may_drop_turns: self.truncates,
            budget: self.budget,
            ..Conversation::default()
        };
        ChatInput {
            calls_tools: !conversation.tools.is_empty() && !choice.never,
            must_call: choice.must,
            chosen_function: choice.name,
            only_first_call: self.parallel_tool_calls == Some(false),
            shows_reasoning: true,
            conversation,
        }
    }
}

/// The tools that the server calls, by their names for the model.
fn served_tools(context: &TurnContext) -> BTreeMap<String, ServerTool> {
    let tools = context.served.iter().flat_map(|served| &served.tools);
    tools.map(|tool| (tool.model_name(), tool.clone())).collect()
}

/// A request to count the tokens of an input.
#[derive(Debug)]
pub struct CountedInput {
    /// The model's name, if there is one.
    pub model: Option<String>,
    /// Input of its chat template.
    pub conversation: Conversation,
    /// Parameters without effect.
    pub ignored: IgnoredParameters,
}
