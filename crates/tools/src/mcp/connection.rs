//! A connection to an MCP server, through the official SDK. Bounds sizes of messages. Does not bound times
//! and numbers of calls.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation, PaginatedRequestParams,
    ProtocolVersion, Tool,
};
use rmcp::service::{ClientInitializeError, RoleClient, RunningService, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ServiceExt};
use serde_json::{Map, Value};
use throng_api::answer::CallFailure;
use throng_api::responses::ToolDefinition;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::Instant;

use super::oauth::ClientCredentials;
use super::result::text_of;
use crate::config::Secrets;
use crate::definition::check;
use crate::sandbox::Program;

/// Maximum number of tools of a server.
const MAX_TOOLS: usize = 256;
/// Maximum bytes of a message of a server.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum number of running HTTP requests to a server.
const MAX_REQUESTS: usize = 16;
/// Maximum bytes of a program's standard error in one line of the log.
const LOG_BYTES: usize = 1024;

/// Transport to an MCP server.
#[derive(Debug)]
pub(crate) enum Place {
    /// The standard input and output of a program that is started.
    Program {
        /// The program, in its sandbox.
        program: Program,
        /// Environment of the program, beside `PATH`.
        env: Secrets,
    },
    /// HTTP requests to a URL.
    Http(HttpPlace),
}

/// A server over HTTP.
#[derive(Debug)]
pub(crate) struct HttpPlace {
    /// HTTP client of the server.
    pub client: reqwest::Client,
    /// URL of the server.
    pub url: String,
    /// Headers of each request.
    pub headers: HashMap<HeaderName, HeaderValue>,
    /// Source of tokens, if it has one.
    pub oauth: Option<Box<ClientCredentials>>,
}

/// The MCP client for servers: it declares no capabilities.
#[derive(Debug, Clone, Copy)]
struct Client;

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let own = Implementation::new("throng", env!("CARGO_PKG_VERSION"));
        let config = ClientConfig::new(ClientCapabilities::default(), own);
        // Newer versions have no `initialize`.
        config.with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

/// A connection to an MCP server.
#[derive(Debug)]
pub(super) struct Connection {
    service: RunningService<RoleClient, Client>,
    /// Whether it has a token of an authorization server.
    has_token: bool,
    /// Time at which its token must be replaced.
    valid_until: Option<Instant>,
    /// Whether its token may have been revoked: a call had no answer.
    is_doubtful: AtomicBool,
}

/// Reason why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The server answered with a failure.
    Failed(CallFailure),
    /// The server did not answer, for this reason.
    Unanswered(String),
}

impl Connection {
    /// Connects to a server and agrees with it on a version of the protocol.
    ///
    /// # Errors
    /// Description of the fault.
    pub async fn open(label: &str, place: &Place) -> Result<Self, String> {
        let mut token = None;
        let service = match place {
            Place::Program { program, env } => {
                let mut command = Command::new(&program.path);
                command.args(&program.args).env_clear().kill_on_drop(true);
                command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
                command.envs(env.iter().map(|(name, value)| (name, value.reveal())));
                let builder = TokioChildProcess::builder(command).stderr(Stdio::piped());
                let spawned = builder.spawn();
                let (transport, errors) =
                    spawned.map_err(|error| format!("its program cannot be started: {error}"))?;
                tokio::spawn(log_errors(label.to_owned(), errors));
                Client.serve(transport).await
            }
            Place::Http(place) => {
                let mut headers = place.headers.clone();
                if let Some(oauth) = &place.oauth {
                    let token = token.insert(oauth.token().await?);
                    headers.insert(AUTHORIZATION, token.header.clone());
                }
                let config = StreamableHttpClientTransportConfig::with_uri(place.url.as_str())
                    .custom_headers(headers)
                    .max_concurrent_requests(MAX_REQUESTS)
                    .max_json_response_size(MAX_MESSAGE_BYTES)
                    .max_sse_event_size(MAX_MESSAGE_BYTES);
                let client = place.client.clone();
                Client.serve(StreamableHttpClientTransport::with_client(client, config)).await
            }
        };
        let service = service.map_err(|error| fault_of_start(&error))?;
        let (has_token, valid_until) = (token.is_some(), token.and_then(|token| token.valid_until));
        Ok(Self { service, has_token, valid_until, is_doubtful: AtomicBool::new(false) })
    }

    /// Whether the connection is lost, or needs another token.
    pub fn is_closed(&self) -> bool {
        let needs_token = self.valid_until.is_some_and(|end| Instant::now() >= end);
        needs_token
            || self.is_doubtful.load(Ordering::Relaxed)
            || self.service.is_closed()
            || self.service.peer().is_transport_closed()
    }

    /// Notes that a call had no answer: the next one takes another connection if this one's token may have
    /// been revoked.
    pub fn doubt(&self) {
        self.is_doubtful.fetch_or(self.has_token, Ordering::Relaxed);
    }

    /// The tools of the server.
    ///
    /// # Errors
    /// Description of the fault.
    pub async fn tools(&self) -> Result<Vec<ToolDefinition>, String> {
        let mut tools: Vec<ToolDefinition> = Vec::new();
        let mut cursor = None;
        loop {
            let page = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            let listed = self.service.list_tools(page).await.map_err(|error| fault_of_request(&error))?;
            if tools.len() + listed.tools.len() > MAX_TOOLS {
                return Err(format!("it has more than {MAX_TOOLS} tools"));
            }
            let is_last = listed.tools.is_empty();
            tools.extend(listed.tools.into_iter().map(definition));
            cursor = listed.next_cursor.filter(|_| !is_last);
            if cursor.is_none() {
                break;
            }
        }
        tools.iter().try_for_each(check)?;
        Ok(tools)
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<String, CallError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let result = self.service.call_tool(params).await.map_err(|error| match error {
            ServiceError::McpError(error) => CallError::Failed(CallFailure::Protocol {
                code: i64::from(error.code.0),
                message: error.message.into_owned(),
            }),
            error => CallError::Unanswered(fault_of_request(&error)),
        })?;
        match result.is_error {
            Some(true) => {
                let content = serde_json::to_value(&result.content).unwrap_or_default();
                Err(CallError::Failed(CallFailure::Execution { content }))
            }
            _ => Ok(text_of(&result)),
        }
    }
}

fn definition(tool: Tool) -> ToolDefinition {
    ToolDefinition {
        name: tool.name.into_owned(),
        description: tool.description.map(|text| text.into_owned()),
        input_schema: Value::Object((*tool.input_schema).clone()),
        annotations: tool.annotations.and_then(|hints| serde_json::to_value(hints).ok()),
    }
}

/// Writes a program's errors into the log.
async fn log_errors(server: String, errors: Option<impl AsyncRead + Unpin>) {
    let Some(mut errors) = errors else { return };
    let mut buffer = vec![0; LOG_BYTES];
    while let Ok(n @ 1..) = errors.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..n]);
        tracing::debug!(server, "a tool server says: {}", text.trim_end());
    }
}

/// The reason why a connection was not made, without the names of the SDK's types.
fn fault_of_start(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => causes(&*error.error),
        error => causes(error),
    }
}

/// The reason why a request has no answer, without the names of the SDK's types.
fn fault_of_request(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => causes(&*error.error),
        error => causes(error),
    }
}

/// An error with its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        cause = error.source();
    }
    told
}
