//! Converts requests to and from their wire form. Does not know events and sockets.

use throng_text::AnswerFormat;
use throng_text::ToolCallFormat;
use throng_text::grammar::{CallableTool, ConstraintSpec, ToolCallSpec};

use super::{Continuations, PrefixHolder, ReplicaRequest};
use crate::constraint::{ConstraintSource, ReasoningBefore, ReasoningTokens};

/// Converts a request for sending.
pub fn sent_request(request: &ReplicaRequest) -> throng_wire::Generate {
    let (n, resumed) = match &request.continuations {
        Continuations::New { n } => (*n, Vec::new()),
        Continuations::Resumed(resumed) => (0, resumed.clone()),
    };
    let source = request.constraint.as_ref().and_then(|form| form.source.as_deref());
    let contents = request.media.iter().flat_map(|media| &media.contents);
    throng_wire::Generate {
        tenant: request.tenant.clone(),
        cache_salt: request.cache_salt.clone(),
        cache_marks: request.cache_marks.clone(),
        priority: request.priority,
        prompt: request.prompt.clone(),
        media: request.media.clone(),
        contents: contents.map(|content| content.layout().clone()).collect(),
        sampling: request.sampling.clone(),
        constraint: source.map(sent_constraint),
        adapter: request.adapter.as_ref().map(|adapter| adapter.name.to_string()),
        n,
        resumed,
        holder: match &request.holder {
            Some(PrefixHolder::Worker(holder)) => Some(holder.clone()),
            Some(PrefixHolder::Peer(_)) | None => None,
        },
    }
}

/// Converts a received request without its constraint and its adapter, which the receiver compiles and
/// loads.
pub fn received_request(request: throng_wire::Generate) -> ReplicaRequest {
    let continuations = if request.resumed.is_empty() {
        Continuations::New { n: request.n }
    } else {
        Continuations::Resumed(request.resumed)
    };
    ReplicaRequest {
        tenant: request.tenant,
        cache_salt: request.cache_salt,
        session: None,
        cache_marks: request.cache_marks,
        priority: request.priority,
        prompt: request.prompt,
        media: request.media,
        sampling: request.sampling,
        constraint: None,
        adapter: None,
        continuations,
        holder: request.holder.map(PrefixHolder::Worker),
    }
}

fn sent_constraint(source: &ConstraintSource) -> throng_wire::Constraint {
    let form = source.form.as_ref().map(|form| match form.clone() {
        ConstraintSpec::JsonObject => throng_wire::Form::JsonObject,
        ConstraintSpec::JsonSchema(schema) => throng_wire::Form::JsonSchema(schema),
        ConstraintSpec::Regex(regex) => throng_wire::Form::Regex(regex),
        ConstraintSpec::Choice(choices) => throng_wire::Form::Choice(choices),
        ConstraintSpec::Lark(grammar) => throng_wire::Form::Lark(grammar),
        ConstraintSpec::Gbnf(grammar) => throng_wire::Form::Gbnf(grammar),
        ConstraintSpec::StructuralTag(tag) => throng_wire::Form::StructuralTag(tag),
        ConstraintSpec::ToolCalls(calls) => throng_wire::Form::ToolCalls(throng_wire::ToolCalls {
            format: calls.format.name().to_owned(),
            tools: calls.tools.into_iter().map(|tool| (tool.name, tool.arguments)).collect(),
            must_call: calls.must_call,
            only_one: calls.only_one,
        }),
    });
    let reasoning = source.reasoning.clone().map(|before| {
        let ReasoningBefore { tokens, is_open, budget } = before;
        let ReasoningTokens { open, close, lead, direct } = tokens;
        throng_wire::Reasoning { open, close, lead, direct, is_open, budget }
    });
    throng_wire::Constraint { form, reasoning }
}

/// Converts a received constraint for a model with this answer format; `None` for tool calls of an unknown
/// format.
pub fn received_constraint(
    constraint: throng_wire::Constraint,
    format: &AnswerFormat,
) -> Option<ConstraintSource> {
    let form = match constraint.form {
        None => None,
        Some(throng_wire::Form::JsonObject) => Some(ConstraintSpec::JsonObject),
        Some(throng_wire::Form::JsonSchema(schema)) => Some(ConstraintSpec::JsonSchema(schema)),
        Some(throng_wire::Form::Regex(regex)) => Some(ConstraintSpec::Regex(regex)),
        Some(throng_wire::Form::Choice(choices)) => Some(ConstraintSpec::Choice(choices)),
        Some(throng_wire::Form::Lark(grammar)) => Some(ConstraintSpec::Lark(grammar)),
        Some(throng_wire::Form::Gbnf(grammar)) => Some(ConstraintSpec::Gbnf(grammar)),
        Some(throng_wire::Form::StructuralTag(tag)) => Some(ConstraintSpec::StructuralTag(tag)),
        Some(throng_wire::Form::ToolCalls(calls)) => Some(ConstraintSpec::ToolCalls(ToolCallSpec {
            format: ToolCallFormat::named(&calls.format)?,
            tools: calls
                .tools
                .into_iter()
                .map(|(name, arguments)| CallableTool { name, arguments })
                .collect(),
            must_call: calls.must_call,
            only_one: calls.only_one,
            control: format.control_markers().to_vec(),
        })),
    };
    let reasoning = constraint.reasoning.map(|reasoning| {
        let throng_wire::Reasoning { open, close, lead, direct, is_open, budget } = reasoning;
        ReasoningBefore { tokens: ReasoningTokens { open, close, lead, direct }, is_open, budget }
    });
    Some(ConstraintSource { form, reasoning })
}
