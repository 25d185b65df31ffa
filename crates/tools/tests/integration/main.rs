//! Tools over real MCP servers (the SDK's own, over HTTP) and real HTTP endpoints.

mod http_tools;
mod mcp_server;
mod oauth;
mod sessions;
