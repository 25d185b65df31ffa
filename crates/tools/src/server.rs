//! A server of tools: an MCP server or HTTP endpoints under one label, each tool behind its gate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use throng_api::answer::CallFailure;
use throng_api::responses::ToolDefinition;

use crate::bound_text::bound;
use crate::config::LimitsConfig;
use crate::error::ToolsError;
use crate::gate::Gate;
use crate::http_tool::HttpTool;
use crate::mcp::McpServer;
use crate::pins::Pins;

/// Name of the gate for lists of tools; no tool can have it, as it has spaces.
const LISTING: &str = "list of tools";
/// Number of gates above which unused ones are dropped: requests may name any tools of their servers.
const MAX_GATES: usize = 1_024;

/// A server of tools.
#[derive(Debug)]
pub(crate) struct ToolServer {
    pub label: String,
    kind: Kind,
    /// The tools that may be called; `None`: all.
    allowed: Option<Vec<String>>,
    /// Whether each call waits for the client's approval.
    requires_approval: bool,
    gates: Arc<Gates>,
}

#[derive(Debug)]
enum Kind {
    /// An MCP server, and its approved descriptions if the operator names it.
    Mcp(McpServer, Option<Arc<Pins>>),
    /// HTTP endpoints, whose descriptions are the operator's own.
    Http(Vec<HttpTool>),
}

/// The gates of tools by name, created at the first call.
#[derive(Debug)]
pub(crate) struct Gates {
    limits: BTreeMap<String, LimitsConfig>,
    default: LimitsConfig,
    gates: Mutex<BTreeMap<String, Arc<Gate>>>,
}

impl Gates {
    /// Gates with `limits` for these tools and `default` for others.
    pub fn new(limits: BTreeMap<String, LimitsConfig>, default: LimitsConfig) -> Self {
        Self { limits, default, gates: Mutex::default() }
    }

    fn limits(&self, name: &str) -> LimitsConfig {
        self.limits.get(name).copied().unwrap_or(self.default)
    }

    fn gate(&self, name: &str) -> Arc<Gate> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if gates.len() >= MAX_GATES && !gates.contains_key(name) {
            // Those that nobody waits at are made again when they are needed.
            gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        gates.entry(name.to_owned()).or_insert_with(|| Arc::new(Gate::new(self.limits(name)))).clone()
    }
}

impl ToolServer {
    pub fn of_mcp(
        server: (&str, McpServer),
        pins: Option<Arc<Pins>>,
        allowed: Option<Vec<String>>,
        requires_approval: bool,
        gates: Arc<Gates>,
    ) -> Self {
        let (label, server) = server;
        Self { label: label.to_owned(), kind: Kind::Mcp(server, pins), allowed, requires_approval, gates }
    }

    pub fn of_http(label: &str, tools: Vec<HttpTool>, gates: Arc<Gates>) -> Self {
        let kind = Kind::Http(tools);
        Self { label: label.to_owned(), kind, allowed: None, requires_approval: false, gates }
    }

    /// Whether the operator names it, rather than a request.
    pub fn is_operators(&self) -> bool {
        !matches!(self.kind, Kind::Mcp(_, None))
    }

    /// Whether its descriptions are approved by hash.
    pub fn is_pinned(&self) -> bool {
        matches!(self.kind, Kind::Mcp(_, Some(_)))
    }

    /// Whether the operator requires the client's approval for each call of a tool.
    pub fn requires_approval(&self, tool: &str) -> bool {
        let is_it = |http: &HttpTool| http.requires_approval && http.definition.name == tool;
        self.requires_approval || matches!(&self.kind, Kind::Http(tools) if tools.iter().any(is_it))
    }

    /// Tools of the server that may be called.
    ///
    /// # Errors
    /// [`ToolsError::Unreachable`], and [`ToolsError::Unapproved`] where a description has changed.
    pub async fn tools(&self) -> Result<Vec<ToolDefinition>, ToolsError> {
        let mut tools = match &self.kind {
            Kind::Http(tools) => tools.iter().map(|tool| tool.definition.clone()).collect(),
            Kind::Mcp(server, None) => self.listed(server).await?,
            Kind::Mcp(server, Some(pins)) => pins.approved(&self.label, self.listed(server).await?)?,
        };
        if let Some(allowed) = &self.allowed {
            tools.retain(|tool| allowed.contains(&tool.name));
        }
        Ok(tools)
    }

    /// Tools of the server with their descriptions, approved or not.
    ///
    /// # Errors
    /// [`ToolsError::Unreachable`].
    pub async fn described(&self) -> Result<Vec<ToolDefinition>, ToolsError> {
        match &self.kind {
            Kind::Http(_) => self.tools().await,
            Kind::Mcp(server, _) => self.listed(server).await,
        }
    }

    /// The tools of an MCP server, listed within the bounds of one call.
    async fn listed(&self, server: &McpServer) -> Result<Vec<ToolDefinition>, ToolsError> {
        let listed = self.gates.gate(LISTING).run(LISTING, server.tools()).await;
        listed.map_err(|error| ToolsError::unreachable(&self.label, error))
    }

    /// Calls a tool with arguments as the model wrote them.
    ///
    /// # Errors
    /// [`CallFailure`].
    pub async fn call(&self, tool: &str, arguments: &str) -> Result<String, CallFailure> {
        let arguments = match arguments.trim() {
            "" => Map::new(),
            text => match serde_json::from_str(text) {
                Ok(Value::Object(members)) => members,
                _ => return Err(CallFailure::unanswered(400, "The arguments are no JSON object.")),
            },
        };
        let max_bytes = self.gates.limits(tool).max_result_bytes;
        let gate = self.gates.gate(tool);
        let called = gate.run(tool, async {
            match &self.kind {
                Kind::Mcp(server, _) => server.call(tool, arguments).await,
                Kind::Http(tools) => match tools.iter().find(|http| http.definition.name == tool) {
                    Some(http) => http.call(arguments).await,
                    None => Err(CallFailure::unanswered(404, format!("There is no tool '{tool}'."))),
                },
            }
        });
        match called.await {
            Ok(text) => Ok(bound(text, max_bytes)),
            Err(failure) => Err(bound_failure(failure, max_bytes)),
        }
    }
}

/// A failure whose message or output has at most `max_bytes`.
fn bound_failure(failure: CallFailure, max_bytes: usize) -> CallFailure {
    match failure {
        CallFailure::Execution { ref content } if content.to_string().len() > max_bytes => {
            CallFailure::Execution { content: bound(failure.to_string(), max_bytes).into() }
        }
        CallFailure::Execution { content } => CallFailure::Execution { content },
        CallFailure::Protocol { code, message } => {
            CallFailure::Protocol { code, message: bound(message, max_bytes) }
        }
        CallFailure::Unanswered { status, message } => {
            CallFailure::unanswered(status, bound(message, max_bytes))
        }
    }
}
