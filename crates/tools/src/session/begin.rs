//! The beginning of a response that uses tools: its servers list them, and calls run that the client has
//! approved.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use throng_api::ApiError;
use throng_api::answer::{Tally, TokenCounts};
use throng_api::responses::{
    CreateRequest, Item, McpApprovalRequest, McpCall, McpListTools, McpListedTool, McpServer, McpStatus,
    ServedTools, ServerTool, TurnContext,
};

use super::call::PendingCall;
use super::turn::TurnParts;
use super::{Route, Session};
use crate::definition::ToolDefinition;
use crate::error::ToolsError;
use crate::server::ToolServer;
use crate::toolbox::Toolbox;

/// Most calls that one request approves.
const MAX_APPROVED: usize = 64;

impl Session {
    /// Lists the tools of a request's servers. `before` is what was kept of its conversation. Returns also
    /// the calls that the request approves: they run before the model's first turn.
    ///
    /// # Errors
    /// 4xx that names the server which may not be used, has no approved tools or does not answer.
    pub async fn begin(
        toolbox: &Toolbox,
        request: CreateRequest,
        before: &TurnContext,
    ) -> Result<(Self, Vec<PendingCall>), ApiError> {
        let mut context = before.clone();
        let items: Vec<&Item> = before.history.iter().chain(request.items()).collect();
        let listed = join_all(request.servers().iter().map(|server| list(toolbox, server, &items))).await;
        let (mut routes, mut served) = (BTreeMap::new(), ServedTools::default());
        for (server, listed) in request.servers().iter().zip(listed) {
            let Listed { source, tools, is_new } = listed?;
            if is_new {
                served.first.push(Item::McpListTools(list_item(server, &tools)));
            }
            for definition in tools {
                let tool = server_tool(server, &source, definition);
                let (server, needs_approval) = (source.clone(), tool.needs_approval);
                let route = Route { server, tool: tool.name.clone(), needs_approval };
                routes.insert(tool.model_name(), route);
                served.tools.push(tool);
            }
        }
        let max_calls = request.max_tool_calls().unwrap_or(u32::MAX).min(toolbox.max_calls);
        let approved = approved_calls(&items, &request)?;
        let pending = pending_calls(&routes, &approved, max_calls)?;
        let (n_calls, first_call) = (approved.len() as u32, served.first.len());
        served.first.extend(approved.into_iter().map(started));
        served.is_exhausted = n_calls >= max_calls;
        context.served = Some(served);
        let session = Self {
            request,
            context,
            routes,
            max_calls,
            max_turns: toolbox.max_turns.max(1),
            n_calls,
            turn: TurnParts::default(),
            first_call,
            tally: Tally::default(),
            before: TokenCounts::default(),
            end: None,
            is_last: false,
        };
        Ok((session, pending))
    }
}

/// A server with its tools that the request may use.
struct Listed {
    source: Arc<ToolServer>,
    tools: Vec<ToolDefinition>,
    /// Whether the conversation does not have the list yet.
    is_new: bool,
}

async fn list(toolbox: &Toolbox, server: &McpServer, items: &[&Item]) -> Result<Listed, ApiError> {
    let source = match &server.url {
        Some(url) => {
            let hosted = toolbox.hosted(&server.label, url, &server.headers);
            Arc::new(hosted.map_err(|error| api_error(server, "server_url", &error))?)
        }
        None => {
            let found = toolbox.server(&server.label).cloned();
            let reason = "There is no tool server of this name; others are named by 'server_url'.";
            found.ok_or_else(|| ApiError::invalid_value(format!("{}.server_label", server.path), reason))?
        }
    };
    let known = items.iter().rev().find_map(|item| match item {
        Item::McpListTools(list) if list.server_label == server.label && list.error.is_none() => Some(list),
        _ => None,
    });
    let mut tools = match known {
        // What the client has seen of its own server is what the model is told.
        Some(list) if !source.is_operators() => list.tools.iter().map(definition_of).collect(),
        _ => source.tools().await.map_err(|error| api_error(server, "server_label", &error))?,
    };
    if let Some(allowed) = &server.allowed {
        tools.retain(|tool| allowed.matches(&tool.name, tool.is_read_only()));
    }
    let is_new = known.is_none_or(|list| list.tools.len() != tools.len());
    Ok(Listed { source, tools, is_new })
}

fn api_error(server: &McpServer, key: &str, error: &ToolsError) -> ApiError {
    let param = format!("{}.{key}", server.path);
    match error {
        ToolsError::Forbidden(reason) => ApiError::invalid_value(param, reason.as_str()),
        ToolsError::Unapproved { .. } => ApiError::tools_not_approved(param, &error.to_string()),
        _ => ApiError::tool_server_unavailable(param, &error.to_string()),
    }
}

fn definition_of(listed: &McpListedTool) -> ToolDefinition {
    let McpListedTool { name, description, input_schema, annotations } = listed.clone();
    ToolDefinition { name, description, input_schema, annotations }
}

fn list_item(server: &McpServer, tools: &[ToolDefinition]) -> McpListTools {
    let listed = |tool: &ToolDefinition| {
        let ToolDefinition { name, description, input_schema, annotations } = tool.clone();
        McpListedTool { name, description, input_schema, annotations }
    };
    let tools = tools.iter().map(listed).collect();
    McpListTools { id: String::new(), server_label: server.label.clone(), tools, error: None }
}

fn server_tool(server: &McpServer, source: &ToolServer, definition: ToolDefinition) -> ServerTool {
    let is_read_only = definition.is_read_only();
    let ToolDefinition { name, description, input_schema, .. } = definition;
    let needs_approval = source.requires_approval(&name)
        || match &server.approval {
            Some(approval) => approval.is_needed(&name, is_read_only),
            // The operator vouches for its own servers; OpenAI's API asks about others.
            None => !source.is_operators(),
        };
    ServerTool { server_label: server.label.clone(), name, description, input_schema, needs_approval }
}

/// The calls that a request approves, and that have not run.
fn approved_calls(items: &[&Item], request: &CreateRequest) -> Result<Vec<McpApprovalRequest>, ApiError> {
    let mut approved: Vec<McpApprovalRequest> = Vec::new();
    for item in request.items() {
        let Item::McpApprovalResponse(response) = item else { continue };
        let id = &response.approval_request_id;
        let asked = items.iter().find_map(|item| match item {
            Item::McpApprovalRequest(call) if call.id == *id => Some(call),
            _ => None,
        });
        let asked = asked.ok_or_else(|| ApiError::approval_request_not_found(id))?;
        let has_run = items
            .iter()
            .any(|item| matches!(item, Item::McpCall(call) if call.approval_request_id.as_ref() == Some(id)));
        if response.approve && !has_run && approved.iter().all(|other| other.id != *id) {
            approved.push(asked.clone());
        }
    }
    if approved.len() > MAX_APPROVED {
        return Err(ApiError::array_above_max_length("input", MAX_APPROVED));
    }
    Ok(approved)
}

/// The calls of approved tools.
///
/// # Errors
/// 400 for a call of a tool that the request does not offer.
fn pending_calls(
    routes: &BTreeMap<String, Route>,
    approved: &[McpApprovalRequest],
    max_calls: u32,
) -> Result<Vec<PendingCall>, ApiError> {
    let pending = |(call_idx, call): (u32, &McpApprovalRequest)| {
        let route = routes.values().find(|r| r.server.label == call.server_label && r.tool == call.name);
        let route =
            route.ok_or_else(|| ApiError::approved_tool_not_offered(&call.server_label, &call.name))?;
        Ok(PendingCall {
            call_idx,
            server: route.server.clone(),
            tool: route.tool.clone(),
            arguments: call.arguments.clone(),
            refused_above: (call_idx >= max_calls).then_some(max_calls),
        })
    };
    (0..).zip(approved).map(pending).collect()
}

/// The item of an approved call before it has ended.
fn started(approved: McpApprovalRequest) -> Item {
    let McpApprovalRequest { id: request, server_label, name, arguments } = approved;
    Item::McpCall(McpCall {
        id: String::new(),
        server_label,
        name,
        arguments,
        approval_request_id: Some(request),
        output: None,
        error: None,
        status: McpStatus::InProgress,
    })
}
