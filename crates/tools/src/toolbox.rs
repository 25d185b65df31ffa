//! All tools of a gateway: the operator's servers, and those that requests may name.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderName;
use throng_api::answer::CallFailure;

use crate::config::{HttpToolConfig, LimitsConfig, ServerConfig, ToolsConfig};
use crate::definition::ToolDefinition;
use crate::error::ToolsError;
use crate::hosts::{self, AllowedOrigins};
use crate::http_tool::{HttpTool, headers_of};
use crate::mcp::{HttpPlace, McpServer, Place};
use crate::pins::{PinState, Pins};
use crate::sandbox::Sandbox;
use crate::server::{Gates, ToolServer};
use crate::servers_file;

/// Most servers.
const MAX_SERVERS: usize = 64;
/// Longest name of a server.
const MAX_NAME_BYTES: usize = 64;
/// Headers that belong to the connection or to the protocol.
const OWN_HEADERS: &[&str] =
    &["host", "content-length", "transfer-encoding", "connection", "mcp-session-id", "mcp-protocol-version"];

/// The tools of a gateway.
#[derive(Debug)]
pub struct Toolbox {
    servers: BTreeMap<String, Arc<ToolServer>>,
    allowed: AllowedOrigins,
    client: reqwest::Client,
    hosted_limits: LimitsConfig,
    /// The gates of servers that requests name, by origin.
    hosted_gates: Mutex<BTreeMap<String, Arc<Gates>>>,
    pins: Arc<Pins>,
    /// Most calls for one response.
    pub max_calls: u32,
    /// Most turns of the model for one response.
    pub max_turns: u32,
}

/// A server with its tools, for the operator.
#[derive(Debug)]
pub struct ListedServer {
    /// Name of the server.
    pub name: String,
    /// Its tools, each with how it compares with what was approved.
    pub tools: Vec<(ToolDefinition, PinState)>,
    /// Approved tools that it does not have any more.
    pub gone: Vec<String>,
}

impl Toolbox {
    /// Reads the files that `config` names and tries the sandboxes.
    ///
    /// # Errors
    /// [`ToolsError`].
    pub fn open(config: &ToolsConfig) -> Result<Self, ToolsError> {
        let client = hosts::client()?;
        let mut configured = config.server.clone();
        if let Some(path) = &config.servers_file {
            configured.extend(servers_file::read(path, config.sandbox.as_deref())?);
        }
        let pins = match &config.pins {
            Some(path) => Arc::new(Pins::read(path)?),
            None if configured.is_empty() => Arc::default(),
            None => {
                let fault = "must name the file of approved descriptions, which throng tools approve writes";
                return Err(ToolsError::setting("gateway.tools.pins", fault));
            }
        };
        let mut servers = BTreeMap::new();
        let mut add = |server: ToolServer| match servers.insert(server.label.clone(), Arc::new(server)) {
            Some(other) => Err(ToolsError::setting(
                "gateway.tools",
                format!("two servers have the name '{}'", other.label),
            )),
            None => Ok(()),
        };
        for server in &configured {
            check_name("gateway.tools.server.name", &server.name)?;
            add(mcp_server(server, &client, pins.clone())?)?;
        }
        let mut by_server: BTreeMap<&str, Vec<&HttpToolConfig>> = BTreeMap::new();
        for tool in &config.http {
            check_name("gateway.tools.http.server", &tool.server)?;
            by_server.entry(&tool.server).or_default().push(tool);
        }
        for (label, tools) in by_server {
            add(http_server(label, &tools, &client)?)?;
        }
        if servers.len() > MAX_SERVERS {
            return Err(ToolsError::setting(
                "gateway.tools",
                format!("there are more than {MAX_SERVERS} servers"),
            ));
        }
        let allowed = AllowedOrigins::new(&config.hosted_origins)?;
        let (hosted_limits, hosted_gates) = (config.hosted_limits, Mutex::default());
        let (max_calls, max_turns) = (config.max_calls, config.max_turns);
        Ok(Self { servers, allowed, client, hosted_limits, hosted_gates, pins, max_calls, max_turns })
    }

    /// The operator's server of this name.
    pub(crate) fn server(&self, name: &str) -> Option<&Arc<ToolServer>> {
        self.servers.get(name)
    }

    /// A server that a request names, for this request.
    ///
    /// # Errors
    /// [`ToolsError::Forbidden`] for one that the operator does not allow, and for headers that are none.
    pub(crate) fn hosted(
        &self,
        label: &str,
        url: &str,
        headers: &[(String, String)],
    ) -> Result<ToolServer, ToolsError> {
        let url = self.allowed.check(url)?;
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers = headers_of(pairs)
            .map_err(|fault| ToolsError::Forbidden(format!("The 'headers' are refused: {fault}.")))?;
        if let Some(name) = OWN_HEADERS.iter().find(|name| headers.contains_key(**name)) {
            return Err(ToolsError::Forbidden(format!(
                "The 'headers' are refused: '{name}' is not the client's."
            )));
        }
        let place = Place::Http(HttpPlace {
            client: self.client.clone(),
            url: url.to_string(),
            headers: by_name(headers),
        });
        let gates = {
            let mut gates = self.hosted_gates.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Gates::new(BTreeMap::new(), self.hosted_limits));
            gates.entry(hosts::origin(&url)).or_insert_with(new).clone()
        };
        let server = McpServer::new(label, place);
        Ok(ToolServer::of_mcp((label, server), None, None, false, gates))
    }

    /// Calls a tool of an operator's server, approved or not.
    ///
    /// # Errors
    /// The failure that a model would be told.
    pub async fn call(&self, server: &str, tool: &str, arguments: &str) -> Result<String, CallFailure> {
        let message = || format!("There is no tool server '{server}'.");
        let unknown = || CallFailure::Unanswered { status: 404, message: message() };
        let server = self.server(server).ok_or_else(unknown)?;
        server.call(tool, arguments).await.map_err(CallFailure::from)
    }

    /// The names of the operator's servers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// The tools of an operator's server, approved or not.
    ///
    /// # Errors
    /// [`ToolsError::Unreachable`]; [`ToolsError::Forbidden`] where there is no such server.
    pub async fn list(&self, name: &str) -> Result<ListedServer, ToolsError> {
        let unknown = || ToolsError::Forbidden(format!("There is no tool server '{name}'."));
        let server = self.server(name).ok_or_else(unknown)?;
        let tools = server.described().await?;
        let state = |tool: &ToolDefinition| match server.is_pinned() {
            true => self.pins.state(name, tool),
            false => PinState::Approved,
        };
        let gone = self.pins.gone(name, &tools).into_iter().map(str::to_owned).collect();
        let tools = tools.into_iter().map(|tool| (state(&tool), tool)).map(|(state, tool)| (tool, state));
        Ok(ListedServer { name: name.to_owned(), tools: tools.collect(), gone })
    }
}

fn mcp_server(
    config: &ServerConfig,
    client: &reqwest::Client,
    pins: Arc<Pins>,
) -> Result<ToolServer, ToolsError> {
    let fault = |fault: &str| ToolsError::setting(format!("gateway.tools.server '{}'", config.name), fault);
    let place = match (&config.command, &config.url) {
        (Some(_), None) => {
            let name = config.sandbox.as_deref().ok_or_else(|| {
                fault(
                    "runs a command, which is refused without a sandbox: set sandbox to bwrap, unshare, \
                     docker:IMAGE or podman:IMAGE, or to none where it may do all that the server may",
                )
            })?;
            let sandbox = Sandbox::parse(name).map_err(|text| fault(&format!("sandbox: {text}")))?;
            sandbox.check(name, config)?;
            Place::Program { program: sandbox.wrap(config), env: config.env.clone() }
        }
        (None, Some(url)) => {
            let url = hosts::parse(url).map_err(|text| fault(&format!("url: {text}")))?;
            let headers =
                headers_of(config.headers.iter()).map_err(|text| fault(&format!("headers: {text}")))?;
            let headers = by_name(headers);
            Place::Http(HttpPlace { client: client.clone(), url: url.to_string(), headers })
        }
        _ => return Err(fault("needs either a command or a url")),
    };
    let server = McpServer::new(&config.name, place);
    let gates = Arc::new(Gates::new(BTreeMap::new(), config.limits));
    let allowed = config.allowed_tools.clone();
    Ok(ToolServer::of_mcp((&config.name, server), Some(pins), allowed, config.require_approval, gates))
}

fn http_server(
    label: &str,
    configs: &[&HttpToolConfig],
    client: &reqwest::Client,
) -> Result<ToolServer, ToolsError> {
    let mut limits = BTreeMap::new();
    let mut tools = Vec::new();
    for config in configs {
        if limits.insert(config.name.clone(), config.limits).is_some() {
            let fault = format!("'{label}' has two tools '{}'", config.name);
            return Err(ToolsError::setting("gateway.tools.http", fault));
        }
        tools.push(HttpTool::new(config, client.clone())?);
    }
    Ok(ToolServer::of_http(label, tools, Arc::new(Gates::new(limits, LimitsConfig::default()))))
}

fn check_name(setting: &str, name: &str) -> Result<(), ToolsError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_plain) {
        return Ok(());
    }
    let fault = format!("{name:?} must have 1 to {MAX_NAME_BYTES} letters, digits, hyphens or underscores");
    Err(ToolsError::setting(setting, fault))
}

fn by_name(headers: http::HeaderMap) -> HashMap<HeaderName, http::HeaderValue> {
    headers.into_iter().filter_map(|(name, value)| Some((name?, value))).collect()
}
