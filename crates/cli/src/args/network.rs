//! The flags of `throng serve` for proxies and browsers. Does not know the server.

use clap::Args;

use super::values::{Words, parse_words};

/// How the server is reached.
#[derive(Debug, Clone, Default, Args)]
pub struct NetworkArgs {
    /// The path under which a proxy shows the server, for example /llm; requests with and without it are answered
    #[arg(long, hide_short_help = true, value_name = "PATH")]
    pub root_path: Option<String>,
    /// Web origins whose pages may send requests: https://a.example,https://b.example or '["*"]'
    #[arg(long, hide_short_help = true, value_name = "ORIGINS", value_parser = parse_words)]
    pub allowed_origins: Vec<Words>,
    /// Methods that those pages may use; any when absent
    #[arg(long, hide_short_help = true, value_name = "METHODS", value_parser = parse_words)]
    pub allowed_methods: Vec<Words>,
    /// Request headers that those pages may send; any when absent
    #[arg(long, hide_short_help = true, value_name = "HEADERS", value_parser = parse_words)]
    pub allowed_headers: Vec<Words>,
    /// Let those pages send cookies
    #[arg(long, hide_short_help = true)]
    pub allow_credentials: bool,
    /// Host names by which proxies and web pages may address this server, besides IP addresses and the name given with
    /// --host; "*" for any
    #[arg(long, hide_short_help = true, value_name = "NAMES", value_parser = parse_words)]
    pub allowed_hosts: Vec<Words>,
}
