//! Tools that a gateway calls for its clients: MCP servers over HTTP and as child processes, and HTTP
//! endpoints of the operator. Each tool has bounds of its own, descriptions are pinned by their hashes, and
//! programs run in a sandbox. Does not know how models are asked.
#![forbid(unsafe_code)]

mod bound_text;
mod breaker;
mod config;
mod definition;
mod error;
mod gate;
mod hosts;
mod http_tool;
mod mcp;
mod pins;
mod sandbox;
mod server;
mod servers_file;
mod session;
mod toolbox;

pub use throng_api::responses::ToolDefinition;

pub use config::{HttpToolConfig, LimitsConfig, OauthConfig, Secrets, ServerConfig, ToolsConfig};
pub use error::ToolsError;
pub use pins::{PinState, Pins};
pub use session::{CallRecord, Called, Observed, PendingCall, Session, TurnOutcome};
pub use toolbox::{ListedServer, Toolbox};
