//! All tools of a gateway: the operator's servers, and those that requests may name.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderName;
use http::header::AUTHORIZATION;
use throng_api::answer::CallFailure;
use throng_api::responses::{MAX_LABEL_BYTES, ToolDefinition, is_label};
use throng_core::secret::Secret;

use crate::config::{HttpToolConfig, LimitsConfig, ServerConfig, ToolsConfig};
use crate::error::ToolsError;
use crate::hosts::{self, AllowedOrigins};
use crate::http_tool::{HttpTool, headers_of};
use crate::mcp::{ClientCredentials, HttpPlace, McpServer, Place};
use crate::pins::{PinState, Pins};
use crate::sandbox::Sandbox;
use crate::server::{Gates, ToolServer};
use crate::servers_file;

/// Maximum number of servers of the operator.
const MAX_SERVERS: usize = 64;
/// Status of calls that an operator's server does not answer. The breaker counts it.
const OWN_FAULT: u16 = 502;
/// Status of calls that a server of a request does not answer. The cause may be that request's path or token,
/// so the breaker does not count it, and the server stays available to other requests.
const HOSTED_FAULT: u16 = 424;
/// Headers of the connection and of the protocol, which requests may not set.
const OWN_HEADERS: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept",
    "last-event-id",
    "mcp-session-id",
    "mcp-protocol-version",
];

/// The tools of a gateway.
#[derive(Debug)]
pub struct Toolbox {
    servers: BTreeMap<String, Arc<ToolServer>>,
    allowed: AllowedOrigins,
    client: reqwest::Client,
    hosted_limits: LimitsConfig,
    /// The gates of servers that requests name, by their origins, which the operator lists.
    hosted_gates: Mutex<BTreeMap<String, Arc<Gates>>>,
    pins: Arc<Pins>,
    /// Maximum calls of tools in one response.
    pub max_calls: u32,
    /// Maximum turns of the model in one response.
    pub max_turns: u32,
}

/// A server with its tools, for the operator.
#[derive(Debug)]
pub struct ListedServer {
    /// Name of the server.
    pub name: String,
    /// Whether its descriptions need approval; those of HTTP endpoints are the operator's own.
    pub is_pinned: bool,
    /// Tools of the server, compared with the approved ones.
    pub tools: Vec<(ToolDefinition, PinState)>,
    /// Approved tools that the server no longer has.
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
    /// [`ToolsError::Forbidden`] for an origin that the operator does not allow, and for invalid headers.
    pub(crate) fn hosted(
        &self,
        label: &str,
        url: &str,
        headers: &[(String, Secret)],
    ) -> Result<ToolServer, ToolsError> {
        let url = self.allowed.check(url)?;
        let headers = headers_of(headers.iter().map(|(name, value)| (name, value)))
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
            oauth: None,
        });
        let gates = {
            let mut gates = self.hosted_gates.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Gates::new(BTreeMap::new(), self.hosted_limits));
            gates.entry(hosts::origin(&url)).or_insert_with(new).clone()
        };
        let server = McpServer::new(label, place, HOSTED_FAULT);
        Ok(ToolServer::of_mcp((label, server), None, None, false, gates))
    }

    /// Calls a tool of an operator's server, approved or not.
    ///
    /// # Errors
    /// The failure in the form in which a model gets it.
    pub async fn call(&self, server: &str, tool: &str, arguments: &str) -> Result<String, CallFailure> {
        let unknown = || CallFailure::unanswered(404, format!("There is no tool server '{server}'."));
        self.server(server).ok_or_else(unknown)?.call(tool, arguments).await
    }

    /// Names of the operator's servers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// The tools of an operator's server, approved or not.
    ///
    /// # Errors
    /// [`ToolsError::Unreachable`]; [`ToolsError::Forbidden`] if there is no such server.
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
        let is_pinned = server.is_pinned();
        Ok(ListedServer { name: name.to_owned(), is_pinned, tools: tools.collect(), gone })
    }
}

fn mcp_server(
    config: &ServerConfig,
    client: &reqwest::Client,
    pins: Arc<Pins>,
) -> Result<ToolServer, ToolsError> {
    let fault = |fault: &str| ToolsError::setting(format!("gateway.tools.server '{}'", config.name), fault);
    let place = match (&config.command, &config.url) {
        (Some(_), None) if config.oauth.is_some() => return Err(fault("has oauth, which needs a url")),
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
            let headers = headers_of(&config.headers).map_err(|text| fault(&format!("headers: {text}")))?;
            let headers = by_name(headers);
            if config.oauth.is_some() && headers.contains_key(&AUTHORIZATION) {
                return Err(fault("has both oauth and a header 'authorization'"));
            }
            let oauth = config.oauth.as_ref();
            let oauth = oauth.map(|oauth| ClientCredentials::new(oauth, client.clone(), &url)).transpose();
            let oauth = oauth.map_err(|text| fault(&format!("oauth: {text}")))?.map(Box::new);
            Place::Http(HttpPlace { client: client.clone(), url: url.to_string(), headers, oauth })
        }
        _ => return Err(fault("needs either a command or a url")),
    };
    let server = McpServer::new(&config.name, place, OWN_FAULT);
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
    if is_label(name) {
        return Ok(());
    }
    let fault = format!("{name:?} must have 1 to {MAX_LABEL_BYTES} letters, digits, hyphens or underscores");
    Err(ToolsError::setting(setting, fault))
}

fn by_name(headers: http::HeaderMap) -> HashMap<HeaderName, http::HeaderValue> {
    headers.into_iter().filter_map(|(name, value)| Some((name?, value))).collect()
}
