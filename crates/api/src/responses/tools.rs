//! Tools and the choice among them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::mcp_tool::{self, McpServer, ServerTool, model_name};
use crate::error::ApiError;
use crate::field::Shape;
use crate::json::{JsonType, Node, TreeBudget};
use crate::spec::{MAX_DESCRIPTION_BYTES, MAX_NAME_BYTES, MAX_TOOLS, read_function};

/// Types of tools. The first three are the client's own, the fourth is a server of tools; the others run at
/// OpenAI.
const TYPES: &[&str] = &[
    "function",
    "custom",
    "namespace",
    "mcp",
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];
const N_READ_TYPES: usize = 4;
/// Maximum number of tool servers of a request.
const MAX_SERVERS: usize = 16;
/// Known keys of a function. Others are ignored and named in the answer's header.
const FUNCTION_KEYS: &[&str] = &["type", "name", "description", "parameters", "strict"];
const CUSTOM_KEYS: &[&str] = &["type", "name", "description", "format"];

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools {
    /// Tools as chat templates walk them.
    pub offered: Vec<Value>,
    /// Names of the tools that take free text.
    pub custom: BTreeSet<String>,
    /// The namespaces of tools that have one.
    pub namespaces: BTreeMap<String, String>,
    /// Servers whose tools the gateway calls.
    pub servers: Vec<McpServer>,
    /// Tools as the answer repeats them.
    pub shown: Vec<Value>,
}

/// Reads `tools`.
///
/// # Errors
/// A 400 that names the path; tools that run at OpenAI are refused by name.
pub(super) fn read_tools(node: &Node<'_, '_>, budget: &mut TreeBudget) -> Result<Tools, ApiError> {
    let mut tools = Tools::default();
    budget.take_tree(node)?;
    node.elements(MAX_TOOLS, |_, tool| {
        tools.read(&tool, None)?;
        tools.shown.push(for_answer(tool.tree()?));
        Ok(())
    })?;
    Ok(tools)
}

impl Tools {
    /// Reads a tool, or the tools of a namespace. Their names must differ.
    fn read(&mut self, tool: &Node<'_, '_>, namespace: Option<&str>) -> Result<(), ApiError> {
        let name = match type_of(tool)? {
            "namespace" if namespace.is_none() => return self.read_namespace(tool),
            "mcp" if namespace.is_none() => return self.read_server(tool),
            "namespace" | "mcp" => {
                let reason = "A namespace has functions and custom tools only.";
                return Err(ApiError::invalid_value(tool.path_of("type"), reason));
            }
            "function" => read_function(tool, FUNCTION_KEYS)?,
            _ => {
                let name = read_custom(tool)?;
                self.custom.insert(name.clone());
                name
            }
        };
        if self.offered.iter().any(|other| other["function"]["name"] == *name) {
            return Err(ApiError::duplicate_name(tool.path_of("name")));
        }
        if self.offered.len() == MAX_TOOLS {
            return Err(ApiError::array_above_max_length("tools", MAX_TOOLS));
        }
        if let Some(namespace) = namespace {
            self.namespaces.insert(name, namespace.to_owned());
        }
        self.offered.push(for_template(tool.exact_tree()?));
        Ok(())
    }

    fn read_server(&mut self, tool: &Node<'_, '_>) -> Result<(), ApiError> {
        let server = mcp_tool::read_server(tool)?;
        if self.servers.iter().any(|other| other.label == server.label) {
            return Err(ApiError::duplicate_name(tool.path_of("server_label")));
        }
        if self.servers.len() == MAX_SERVERS {
            return Err(ApiError::array_above_max_length("tools", MAX_SERVERS));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Offers tools of servers beside the client's own.
    ///
    /// # Errors
    /// A 400 for equal names, more than [`MAX_TOOLS`] tools, and servers where the gateway calls none.
    pub fn add_served(&mut self, served: &[ServerTool], is_served: bool) -> Result<(), ApiError> {
        if let Some(server) = self.servers.first().filter(|_| !is_served) {
            let reason = "Tools of the type 'mcp' are called at /v1/responses alone, by servers that have some; use tools \
                          of the type 'function'.";
            return Err(ApiError::unsupported_parameter(format!("{}.type", server.path), reason));
        }
        for tool in served {
            let name = tool.model_name();
            if self.offered.iter().any(|other| other["function"]["name"] == *name) {
                let reason = format!("Two tools have the name '{}'.", crate::error::echo(&name));
                return Err(ApiError::invalid_value("tools", reason));
            }
            self.offered.push(tool.for_template());
        }
        if self.offered.len() > MAX_TOOLS {
            return Err(ApiError::array_above_max_length("tools", MAX_TOOLS));
        }
        Ok(())
    }

    fn read_namespace(&mut self, node: &Node<'_, '_>) -> Result<(), ApiError> {
        let mut name = None;
        node.members(usize::MAX, |key, value| match key {
            "name" => value.put(&mut name, value.string(MAX_NAME_BYTES)?.into_owned()),
            _ => Ok(()),
        })?;
        let name = name.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("name")))?;
        node.known_members(&["type", "name", "description", "tools"], |key, value| match key {
            "tools" => value.elements(MAX_TOOLS, |_, tool| self.read(&tool, Some(&name))),
            _ => Ok(()),
        })
    }
}

/// A value as it was sent.
pub(super) fn raw(node: &Node<'_, '_>) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(node.text().to_owned()).map_err(|_| node.wrong_type("a JSON value"))
}

/// Reads the client's metadata of a response or a conversation, as it was written.
pub(super) fn read_metadata(node: &Node<'_, '_>) -> Result<Option<Box<RawValue>>, ApiError> {
    Shape::StringMap.check(node)?;
    raw(node).map(Some)
}

fn type_of(tool: &Node<'_, '_>) -> Result<&'static str, ApiError> {
    let mut kind = None;
    tool.members(usize::MAX, |key, value| match key {
        "type" => value.put(&mut kind, value.one_of(TYPES)?),
        _ => Ok(()),
    })?;
    let kind = kind.ok_or_else(|| ApiError::missing_required_parameter(tool.path_of("type")))?;
    if kind < N_READ_TYPES {
        return Ok(TYPES[kind]);
    }
    let reason =
        format!("Tools of the type '{}' run at OpenAI; use tools of the type 'function'.", TYPES[kind]);
    Err(ApiError::unsupported_parameter(tool.path_of("type"), &reason))
}

/// Checks a tool that takes free text and returns its name. Its grammar is shown to the model and not
/// enforced.
fn read_custom(tool: &Node<'_, '_>) -> Result<String, ApiError> {
    let mut name = None;
    tool.known_members(CUSTOM_KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "name" => name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "description" => drop(value.string(MAX_DESCRIPTION_BYTES)?),
            "format" => value.known_members(&["type", "syntax", "definition"], |key, value| {
                match key {
                    "type" if value.one_of(&["text", "grammar"])? == 1 => value.ignore(),
                    "syntax" => drop(value.one_of(&["lark", "regex"])?),
                    "definition" => drop(value.string(MAX_DESCRIPTION_BYTES)?),
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| ApiError::missing_required_parameter(tool.path_of("name")))
}

fn for_template(tool: Value) -> Value {
    let Value::Object(mut members) = tool else { return tool };
    let function = if members.get("type").is_some_and(|kind| kind == "custom") {
        custom_as_function(&mut members)
    } else {
        let known = members.into_iter();
        known
            .filter(|(key, value)| key != "type" && FUNCTION_KEYS.contains(&key.as_str()) && !value.is_null())
            .collect()
    };
    json!({"type": "function", "function": function})
}

/// A tool with all keys that clients expect of it.
fn for_answer(mut tool: Value) -> Value {
    if tool["type"] == "mcp" {
        return mcp_tool::for_answer(tool);
    }
    if let Some(members) = tool.as_object_mut().filter(|members| members["type"] == "function") {
        for key in FUNCTION_KEYS {
            members.entry(*key).or_insert(Value::Null);
        }
    }
    tool
}

/// A tool that takes free text as a function with one text.
fn custom_as_function(tool: &mut Map<String, Value>) -> Map<String, Value> {
    let mut description = tool.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(definition) = tool.get("format").and_then(|format| format["definition"].as_str()) {
        let syntax = tool["format"]["syntax"].as_str().unwrap_or("lark");
        description.push_str(&format!("\nThe input has this form ({syntax}):\n{definition}"));
    }
    let name = tool.remove("name").unwrap_or_default();
    let parameters = json!({
        "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
        "additionalProperties": false,
    });
    let mut function = Map::from_iter([("name".to_owned(), name)]);
    if !description.is_empty() {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), parameters);
    function
}

/// Tools that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Allowed {
    /// Only the tool of this name.
    Tool(String),
    /// All of the server with this label.
    Server(String),
}

impl Allowed {
    fn matches(&self, tool: &Value) -> bool {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        match self {
            Self::Tool(allowed) => allowed == name,
            Self::Server(label) => {
                name.strip_prefix(label.as_str()).is_some_and(|rest| rest.starts_with("__"))
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Tool(name) | Self::Server(name) => name,
        }
    }
}

/// Whether and which tools the model calls.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolChoice {
    /// Whether calls are forbidden.
    pub never: bool,
    /// Whether a call is required.
    pub must: bool,
    /// The only tool that it may call.
    pub name: Option<String>,
    /// The tools that it may call.
    allowed: Option<Vec<Allowed>>,
    /// Choice as the answer repeats it.
    pub shown: Option<Box<RawValue>>,
}

/// Reads `tool_choice`.
///
/// # Errors
/// A 400 that names the path.
pub(super) fn read_tool_choice(node: &Node<'_, '_>) -> Result<ToolChoice, ApiError> {
    const WORDS: &[&str] = &["none", "auto", "required"];
    const KINDS: &[&str] = &["function", "custom", "allowed_tools", "mcp"];
    let mut choice = ToolChoice { shown: Some(raw(node)?), ..ToolChoice::default() };
    if node.json_type() != JsonType::Object {
        match WORDS[node.one_of(WORDS)?] {
            "none" => choice.never = true,
            "required" => choice.must = true,
            _ => {}
        }
        return Ok(choice);
    }
    let (mut kind, mut mode, mut label) = (None, None, None);
    node.members(usize::MAX, |key, value| match key {
        "type" => value.put(&mut kind, value.one_of(KINDS)?),
        _ => Ok(()),
    })?;
    node.known_members(&["type", "name", "mode", "tools", "server_label"], |key, value| {
        match key {
            _ if value.is_null() => {}
            "server_label" => label = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "name" => choice.name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
            "mode" => mode = Some(value.one_of(&["auto", "required"])?),
            "tools" => choice.allowed = Some(read_allowed(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    let missing = |key: &str| ApiError::missing_required_parameter(node.path_of(key));
    match KINDS[kind.ok_or_else(|| missing("type"))?] {
        "allowed_tools" => {
            choice.must = mode.ok_or_else(|| missing("mode"))? == 1;
            if choice.allowed.is_none() {
                return Err(missing("tools"));
            }
            choice.name = None;
        }
        "mcp" => {
            let label = label.ok_or_else(|| missing("server_label"))?;
            choice.must = true;
            choice.allowed = choice.name.is_none().then(|| vec![Allowed::Server(label.clone())]);
            choice.name = choice.name.map(|name| model_name(&label, &name));
        }
        _ if choice.name.is_none() => return Err(missing("name")),
        _ => (choice.must, choice.allowed) = (true, None),
    }
    Ok(choice)
}

fn read_allowed(node: &Node<'_, '_>) -> Result<Vec<Allowed>, ApiError> {
    let mut allowed = Vec::new();
    node.elements(MAX_TOOLS, |_, tool| {
        let (mut name, mut label) = (None, None);
        tool.known_members(&["type", "name", "server_label"], |key, value| {
            match key {
                "name" => name = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
                "server_label" => label = Some(value.string(MAX_NAME_BYTES)?.into_owned()),
                _ => {}
            }
            Ok(())
        })?;
        allowed.push(match (label, name) {
            (Some(label), Some(name)) => Allowed::Tool(model_name(&label, &name)),
            (Some(label), None) => Allowed::Server(label),
            (None, Some(name)) => Allowed::Tool(name),
            (None, None) => return Err(ApiError::missing_required_parameter(tool.path_of("name"))),
        });
        Ok(())
    })?;
    if allowed.is_empty() { Err(ApiError::empty_array(node.path())) } else { Ok(allowed) }
}

impl ToolChoice {
    /// Requires no call any more: the turn that had to call has done so.
    pub fn relax(&mut self) {
        (self.must, self.name) = (false, None);
    }

    /// Checks it against the tools, and removes all tools that it does not allow.
    ///
    /// # Errors
    /// `invalid_value` for a tool that is not offered, or where one must be called and none is.
    pub fn apply(&self, tools: &mut Vec<Value>) -> Result<(), ApiError> {
        if self.must && tools.is_empty() {
            let reason = "'tool_choice' is only allowed when 'tools' are given.";
            return Err(ApiError::invalid_value("tool_choice", reason));
        }
        let named = self.name.iter().cloned().map(Allowed::Tool);
        let wanted = named.chain(self.allowed.iter().flatten().cloned());
        if let Some(absent) = wanted.into_iter().find(|wanted| !tools.iter().any(|tool| wanted.matches(tool)))
        {
            let name = crate::error::echo(absent.name()).into_owned();
            let reason = format!("Tool choice '{name}' not found in 'tools' parameter.");
            return Err(ApiError::invalid_value("tool_choice", reason));
        }
        if let Some(allowed) = &self.allowed {
            tools.retain(|tool| allowed.iter().any(|allowed| allowed.matches(tool)));
        }
        Ok(())
    }
}
