//! Servers of tools that a request names, and their tools as offered to the model. Sends no requests.

use serde_json::{Value, json};
use throng_core::secret::Secret;

use crate::error::ApiError;
use crate::json::{JsonType, Node};
use crate::spec::{MAX_NAME_BYTES, MAX_TOOLS};

/// Maximum bytes of the label of a server.
pub const MAX_LABEL_BYTES: usize = 64;
/// Maximum number of headers that a request gives for a server.
const MAX_HEADERS: usize = 32;
/// Maximum bytes of a URL, a header or a token.
const MAX_TEXT_BYTES: usize = 8 << 10;
const KEYS: &[&str] = &[
    "type",
    "server_label",
    "server_url",
    "headers",
    "authorization",
    "allowed_tools",
    "require_approval",
    "server_description",
    "allowed_callers",
    "defer_loading",
    "connector_id",
    "tunnel_id",
];

/// A server of tools that a request names.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// Label of the server in items and in the names of tools.
    pub label: String,
    /// The URL of the server; without one it is a server of the operator.
    pub url: Option<String>,
    /// Headers of requests to the server, `authorization` among them.
    pub headers: Vec<(String, Secret)>,
    /// The tools that the model may call; `None` for all.
    pub allowed: Option<ToolFilter>,
    /// The calls that wait for approval; `None` for the default of the server's kind.
    pub approval: Option<Approval>,
    /// The path of the tool in the request, for errors.
    pub path: String,
}

/// A filter of a server's tools. A tool matches if it meets every condition that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    /// Names of the tools.
    pub names: Option<Vec<String>>,
    /// Whether the server declares that the tools change nothing.
    pub is_read_only: Option<bool>,
}

/// The calls that wait for the client's approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// Approval for all calls.
    Always,
    /// Approval for no call.
    Never,
    /// Calls of some tools; calls of tools in neither list wait.
    Filter {
        /// Tools whose calls wait for approval.
        always: Option<ToolFilter>,
        /// Tools whose calls need no approval.
        never: Option<ToolFilter>,
    },
}

/// A tool of a server in the form in which the model is offered it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    /// Label of the server.
    pub server_label: String,
    /// Name of the tool at its server.
    pub name: String,
    /// Description of the tool.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// Whether a call waits for the client's approval.
    pub needs_approval: bool,
}

impl ToolFilter {
    /// Whether a tool meets every condition.
    pub fn matches(&self, name: &str, is_read_only: bool) -> bool {
        self.names.as_ref().is_none_or(|names| names.iter().any(|known| known == name))
            && self.is_read_only.is_none_or(|wanted| wanted == is_read_only)
    }
}

impl Approval {
    /// Whether calls of a tool wait for approval.
    pub fn is_needed(&self, name: &str, is_read_only: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Filter { always: Some(always), .. } if always.matches(name, is_read_only) => true,
            Self::Filter { never, .. } => {
                !never.as_ref().is_some_and(|never| never.matches(name, is_read_only))
            }
        }
    }
}

impl ServerTool {
    /// The tool's name for the model.
    pub fn model_name(&self) -> String {
        model_name(&self.server_label, &self.name)
    }

    /// The tool as chat templates walk it.
    pub(super) fn for_template(&self) -> Value {
        let mut function = json!({"name": self.model_name()});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        function["parameters"] = self.input_schema.clone();
        json!({"type": "function", "function": function})
    }
}

/// The name of a server's tool for the model.
pub(super) fn model_name(server_label: &str, name: &str) -> String {
    format!("{server_label}__{name}")
}

/// Reads a tool of the type `mcp`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_server(node: &Node<'_, '_>) -> Result<McpServer, ApiError> {
    let (mut label, mut url, mut authorization) = (None, None, None);
    let (mut headers, mut allowed, mut approval) = (Vec::new(), None, None);
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "server_label" => label = Some(read_label(&value)?),
            "server_url" => url = Some(value.string(MAX_TEXT_BYTES)?.into_owned()),
            "authorization" => authorization = Some(value.string(MAX_TEXT_BYTES)?.into_owned()),
            "headers" => value.members(MAX_HEADERS, |name, value| {
                headers.push((name.to_owned(), Secret::new(value.string(MAX_TEXT_BYTES)?)));
                Ok(())
            })?,
            "allowed_tools" => allowed = Some(read_filter(&value)?),
            "require_approval" => approval = Some(read_approval(&value)?),
            "connector_id" | "tunnel_id" => {
                let reason =
                    "Connectors and tunnels are OpenAI's; use 'server_url', or a server of the operator.";
                return Err(ApiError::unsupported_parameter(node.path_of(key), reason));
            }
            "type" => {}
            _ => value.ignore(),
        }
        Ok(())
    })?;
    let label = label.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("server_label")))?;
    if let Some(token) = authorization {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        headers.push(("authorization".to_owned(), Secret::new(format!("Bearer {token}"))));
    }
    if url.is_none() && !headers.is_empty() {
        let reason = "Headers are only for a server with a 'server_url'.";
        return Err(ApiError::invalid_value(node.path_of("headers"), reason));
    }
    Ok(McpServer { label, url, headers, allowed, approval, path: node.path() })
}

fn read_label(node: &Node<'_, '_>) -> Result<String, ApiError> {
    let label = node.string(MAX_LABEL_BYTES)?.into_owned();
    if !is_label(&label) {
        let reason = "A label has letters, digits, hyphens and underscores.";
        return Err(ApiError::invalid_value(node.path(), reason));
    }
    Ok(label)
}

/// Whether `text` can be the label of a server: 1 to [`MAX_LABEL_BYTES`] letters, digits, hyphens and
/// underscores.
pub fn is_label(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=MAX_LABEL_BYTES).contains(&text.len()) && text.chars().all(is_plain)
}

fn read_names(node: &Node<'_, '_>) -> Result<Vec<String>, ApiError> {
    let mut names = Vec::new();
    node.elements(MAX_TOOLS, |_, name| {
        names.push(name.string(MAX_NAME_BYTES)?.into_owned());
        Ok(())
    })?;
    Ok(names)
}

fn read_filter(node: &Node<'_, '_>) -> Result<ToolFilter, ApiError> {
    if node.json_type() == JsonType::Array {
        return Ok(ToolFilter { names: Some(read_names(node)?), is_read_only: None });
    }
    let mut filter = ToolFilter::default();
    node.known_members(&["tool_names", "read_only"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "tool_names" => filter.names = Some(read_names(&value)?),
            _ => filter.is_read_only = Some(value.boolean()?),
        }
        Ok(())
    })?;
    Ok(filter)
}

fn read_approval(node: &Node<'_, '_>) -> Result<Approval, ApiError> {
    if node.json_type() == JsonType::String {
        return Ok([Approval::Always, Approval::Never][node.one_of(&["always", "never"])?].clone());
    }
    let (mut always, mut never) = (None, None);
    node.known_members(&["always", "never"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "always" => always = Some(read_filter(&value)?),
            _ => never = Some(read_filter(&value)?),
        }
        Ok(())
    })?;
    Ok(Approval::Filter { always, never })
}

/// A tool of the type `mcp` as the answer repeats it: without its secrets.
pub(super) fn for_answer(mut tool: Value) -> Value {
    const REDACTED: &str = "<redacted>";
    if let Some(members) = tool.as_object_mut() {
        members.remove("authorization");
        if let Some(Value::Object(headers)) = members.get_mut("headers") {
            headers.values_mut().for_each(|value| *value = REDACTED.into());
        }
        for key in ["allowed_tools", "headers", "server_description"] {
            members.entry(key).or_insert(Value::Null);
        }
        // Calls to the operator's servers wait for approval where the operator wants it.
        let unless_said = if members.contains_key("server_url") { "always".into() } else { Value::Null };
        members.entry("require_approval").or_insert(unless_said);
    }
    tool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_decide_about_approval() {
        let named = |name: &str| ToolFilter { names: Some(vec![name.to_owned()]), is_read_only: None };
        let read_only = ToolFilter { names: None, is_read_only: Some(true) };
        let filter = Approval::Filter { always: Some(named("search")), never: Some(read_only) };
        assert!(filter.is_needed("search", true), "named goes first");
        assert!(!filter.is_needed("read", true));
        assert!(filter.is_needed("write", false), "others wait");
        assert!(Approval::Filter { always: None, never: None }.is_needed("a", true));
    }
}
