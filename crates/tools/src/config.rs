//! The operator's settings about tools. Does not know files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use throng_core::secret::Secret;

/// Names with secret values: headers and environment variables.
pub type Secrets = BTreeMap<String, Secret>;

/// Tools that the gateway calls for its clients; none unless they are configured.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// A JSON file with MCP servers in the form of Cursor's `mcp.json`.
    pub servers_file: Option<PathBuf>,
    /// The sandbox for the file's commands that name none.
    pub sandbox: Option<String>,
    /// The file of approved descriptions, which `throng tools approve` writes. The operator's MCP servers
    /// need it.
    pub pins: Option<PathBuf>,
    /// Origins (`https://host[:port]`) of MCP servers that requests may name; empty: none.
    pub hosted_origins: Vec<String>,
    /// Maximum number of calls of tools for one response.
    pub max_calls: u32,
    /// Maximum number of turns of the model for one response.
    pub max_turns: u32,
    /// Bounds of each tool of a server that requests name.
    pub hosted_limits: LimitsConfig,
    /// MCP servers of the operator.
    pub server: Vec<ServerConfig>,
    /// HTTP endpoints of the operator.
    pub http: Vec<HttpToolConfig>,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            servers_file: None,
            sandbox: None,
            pins: None,
            hosted_origins: Vec::new(),
            max_calls: 64,
            max_turns: 16,
            hosted_limits: LimitsConfig::default(),
            server: Vec::new(),
            http: Vec::new(),
        }
    }
}

impl ToolsConfig {
    /// Whether requests may use any tool of the gateway.
    pub fn is_on(&self) -> bool {
        self.servers_file.is_some()
            || !self.hosted_origins.is_empty()
            || !self.server.is_empty()
            || !self.http.is_empty()
    }
}

/// Bounds of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Number of calls that run at a time.
    pub concurrency: u32,
    /// Number of calls that may wait for one of these; further ones fail at once.
    pub queue: u32,
    /// Seconds within which a call must end, its wait included.
    pub timeout_s: u64,
    /// Bytes of a result; the rest is cut.
    pub max_result_bytes: usize,
    /// Failures in a row after which calls fail at once.
    pub breaker_failures: u32,
    /// Seconds for which calls fail at once, until one is tried again.
    pub breaker_s: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            concurrency: 4,
            queue: 32,
            timeout_s: 60,
            max_result_bytes: 64 << 10,
            breaker_failures: 5,
            breaker_s: 30,
        }
    }
}

/// An MCP server of the operator: a command, or a URL.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// The `server_label` under which requests name it.
    pub name: String,
    /// The program that speaks MCP over its standard input and output.
    pub command: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment of the program, beside `PATH`.
    pub env: Secrets,
    /// The sandbox that it runs in: `bwrap`, `unshare`, `docker:IMAGE`, `podman:IMAGE`, or `none`. Refused
    /// without one.
    pub sandbox: Option<String>,
    /// Folders that the sandbox shows it, read-only.
    pub readable: Vec<PathBuf>,
    /// Folders that it may change.
    pub writable: Vec<PathBuf>,
    /// The URL of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// Headers of each request to it.
    pub headers: Secrets,
    /// The authorization server that gives tokens for it.
    pub oauth: Option<OauthConfig>,
    /// The tools that may be called; all approved ones by default.
    pub allowed_tools: Option<Vec<String>>,
    /// Whether each call waits for the client's approval, even if the request says otherwise.
    pub require_approval: bool,
    /// Bounds of each of its tools.
    pub limits: LimitsConfig,
}

/// An OAuth client that gets tokens by its own credentials.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OauthConfig {
    /// The address at which the authorization server gives tokens.
    pub token_url: String,
    /// Name of the client.
    pub client_id: String,
    /// Secret of the client.
    pub client_secret: Secret,
    /// The scopes to ask for; the authorization server's own choice if empty.
    #[serde(default)]
    pub scopes: Vec<String>,
}

/// An HTTP endpoint that is a tool.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HttpToolConfig {
    /// The `server_label` under which requests name it; several tools may have the same.
    pub server: String,
    /// Name of the tool.
    pub name: String,
    /// Description of the tool for the model.
    pub description: String,
    /// The JSON schema of its arguments.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// The URL. `{name}` is replaced by the argument of that name, except in its host.
    pub url: String,
    /// The method. Arguments that the URL does not name are the query of GET, DELETE and HEAD, and the JSON
    /// body of others.
    #[serde(default = "post")]
    pub method: String,
    /// Headers of each request.
    #[serde(default)]
    pub headers: Secrets,
    /// Whether each call waits for the client's approval, even if the request says otherwise.
    #[serde(default)]
    pub require_approval: bool,
    /// Bounds of the tool's calls.
    #[serde(default)]
    pub limits: LimitsConfig,
}

fn post() -> String {
    "POST".to_owned()
}
