//! The flags for tools that the gateway calls, and those of `throng tools`. Does not know servers.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Tools that the gateway calls.
#[derive(Debug, Clone, Default, Args)]
pub struct ToolArgs {
    /// Call the tools of the MCP servers in this file (in the form of Cursor's mcp.json) for clients of
    /// /v1/responses
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Option<PathBuf>,
    /// The file of approved tool descriptions, which throng tools approve writes
    #[arg(long, value_name = "FILE")]
    pub tool_pins: Option<PathBuf>,
}

/// `throng tools`.
#[derive(Debug, Clone, Args)]
pub struct ToolsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ToolsCommand,
}

/// Actions on the tools of MCP servers.
#[derive(Debug, Clone, Subcommand)]
pub enum ToolsCommand {
    /// List the tools of the configured servers, and which of them are approved
    List(ToolServersArgs),
    /// Call a tool of a server once, approved or not, and print what it gives
    Call {
        /// The server
        server: String,
        /// The tool
        tool: String,
        /// Its arguments as a JSON object
        #[arg(default_value = "{}", value_name = "JSON")]
        arguments: String,
        /// The TOML file of the server's settings
        #[arg(long, env = "THRONG_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        /// Where the servers and their approvals are.
        #[command(flatten)]
        tools: ToolArgs,
    },
    /// Approve the tools of servers as they are described now; later changes are refused
    Approve(ToolServersArgs),
}

/// The servers to look at.
#[derive(Debug, Clone, Args)]
pub struct ToolServersArgs {
    /// Their names; all configured ones when absent
    #[arg(value_name = "SERVER")]
    pub servers: Vec<String>,
    /// The TOML file of the server's settings
    #[arg(long, env = "THRONG_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the servers and their approvals are.
    #[command(flatten)]
    pub tools: ToolArgs,
}
