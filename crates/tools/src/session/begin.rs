//! The beginning of a response that uses tools: its servers list them, and calls run that the client has
//! approved.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use throng_api::ApiError;
use throng_api::answer::{Choice, Tally, TokenCounts};
use throng_api::responses::{
    CreateRequest, Item, McpApprovalRequest, McpCall, McpListTools, McpServer, McpStatus, ServedTools,
    ServerTool, ToolDefinition, ToolFilter, TurnContext,
};

use super::call::PendingCall;
use super::{Route, Session, size_of};
use crate::definition::check;
use crate::error::ToolsError;
use crate::server::ToolServer;
use crate::toolbox::Toolbox;

/// Maximum number of calls that one request approves.
const MAX_APPROVED: usize = 64;

impl Session {
    /// Lists the tools of a request's servers. `before` is the kept part of its conversation. Returns also
    /// the calls that the request approves: they run before the model's first turn.
    ///
    /// # Errors
    /// 4xx that names the server that may not be used, has no approved tools or does not answer. For a stream
    /// the last case is [`Session::failure`] instead: as in OpenAI's API, its events name the server.
    pub async fn begin(
        toolbox: &Toolbox,
        request: CreateRequest,
        before: &TurnContext,
    ) -> Result<(Self, Vec<PendingCall>), ApiError> {
        let items: Vec<&Item> = before.history.iter().chain(request.items(before)).collect();
        let listed = join_all(request.servers().iter().map(|server| list(toolbox, server, &items))).await;
        let mut offer = Offer::default();
        for (server, listed) in request.servers().iter().zip(listed) {
            match listed {
                Ok(listed) => offer.add(server, listed),
                Err(error) if error.is_tool_server_unavailable() && request.is_streaming() => {
                    offer.add_failed(server, error);
                }
                Err(error) => return Err(error),
            }
        }
        let Offer { routes, mut served, failure } = offer;
        let max_calls = request.max_tool_calls().unwrap_or(u32::MAX).min(toolbox.max_calls);
        let approved = match failure {
            None => approved_calls(&items, request.items(before))?,
            Some(_) => Vec::new(),
        };
        let pending = pending_calls(&routes, &approved, max_calls)?;
        let (n_calls, first_call) = (approved.len() as u32, served.first.len());
        served.first.extend(approved.into_iter().map(started));
        served.is_exhausted = n_calls >= max_calls;
        let n_bytes = served.first.iter().map(size_of).sum();
        let context = TurnContext { served: Some(served), ..before.clone() };
        let session = Self {
            request,
            context,
            routes,
            max_calls,
            max_turns: toolbox.max_turns.max(1),
            n_calls,
            n_bytes,
            turn: Choice::default(),
            first_call,
            tally: Tally::default(),
            before: TokenCounts::default(),
            end: None,
            is_last: false,
            failure,
        };
        Ok((session, pending))
    }
}

/// Tools of all servers that the model is offered.
#[derive(Debug, Default)]
struct Offer {
    routes: BTreeMap<String, Route>,
    served: ServedTools,
    failure: Option<ApiError>,
}

impl Offer {
    fn add(&mut self, server: &McpServer, listed: Listed) {
        let Listed { source, tools, is_new } = listed;
        if is_new {
            self.served.first.push(list_item(server, tools.clone(), None));
        }
        for definition in tools {
            let tool = server_tool(server, &source, definition);
            let (server, needs_approval) = (source.clone(), tool.needs_approval);
            let route = Route { server, tool: tool.name.clone(), needs_approval };
            self.routes.insert(tool.model_name(), route);
            self.served.tools.push(tool);
        }
    }

    fn add_failed(&mut self, server: &McpServer, error: ApiError) {
        self.served.first.push(list_item(server, Vec::new(), Some(error.message().to_owned())));
        self.failure.get_or_insert(error);
    }
}

/// A server with its tools that the request may use.
struct Listed {
    source: Arc<ToolServer>,
    tools: Vec<ToolDefinition>,
    /// Whether the response begins with the list: the conversation has none, or another one.
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
    // The model is given what the client has seen of its own server, unless the request names further tools.
    let seen = known.filter(|list| !source.is_operators() && has_all_names(list, server.allowed.as_ref()));
    let mut tools = match seen {
        Some(list) => {
            list.tools.iter().try_for_each(check).map_err(|fault| list_refused(server, &fault))?;
            list.tools.clone()
        }
        None => source.tools().await.map_err(|error| api_error(server, "server_label", &error))?,
    };
    if let Some(allowed) = &server.allowed {
        tools.retain(|tool| allowed.matches(&tool.name, tool.is_read_only()));
    }
    let is_new = seen.is_none() && known.is_none_or(|list| list.tools != tools);
    Ok(Listed { source, tools, is_new })
}

/// Whether a list has each tool that a filter names. It may lack some if an earlier request allowed fewer.
fn has_all_names(list: &McpListTools, filter: Option<&ToolFilter>) -> bool {
    let names = filter.and_then(|filter| filter.names.as_ref());
    names.into_iter().flatten().all(|name| list.tools.iter().any(|tool| tool.name == *name))
}

/// Refusal of a list of tools that the client has sent.
fn list_refused(server: &McpServer, fault: &str) -> ApiError {
    let reason = format!("The 'mcp_list_tools' of '{}' is refused: {fault}.", server.label);
    ApiError::invalid_value("input", reason)
}

fn api_error(server: &McpServer, key: &str, error: &ToolsError) -> ApiError {
    let param = format!("{}.{key}", server.path);
    match error {
        ToolsError::Forbidden(reason) => ApiError::invalid_value(param, reason.as_str()),
        ToolsError::Unapproved { .. } => ApiError::tools_not_approved(param, &error.to_string()),
        _ => ApiError::tool_server_unavailable(param, &error.to_string()),
    }
}

fn list_item(server: &McpServer, tools: Vec<ToolDefinition>, error: Option<String>) -> Item {
    let (id, server_label) = (String::new(), server.label.clone());
    Item::McpListTools(McpListTools { id, server_label, tools, error })
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

/// The calls that the items of a request approve and that have not run.
///
/// # Errors
/// 400 for approvals of calls that are not in the conversation, and for more than [`MAX_APPROVED`].
fn approved_calls<'a>(
    items: &[&Item],
    input: impl Iterator<Item = &'a Item>,
) -> Result<Vec<McpApprovalRequest>, ApiError> {
    let mut approved: Vec<McpApprovalRequest> = Vec::new();
    for item in input {
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
