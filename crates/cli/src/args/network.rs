//! The flags of `throng serve` for sockets, encryption, proxies and browsers. Does not know the server.

use std::path::PathBuf;

use clap::Args;

use super::values::{Words, parse_words};

/// How the server is reached.
#[derive(Debug, Clone, Default, Args)]
pub struct NetworkArgs {
    /// A database with API keys (throng keys) and the ledger: a path, or postgres://…; each request must have
    /// a key
    #[arg(long, env = "THRONG_DATABASE", value_name = "DATABASE")]
    pub database: Option<String>,
    /// The beginning of the names of the files in which entries of the ledger wait for the database
    #[arg(long, value_name = "PATH", requires = "database")]
    pub ledger_journal: Option<PathBuf>,
    /// A Redis through which several gateways keep the limits of keys together: redis://… or rediss://…
    #[arg(long, env = "THRONG_REDIS", hide_env_values = true, value_name = "URL")]
    pub redis: Option<String>,
    /// The certificates (PEM) that the Redis' own must come from, for rediss://; the system's when absent
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub redis_ca: Option<PathBuf>,
    /// How many gateways share limits through Redis at least: each uses its part of them where Redis has
    /// never answered
    #[arg(long, value_name = "N", requires = "redis", value_parser = clap::value_parser!(u32).range(1..))]
    pub redis_gateways: Option<u32>,
    /// The operator's key, for /metrics, /load, /fleet, adapters and the operator's API
    #[arg(long, env = "THRONG_ADMIN_KEY", hide_env_values = true, value_name = "KEY")]
    pub admin_key: Option<String>,
    /// A file with the operator's key
    #[arg(long, value_name = "FILE", conflicts_with = "admin_key")]
    pub admin_key_file: Option<PathBuf>,
    /// Serve the operator's API, with /admin, on this address besides: ADDRESS:PORT
    #[arg(long, env = "THRONG_ADMIN_LISTEN", value_name = "ADDRESS")]
    pub admin_listen: Option<String>,
    /// Accept tokens (JWT) of this issuer beside keys: what their iss must be
    #[arg(long, value_name = "URL", requires = "jwt_audience")]
    pub jwt_issuer: Option<String>,
    /// What the aud of those tokens must have
    #[arg(long, value_name = "NAME", requires = "jwt_issuer")]
    pub jwt_audience: Option<String>,
    /// Where the issuer's keys are (JWK Set); found through the issuer's discovery document when absent
    #[arg(long, value_name = "URL", requires = "jwt_issuer")]
    pub jwt_jwks_url: Option<String>,
    /// Answer on Ollama's port too (11434, or --ollama=PORT), for clients that look for Ollama there
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "11434")]
    pub ollama: Option<u16>,
    /// Listen on this Unix domain socket instead of host and port
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub uds: Option<PathBuf>,
    /// Encrypt connections with this certificate (PEM, followed by its chain); read again when it changes
    #[arg(long, alias = "ssl-cert-file", value_name = "FILE", requires = "ssl_keyfile")]
    pub ssl_certfile: Option<PathBuf>,
    /// The certificate's private key (PEM, not encrypted)
    #[arg(long, alias = "ssl-key-file", value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_keyfile: Option<PathBuf>,
    /// Ask clients for certificates that come from these (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Whether clients must have a certificate: 1 they may, 2 they must (with --ssl-ca-certs, 2 when absent)
    #[arg(long, value_name = "N", requires = "ssl_ca_certs",
        value_parser = clap::value_parser!(u8).range(1..=2))]
    pub ssl_cert_reqs: Option<u8>,
    /// vLLM's flag for what always holds here.
    #[arg(long, hide = true)]
    pub enable_ssl_refresh: bool,
    /// The path under which a proxy shows the server, for example /llm; requests with and without it are
    /// answered
    #[arg(long, value_name = "PATH")]
    pub root_path: Option<String>,
    /// Web origins whose pages may send requests: https://a.example,https://b.example or '["*"]'
    #[arg(long, value_name = "ORIGINS", value_parser = parse_words)]
    pub allowed_origins: Vec<Words>,
    /// Methods that those pages may use; any when absent
    #[arg(long, value_name = "METHODS", value_parser = parse_words)]
    pub allowed_methods: Vec<Words>,
    /// Request headers that those pages may send; any when absent
    #[arg(long, value_name = "HEADERS", value_parser = parse_words)]
    pub allowed_headers: Vec<Words>,
    /// Let those pages send cookies
    #[arg(long)]
    pub allow_credentials: bool,
    /// Host names by which proxies and web pages may address this server, besides IP addresses and the name
    /// given with --host; "*" for any
    #[arg(long, value_name = "NAMES", value_parser = parse_words)]
    pub allowed_hosts: Vec<Words>,
    /// Hosts from which images in requests are fetched: a.example,b.example:8443; private:HOST:PORT for one
    /// that may have a private address
    #[arg(long, num_args = 1.., value_name = "HOSTS", value_parser = parse_words)]
    pub allowed_media_domains: Vec<Words>,
}
